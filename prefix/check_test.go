package prefix

import (
	"strings"
	"testing"
)

// Every kind of damage has to be found, so that a clean Check means something.
func TestCheckFindsDamage(t *testing.T) {
	for _, c := range []struct {
		name, want string
		damage     func(x *Index[int], chain []*Node[int])
	}{
		{"token", "its key is not the hash of its tokens", func(_ *Index[int], c []*Node[int]) { c[1].tokens[0]++ }},
		{"tokens missing", "1 tokens instead of 2", func(_ *Index[int], c []*Node[int]) { c[1].tokens = c[1].tokens[:1] }},
		{"key", "its key is not the hash", func(_ *Index[int], c []*Node[int]) { c[2].key.Lo++ }},
		{"chain of keys", "does not continue its parent's key", func(_ *Index[int], c []*Node[int]) { c[1].before.Hi++ }},
		{"depth", "its parent has depth", func(_ *Index[int], c []*Node[int]) { c[1].depth++ }},
		{"not present", "not marked as present", func(_ *Index[int], c []*Node[int]) { c[0].present = false }},
		{"present and free", "is present and free", func(x *Index[int], _ []*Node[int]) { x.free.present = true }},
		{"references below zero", "has -1 references", func(_ *Index[int], c []*Node[int]) { c[2].refs = -1 }},
		{"reference without the chain", "is referenced, the one before it is not", func(x *Index[int], c []*Node[int]) { x.Ref(c[2]) }},
		{"class", "lies in class 5 of 2", func(_ *Index[int], c []*Node[int]) { c[2].class = 5 }},
		{"class not counted", "class 0 has 3 blocks, 3 of them unreferenced; it counts 4 and 4",
			func(_ *Index[int], c []*Node[int]) { c[2].class = 1 }},
		{"reference not counted", "class 0 has 4 blocks, 3 of them unreferenced; it counts 4 and 4",
			func(_ *Index[int], c []*Node[int]) { c[0].refs = 1 }},
		{"victim missing", "can be lost: true; is among the victims: false",
			func(x *Index[int], c []*Node[int]) { x.withdraw(c[2]) }},
		{"victim too many", "can be lost: false; is among the victims: true",
			func(x *Index[int], c []*Node[int]) { x.class[0].victims.push(c[0]) }},
		{"victim in the wrong place", "place 1 is a victim of class 0 in place 0",
			func(_ *Index[int], c []*Node[int]) { c[2].place = 1 }},
		{"victim reordered", "behind the victims' back", func(_ *Index[int], c []*Node[int]) { c[2].priority++ }},
		{"heap", "out of order at 1", func(x *Index[int], c []*Node[int]) {
			h := x.class[0].victims
			h[0], h[1] = h[1], h[0]
			h[0].node.place, h[1].node.place = 0, 1
		}},
		{"sibling", "is linked wrongly", func(x *Index[int], c []*Node[int]) { x.top.first.after.prev = nil }},
		{"count of children", "counted as", func(_ *Index[int], c []*Node[int]) { c[1].kids[1]++ }},
		{"lost from the table", "its key does not find it", func(x *Index[int], c []*Node[int]) { x.table.remove(c[1]) }},
		{"lost from the tree", "4 in the table", func(x *Index[int], c []*Node[int]) { x.unlink(c[2]) }},
		{"table's count", "4 blocks in buckets, 5 in the table", func(x *Index[int], _ []*Node[int]) { x.table.len++ }},
		{"cycle in a bucket", "more blocks in buckets", func(x *Index[int], c []*Node[int]) {
			n := *x.table.bucket(c[0].key)
			for n.chain != nil {
				n = n.chain
			}
			n.chain = *x.table.bucket(c[0].key)
		}},
		{"wrong bucket", "lies in the wrong bucket", func(x *Index[int], _ []*Node[int]) {
			b := x.table.buckets
			for i := range b {
				if b[i] != nil {
					b[i], b[(i+1)%len(b)] = b[(i+1)%len(b)], b[i]
					return
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fixture{t: t, root: Root([]byte("model"))}
			x, err := New[int](Options{BlockTokens: 2, Classes: 2})
			if err != nil {
				t.Fatal(err)
			}
			f.Index = x
			chain := f.idle(1, 1, 2, 2, 3, 3)
			f.idle(4, 4)
			f.check()
			c.damage(x, chain)
			var all []string
			for _, err := range x.Check() {
				all = append(all, err.Error())
			}
			if got := strings.Join(all, "\n"); !strings.Contains(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}
