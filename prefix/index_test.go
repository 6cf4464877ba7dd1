package prefix

import (
	"math"
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

func TestCheapBlocksGoFirstAndDearOnesAge(t *testing.T) {
	// The first token of a block is its cost, by depth 0 only.
	costs := map[int]float64{0: 1, 1: 5}
	f := newFixture(t, 1, func(_, depth int) float64 { return costs[depth] })
	f.idle(10, 0, 11, 0) // the tail costs 5
	got := []int32{}
	for i := int32(20); i < 26; i++ {
		f.idle(i, 0) // costs 1: as dear a block as five evictions of such
		n := f.Victim(0)
		got = append(got, n.Tokens()[0])
		f.Remove(n, nil)
	}
	// The dear tail has priority 5. The cheap ones have 1, 2, 3, 4, 5, and the
	// last of them, later used than the tail, outlives it; the tail's head, at
	// priority 1 since the beginning, goes right after it.
	if want := []int32{20, 21, 22, 23, 11, 10}; !slices.Equal(got, want) {
		t.Errorf("victims %v, want %v", got, want)
	}
}

func TestChainMovesClassByClassTailFirst(t *testing.T) {
	f := newFixture(t, 3, nil)
	chain := f.idle(1, 1, 2, 2, 3, 3)
	for from := range 2 {
		for i := 2; i >= 0; i-- {
			n := f.Victim(from)
			if n != chain[i] {
				t.Fatalf("victim of class %d is %v, want block %d", from, n, i)
			}
			f.SetClass(n, from+1)
			f.check()
			if got := f.Match(f.root, []int32{1, 1, 2, 2, 3, 3}, nil); !slices.Equal(got, chain) {
				t.Fatal("the chain has a gap")
			}
		}
		if f.Victim(from) != nil || f.LenClass(from) != 0 || f.Evictable(from+1) != 3 {
			t.Fatalf("class %d is not empty", from)
		}
	}
	f.SetClass(chain[2], 0)
	if f.Victim(0) != chain[2] || f.Victim(2) != nil {
		t.Error("a block may go before a child that is nearer")
	}
	if got, want := f.Remove(chain[0], nil), []*Node[int]{chain[2], chain[1], chain[0]}; !slices.Equal(got, want) {
		t.Error("a chain is not removed children first")
	}
}

func TestPriorityAcrossClasses(t *testing.T) {
	f := newFixture(t, 2, func(class, _ int) float64 { return []float64{1, 10}[class] })
	old, recent := f.idle(1, 0)[0], f.idle(2, 0)[0]
	f.SetClass(old, 1)
	f.SetClass(recent, 1)
	// Moved nearer by force, the block brings no more than a block used now has.
	f.SetClass(recent, 0)
	fresh := f.idle(3, 0)[0]
	if f.Victim(0) != recent || f.Victim(1) != old {
		t.Error("the block that was moved nearer is not the next to go")
	}
	f.Remove(fresh, nil)
	// A victim has nothing left to bring.
	f.SetClass(old, 0)
	if f.Victim(0) != old {
		t.Error("a victim that moves nearer is not the first victim there")
	}
}

func TestReferencedBlocksAreNoVictims(t *testing.T) {
	f := newFixture(t, 1, nil)
	long := f.idle(1, 1, 2, 2, 3, 3)
	f.Ref(long[:2]...)
	f.Ref(long[:2]...)
	if f.Victim(0) != long[2] || f.Evictable(0) != 1 || long[0].Refs() != 2 {
		t.Error("the tail should be all there is to lose")
	}
	f.Remove(long[2], nil)
	f.Unref(long[:2]...)
	if f.Victim(0) != nil || f.Evictable(0) != 0 {
		t.Error("a referenced block may be lost")
	}
	f.Unref(long[:2]...)
	if f.Victim(0) != long[1] || f.Evictable(0) != 2 {
		t.Error("blocks that nobody references may not be lost")
	}
}

func TestLastUse(t *testing.T) {
	f := newFixture(t, 1, nil)
	at := func(s int) { f.now = time.Duration(s) * time.Second }
	at(1)
	n := f.chain(1, 2)[0]
	for _, c := range []struct {
		name string
		do   func()
		want int
	}{
		{"Insert", func() {}, 1},
		{"Ref", func() { f.Ref(n) }, 2},
		{"Match", func() { f.Match(f.root, n.Tokens(), nil) }, 2},
		{"Unref", func() { f.Unref(n) }, 4},
		{"SetClass", func() { f.SetClass(n, 0) }, 4},
	} {
		c.do()
		if got := n.LastUse(); got != time.Duration(c.want)*time.Second {
			t.Errorf("after %s: %v, want %ds", c.name, got, c.want)
		}
		at(int(f.now/time.Second) + 1)
	}
}

// Two chains with equal keys all the way: other tokens, another parent with
// equal tokens, another root with equal tokens. None may be found as the other.
func TestCollisionsAreMisses(t *testing.T) {
	f := newFixture(t, 1, nil)
	f.next = func(Key, []int32) Key { return Key{1, 1} }
	n, fresh := f.Insert(nil, f.root, []int32{1, 2}, 0, 7)
	if !fresh || n == nil {
		t.Fatal("the first block is not inserted")
	}
	other := Root([]byte("other"))
	for _, c := range []struct {
		name   string
		parent *Node[int]
		root   Key
		tokens []int32
	}{
		{"other tokens", nil, f.root, []int32{1, 3}},
		{"other parent", n, f.root, []int32{1, 2}},
		{"other root", nil, other, []int32{1, 2}},
	} {
		if got, fresh := f.Insert(c.parent, c.root, c.tokens, 0, 8); got != nil || fresh {
			t.Errorf("%s: inserted beside the block with the same key", c.name)
		}
	}
	for _, c := range []struct {
		root   Key
		tokens []int32
		want   int
	}{
		{f.root, []int32{1, 2}, 1},
		{f.root, []int32{1, 2, 1, 2}, 1},
		{f.root, []int32{1, 3}, 0},
		{other, []int32{1, 2}, 0},
	} {
		if got := f.Match(c.root, c.tokens, nil); len(got) != c.want {
			t.Errorf("Match(%v) has %d blocks, want %d", c.tokens, len(got), c.want)
		}
	}
	if f.Len() != 1 || n.Value != 7 {
		t.Error("the block that was there changed")
	}
}

// With several children Match goes by the hash; a key that finds another node
// must not be believed there either.
func TestCollisionsAmongSiblingsAreMisses(t *testing.T) {
	f := newFixture(t, 1, nil)
	f.next = func(_ Key, tokens []int32) Key { return Key{1, uint64(tokens[0])} }
	f.chain(1, 1)
	f.chain(2, 2)
	f.chain(3, 3)
	for _, c := range []struct {
		tokens []int32
		want   int
	}{{[]int32{1, 1}, 1}, {[]int32{1, 5}, 0}, {[]int32{3, 5}, 0}, {[]int32{2, 2, 1, 1}, 1}} {
		if got := f.Match(f.root, c.tokens, nil); len(got) != c.want {
			t.Errorf("Match(%v) has %d blocks, want %d", c.tokens, len(got), c.want)
		}
	}
}

func TestCostsOutOfRange(t *testing.T) {
	for _, c := range []struct{ cost, want float64 }{
		{math.NaN(), 0}, {-1, 0}, {math.Inf(-1), 0}, {0, 0}, {3.5, 3.5}, {1e9, 1e9}, {math.Inf(1), 1e9},
	} {
		f := newFixture(t, 1, func(int, int) float64 { return c.cost })
		if got := f.idle(1, 2)[0].priority; got != c.want {
			t.Errorf("cost %v counts as %v, want %v", c.cost, got, c.want)
		}
	}
}

func TestMisuseIsABug(t *testing.T) {
	for _, c := range []struct {
		name, want string
		do         func(f *fixture)
	}{
		{"short block", "BUG: prefix: a block of 1 tokens in an index of blocks of 2",
			func(f *fixture) { f.Insert(nil, f.root, []int32{1}, 0, 0) }},
		{"class", "BUG: prefix: class 2 of 2", func(f *fixture) { f.Insert(nil, f.root, []int32{1, 1}, 2, 0) }},
		{"class of a block", "BUG: prefix: class -1 of 2", func(f *fixture) { f.SetClass(f.idle(1, 1)[0], -1) }},
		{"parent without references", "BUG: prefix: a block is added after one that nobody references",
			func(f *fixture) { f.Insert(f.idle(1, 1)[0], f.root, []int32{1, 1}, 0, 0) }},
		{"reference too few", "BUG: prefix: a reference is given back that nobody holds",
			func(f *fixture) { f.Unref(f.idle(1, 1)...) }},
		{"referenced block removed", "BUG: prefix: a block with 1 references is removed",
			func(f *fixture) { f.Remove(f.chain(1, 1, 2, 2)[0], nil) }},
		{"removed twice", "BUG: prefix: a node that is not in the index", func(f *fixture) {
			n := f.idle(1, 1)[0]
			f.Remove(n, nil)
			f.Remove(n, nil)
		}},
		{"removed and referenced", "BUG: prefix: a node that is not in the index", func(f *fixture) {
			n := f.idle(1, 1)[0]
			f.Remove(n, nil)
			f.Ref(n)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, 2, nil)
			defer func() {
				if got := recover(); got != c.want {
					t.Errorf("panic %v, want %q", got, c.want)
				}
			}()
			c.do(f)
		})
	}
}

func TestRemovedNodesAreUsedAgain(t *testing.T) {
	f := newFixture(t, 1, nil)
	n := f.idle(1, 2)[0]
	f.Remove(n, nil)
	m := f.chain(3, 4)[0]
	if m != n || m.Value != 0 || !slices.Equal(m.Tokens(), []int32{3, 4}) || len(f.Match(f.root, []int32{1, 2}, nil)) != 0 {
		t.Error("a removed node does not become another block")
	}
}

func TestAllStopsAndOrders(t *testing.T) {
	f := newFixture(t, 1, nil)
	f.chain(1, 1, 2, 2)
	f.chain(1, 1, 3, 3)
	f.chain(4, 4)
	seen := map[*Node[int]]bool{nil: true}
	for n := range f.All() {
		if !seen[n.Parent()] {
			t.Error("a child comes before its parent")
		}
		seen[n] = true
	}
	if len(seen) != 1+4 {
		t.Errorf("%d blocks, want 4", len(seen)-1)
	}
	for range f.All() {
		break
	}
}

// A large index, so that the table grows and heaps are deep.
func TestManyBlocks(t *testing.T) {
	f := newFixture(t, 2, func(class, depth int) float64 { return float64(depth%7 + class) })
	for i := range int32(500) {
		f.idle(i, 0, i%5, 1, i%3, 2)
	}
	f.check()
	for i := range 1000 {
		if i%3 == 0 {
			f.Remove(f.Victim(0), nil)
		} else {
			f.SetClass(f.Victim(0), 1)
		}
	}
	f.check()
	for i := range int32(500) {
		f.idle(i, 0, i%5, 1, i%3, 2)
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	x, err := New[int](Options{BlockTokens: 16, Classes: 2, Cost: func(class, depth int) float64 { return float64(class + depth) }})
	if err != nil {
		t.Fatal(err)
	}
	root := Root([]byte("model"))
	tokens := make([]int32, 16*20)
	chain := make([]*Node[int], 0, 20)
	gone := make([]*Node[int], 0, 20)
	turn := int32(0)
	sequence := func() {
		turn++
		tokens[16*8] = turn // the first 8 blocks are shared
		chain = x.Match(root, tokens, chain[:0])
		x.Ref(chain...)
		for at := len(chain); at < 20; at++ {
			var parent *Node[int]
			if at > 0 {
				parent = chain[at-1]
			}
			for x.Len() >= 100 {
				v := x.Victim(1)
				if v == nil {
					x.SetClass(x.Victim(0), 1)
					continue
				}
				gone = x.Remove(v, gone[:0])
			}
			n, _ := x.Insert(parent, root, tokens[at*16:(at+1)*16], 0, at)
			chain = append(chain, n)
		}
		x.Unref(chain...)
	}
	for range 100 {
		sequence()
	}
	if a := testing.AllocsPerRun(200, sequence); a != 0 {
		t.Errorf("%v allocations per sequence", a)
	}
	for _, err := range x.Check() {
		t.Error(err)
	}
}

// A root that equals a block's key does not continue that block.
func TestRootEqualToAKeyIsNoParent(t *testing.T) {
	f := newFixture(t, 1, nil)
	chain := f.chain(1, 1, 2, 2)
	root := chain[0].Key()
	if got := f.Match(root, []int32{2, 2}, nil); len(got) != 0 {
		t.Error("a second block was found as a first")
	}
	if n, _ := f.Insert(nil, root, []int32{2, 2}, 0, 0); n != nil {
		t.Error("a second block was inserted again as a first")
	}
	f.idle(3, 3) // by hash as well as by the newest child
	if got := f.Match(root, []int32{2, 2}, nil); len(got) != 0 {
		t.Error("a second block was found as a first, by its key")
	}
}
