package prefix

import (
	"slices"
	"testing"
)

// FuzzMatchInsert reads sequences of prompts, ends and evictions from bytes and
// compares what Match finds with a set of whole prefixes. Keys collide often.
func FuzzMatchInsert(f *testing.F) {
	f.Add([]byte{4, 1, 2, 3, 4, 0, 4, 1, 2, 3, 5, 0x80, 0x81, 0x82})
	f.Add([]byte{8, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 4, 0, 0, 0, 0, 0x81, 0x82, 0x82})
	f.Fuzz(func(t *testing.T, in []byte) {
		x, err := New[string](Options{BlockTokens: 2, Classes: 2})
		if err != nil {
			t.Fatal(err)
		}
		x.next = func(k Key, tokens []int32) Key { return Key{0, k.Next(tokens).Lo % 64} }
		x.table.seed = Key{3, 5} // the same input takes the same path
		z := &fuzzed{t: t, x: x, have: map[string]bool{}}
		for len(in) > 0 {
			op := in[0]
			in = in[1:]
			if op < 0x80 {
				n := min(int(op)%16, len(in))
				z.prompt(slices.Clone(in[:n]))
				in = in[n:]
				continue
			}
			z.other(op)
		}
		for _, err := range x.Check() {
			t.Error(err)
		}
		if x.Len() != len(z.have) {
			t.Errorf("%d blocks, want %d", x.Len(), len(z.have))
		}
	})
}

type fuzzed struct {
	t    *testing.T
	x    *Index[string]
	have map[string]bool // whole prefixes; also the blocks' values
	held [][]*Node[string]
}

func (z *fuzzed) prompt(text []byte) {
	tokens := make([]int32, len(text))
	for i, c := range text {
		tokens[i] = int32(c % 4)
		text[i] = c % 4
	}
	chain := z.x.Match(Key{}, tokens, nil)
	want := 0
	for 2*(want+1) <= len(text) && z.have[string(text[:2*(want+1)])] {
		want++
	}
	if len(chain) != want {
		z.t.Fatalf("Match(%v) has %d blocks, want %d", tokens, len(chain), want)
	}
	for i, n := range chain {
		if n.Value != string(text[:2*(i+1)]) {
			z.t.Fatalf("Match(%v)[%d] is the block %q", tokens, i, n.Value)
		}
	}
	z.x.Ref(chain...)
	for at := 2 * want; at+2 <= len(text); at += 2 {
		var parent *Node[string]
		if at > 0 {
			parent = chain[len(chain)-1]
		}
		n, fresh := z.x.Insert(parent, Key{}, tokens[at:at+2], at/2%2, string(text[:at+2]))
		if n == nil {
			break // a collision
		}
		if !fresh {
			z.t.Fatalf("a block that did not match is there")
		}
		z.have[n.Value] = true
		chain = append(chain, n)
	}
	z.held = append(z.held, chain)
}

func (z *fuzzed) other(op byte) {
	class := int(op>>2) % 2
	switch op % 4 {
	case 0, 1:
		if len(z.held) > 0 {
			i := int(op>>2) % len(z.held)
			z.x.Unref(z.held[i]...)
			z.held = slices.Delete(z.held, i, i+1)
		}
	case 2:
		if v := z.x.Victim(class); v != nil {
			for _, n := range z.x.Remove(v, nil) {
				delete(z.have, n.Value)
			}
		}
	case 3:
		if v := z.x.Victim(class); v != nil {
			z.x.SetClass(v, 1-class)
		}
	}
}
