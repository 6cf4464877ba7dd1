package prefix

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// fixture is an index of blocks of two tokens whose invariants are verified
// when the test ends.
type fixture struct {
	*Index[int]
	t    *testing.T
	now  time.Duration
	root Key
}

func newFixture(t *testing.T, classes int, cost func(class, depth int) float64) *fixture {
	t.Helper()
	f := &fixture{t: t, root: Root([]byte("model"))}
	x, err := New[int](Options{BlockTokens: 2, Classes: classes, Cost: cost, Now: func() time.Duration { return f.now }})
	if err != nil {
		t.Fatal(err)
	}
	f.Index = x
	t.Cleanup(f.check)
	return f
}

func (f *fixture) check() {
	f.t.Helper()
	for _, err := range f.Check() {
		f.t.Error(err)
	}
}

// chain inserts what is missing of tokens in class 0 and references all of it,
// as a sequence does.
func (f *fixture) chain(tokens ...int32) []*Node[int] {
	f.t.Helper()
	nodes := f.Match(f.root, tokens, nil)
	f.Ref(nodes...)
	for at := 2 * len(nodes); at+2 <= len(tokens); at += 2 {
		var parent *Node[int]
		if len(nodes) > 0 {
			parent = nodes[len(nodes)-1]
		}
		n, fresh := f.Insert(parent, f.root, tokens[at:at+2], 0, at)
		if !fresh {
			f.t.Fatalf("block at %d is not fresh", at)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// idle is chain without references.
func (f *fixture) idle(tokens ...int32) []*Node[int] {
	f.t.Helper()
	nodes := f.chain(tokens...)
	f.Unref(nodes...)
	return nodes
}

// evict removes victims until there are none and gives back their first tokens.
func (f *fixture) evict(class int) (first []int32) {
	f.t.Helper()
	for n := f.Victim(class); n != nil; n = f.Victim(class) {
		first = append(first, n.Tokens()[0])
		if got := f.Remove(n, nil); !slices.Equal(got, []*Node[int]{n}) {
			f.t.Fatalf("removed %d blocks with a victim of the only class", len(got))
		}
		f.check()
	}
	return first
}

func TestOptionsAreChecked(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{BlockTokens: 0, Classes: 1}, "BlockTokens is 0, must be at least 1"},
		{Options{BlockTokens: 1, Classes: 0}, "Classes is 0, must be in [1, 8]"},
		{Options{BlockTokens: 1, Classes: 9}, "Classes is 9, must be in [1, 8]"},
	} {
		if _, err := New[int](c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}

func TestMatchFindsTheLongestChain(t *testing.T) {
	f := newFixture(t, 1, nil)
	a := f.chain(1, 2, 3, 4, 5, 6)
	b := f.chain(1, 2, 3, 4, 7, 8)
	if a[0] != b[0] || a[1] != b[1] || a[2] == b[2] || f.Len() != 4 {
		t.Fatal("chains do not share what they have in common")
	}
	for _, c := range []struct {
		tokens []int32
		want   []*Node[int]
	}{
		{nil, nil},
		{[]int32{1}, nil},
		{[]int32{1, 2}, a[:1]},
		{[]int32{1, 2, 3}, a[:1]},
		{[]int32{1, 2, 3, 4, 5, 6}, a},
		{[]int32{1, 2, 3, 4, 5, 6, 7, 8}, a},
		{[]int32{1, 2, 3, 4, 7, 8, 9}, b},
		{[]int32{1, 2, 3, 4, 9, 9}, a[:2]},
		{[]int32{3, 4, 5, 6}, nil},
		{[]int32{2, 1}, nil},
	} {
		if got := f.Match(f.root, c.tokens, nil); !slices.Equal(got, c.want) {
			t.Errorf("Match(%v) has %d blocks, want %d", c.tokens, len(got), len(c.want))
		}
	}
	if got := f.Match(Root([]byte("other")), []int32{1, 2}, nil); len(got) != 0 {
		t.Error("another root's blocks matched")
	}
	if a[2].Parent() != a[1] || a[0].Parent() != nil || a[2].Depth() != 2 || !slices.Equal(a[2].Tokens(), []int32{5, 6}) {
		t.Error("a node does not say what it is")
	}
	if a[2].Key() != f.root.Next([]int32{1, 2}).Next([]int32{3, 4}).Next([]int32{5, 6}) {
		t.Error("a node's key is not its chain's")
	}
}

func TestVictimsOfOneClassAreLRUTailFirst(t *testing.T) {
	f := newFixture(t, 1, nil)
	f.idle(10, 0, 11, 0)
	f.idle(20, 0, 21, 0)
	f.idle(30, 0)
	f.idle(10, 0) // the head only; its tail stays in front of it
	if got, want := f.evict(0), []int32{11, 21, 20, 30, 10}; !slices.Equal(got, want) {
		t.Errorf("victims %v, want %v", got, want)
	}
	if f.Len() != 0 || f.LenClass(0) != 0 || f.Evictable(0) != 0 {
		t.Error("something is left")
	}
}
