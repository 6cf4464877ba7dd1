package prefix

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// modelBlock is a block as the naive model knows it, by everything before it.
type modelBlock struct {
	path     string // root and all tokens
	parent   *modelBlock
	key      Key
	class    int
	refs     int
	priority float64
	use      int
	lastUse  time.Duration
	value    int
}

// model is an Index without any of its structure: a map of whole prefixes, in
// which every question is answered by looking at all blocks.
type model struct {
	blocks    map[string]*modelBlock
	inflation [MaxClasses]float64
	uses      int
	cost      func(class, depth int) float64
	now       time.Duration
}

func (m *model) depth(b *modelBlock) int {
	if b.parent == nil {
		return 0
	}
	return 1 + m.depth(b.parent)
}

func (m *model) letGo(b *modelBlock) {
	m.uses++
	b.use = m.uses
	b.priority = m.inflation[b.class] + m.cost(b.class, m.depth(b))
}

func (m *model) keyTaken(k Key) bool {
	for _, b := range m.blocks {
		if b.key == k {
			return true
		}
	}
	return false
}

func (m *model) victim(class int) *modelBlock {
	var v *modelBlock
	for _, b := range m.blocks {
		if b.class != class || b.refs > 0 || m.hasChildWithin(b, class) {
			continue
		}
		if v == nil || b.priority < v.priority || b.priority == v.priority && b.use < v.use {
			v = b
		}
	}
	return v
}

func (m *model) hasChildWithin(b *modelBlock, class int) bool {
	for _, c := range m.blocks {
		if c.parent == b && c.class <= class {
			return true
		}
	}
	return false
}

// leave does to inflation what b's leaving its class does, and says what b's
// priority was worth.
func (m *model) leave(b *modelBlock) (left float64) {
	l := &m.inflation[b.class]
	if m.victim(b.class) == b {
		*l = max(*l, b.priority)
	}
	return max(0, b.priority-*l)
}

func (m *model) setClass(b *modelBlock, class int) {
	was := b.class
	if was == class {
		return
	}
	left := m.leave(b)
	b.class = class
	gain := m.cost(class, m.depth(b))
	if class < was {
		gain = min(gain, left)
	}
	b.priority = m.inflation[class] + gain
}

// remove takes blocks out one after another, children before parents.
func (m *model) remove(blocks []*modelBlock) {
	for _, b := range blocks {
		m.leave(b)
		delete(m.blocks, b.path)
	}
}

func (m *model) subtree(b *modelBlock) map[string]bool {
	out := map[string]bool{}
	for p, c := range m.blocks {
		for a := c; a != nil; a = a.parent {
			if a == b {
				out[p] = true
			}
		}
	}
	return out
}

// pair drives an index and its model alike.
type pair struct {
	*model
	x     *Index[int]
	roots []Key
	held  [][]*Node[int] // chains that somebody references
	next  int
}

const pairBlock = 2

func newPair(t *rapid.T, hash func(Key, []int32) Key) *pair {
	p := &pair{roots: []Key{Root([]byte("a")), Root([]byte("b"))}}
	table := rapid.SliceOfN(rapid.Float64Range(0, 4), 3*6, 3*6).Draw(t, "costs")
	p.model = &model{
		blocks: map[string]*modelBlock{},
		cost:   func(class, depth int) float64 { return table[class*6+min(depth, 5)] },
	}
	x, err := New[int](Options{BlockTokens: pairBlock, Classes: 3, Cost: p.cost, Now: func() time.Duration { return p.now }})
	if err != nil {
		t.Fatal(err)
	}
	x.next = hash
	p.x = x
	return p
}

func path(root int, tokens []int32) string { return fmt.Sprint(root, tokens) }

// of is the model's block of a node.
func (p *pair) of(n *Node[int]) *modelBlock {
	var tokens []int32
	a := n
	for ; ; a = a.Parent() {
		tokens = append(slices.Clone(a.Tokens()), tokens...)
		if a.Parent() == nil {
			break
		}
	}
	return p.blocks[path(slices.Index(p.roots, a.before), tokens)]
}

func (p *pair) drawPrompt(t *rapid.T) (root int, tokens []int32) {
	return rapid.IntRange(0, 1).Draw(t, "root"), rapid.SliceOfN(rapid.Int32Range(0, 2), 0, 12).Draw(t, "tokens")
}

// match compares Match with the model's answer.
func (p *pair) match(t *rapid.T, root int, tokens []int32) []*Node[int] {
	got := p.x.Match(p.roots[root], tokens, nil)
	want := 0
	for (want+1)*pairBlock <= len(tokens) && p.blocks[path(root, tokens[:(want+1)*pairBlock])] != nil {
		want++
	}
	if len(got) != want {
		t.Fatalf("Match(%d, %v) has %d blocks, want %d", root, tokens, len(got), want)
	}
	for i, n := range got {
		b := p.blocks[path(root, tokens[:(i+1)*pairBlock])]
		if n.Value != b.value || n.Depth() != i {
			t.Fatalf("block %d of Match(%d, %v) is another", i, root, tokens)
		}
	}
	return got
}

// admit is a sequence's life until it ends: match, reference, insert the rest.
func (p *pair) admit(t *rapid.T) {
	root, tokens := p.drawPrompt(t)
	chain := p.match(t, root, tokens)
	p.x.Ref(chain...)
	for _, n := range chain {
		b := p.of(n)
		b.refs++
		b.lastUse = p.now
	}
	for at := len(chain) * pairBlock; at+pairBlock <= len(tokens); at += pairBlock {
		var up *Node[int]
		var upBlock *modelBlock
		before := p.roots[root]
		if at > 0 {
			up = chain[len(chain)-1]
			upBlock, before = p.of(up), up.Key()
		}
		block := tokens[at : at+pairBlock]
		b := &modelBlock{path: path(root, tokens[:at+pairBlock]), parent: upBlock, refs: 1,
			key: p.x.next(before, block), class: rapid.IntRange(0, 2).Draw(t, "class"), value: p.next}
		p.next++
		taken := p.keyTaken(b.key)
		n, fresh := p.x.Insert(up, p.roots[root], block, b.class, b.value)
		if fresh == taken || (n == nil) != taken {
			t.Fatalf("Insert of a block whose key is taken=%t: %v, %t", taken, n, fresh)
		}
		if taken {
			break
		}
		p.blocks[b.path] = b
		b.lastUse = p.now
		again, fresh := p.x.Insert(up, p.roots[root], block, 0, -1)
		if again != n || fresh || n.Value != b.value || n.Refs() != 1 {
			t.Fatalf("the same block again: %v, %t", again, fresh)
		}
		chain = append(chain, n)
	}
	if len(chain) > 0 {
		p.held = append(p.held, chain)
	}
}

func (p *pair) end(t *rapid.T) {
	if len(p.held) == 0 {
		return
	}
	i := rapid.IntRange(0, len(p.held)-1).Draw(t, "chain")
	chain := p.held[i]
	p.held = slices.Delete(p.held, i, i+1)
	p.x.Unref(chain...)
	for _, n := range chain {
		b := p.of(n)
		b.refs--
		b.lastUse = p.now
		if b.refs == 0 {
			p.letGo(b)
		}
	}
}

func (p *pair) drawNode(t *rapid.T) *Node[int] {
	all := slices.Collect(p.x.All())
	if len(all) == 0 {
		return nil
	}
	return all[rapid.IntRange(0, len(all)-1).Draw(t, "node")]
}

func (p *pair) move(t *rapid.T) {
	n, class := p.drawNode(t), rapid.IntRange(0, 2).Draw(t, "to")
	if n == nil {
		return
	}
	p.setClass(p.of(n), class)
	p.x.SetClass(n, class)
}

// lose does what callers do with a victim: another tier, or out.
func (p *pair) lose(t *rapid.T) {
	class := rapid.IntRange(0, 2).Draw(t, "class")
	n := p.x.Victim(class)
	if n == nil {
		return
	}
	if class < 2 && rapid.Bool().Draw(t, "demote") {
		p.setClass(p.of(n), class+1)
		p.x.SetClass(n, class+1)
		return
	}
	p.drop(t, n)
}

func (p *pair) wipe(t *rapid.T) {
	if n := p.drawNode(t); n != nil && n.Refs() == 0 {
		p.drop(t, n)
	}
}

func (p *pair) drop(t *rapid.T, n *Node[int]) {
	want := p.subtree(p.of(n))
	byValue := map[int]*modelBlock{}
	for path := range want {
		byValue[p.blocks[path].value] = p.blocks[path]
	}
	var order []*modelBlock
	for _, gone := range p.x.Remove(n, nil) {
		b := byValue[gone.Value]
		if b == nil {
			t.Fatalf("Remove removed a block that is no descendant, or one twice")
		}
		delete(byValue, gone.Value)
		for _, c := range byValue {
			if c.parent == b {
				t.Fatalf("Remove removed a block before its child")
			}
		}
		order = append(order, b)
	}
	if len(byValue) > 0 {
		t.Fatalf("Remove left %d descendants", len(byValue))
	}
	p.remove(order)
}

// compare asks both everything.
func (p *pair) compare(t *rapid.T) {
	for _, err := range p.x.Check() {
		t.Error(err)
	}
	p.now += time.Second
	var size, idle [MaxClasses]int
	for _, b := range p.blocks {
		size[b.class]++
		if b.refs == 0 {
			idle[b.class]++
		}
	}
	victims := false
	for c := range 3 {
		victims = victims || p.x.Victim(c) != nil
		if p.x.Evictable(c) > 0 && !victims {
			t.Fatalf("class %d: %d evictable blocks, and no victim up to there", c, p.x.Evictable(c))
		}
		if p.x.LenClass(c) != size[c] || p.x.Evictable(c) != idle[c] {
			t.Fatalf("class %d: %d blocks, %d evictable; want %d, %d", c, p.x.LenClass(c), p.x.Evictable(c), size[c], idle[c])
		}
		got, want := p.x.Victim(c), p.victim(c)
		if (got == nil) != (want == nil) || got != nil && got.Value != want.value {
			t.Fatalf("class %d: victim %+v, want %+v", c, got, want)
		}
	}
	n := 0
	for node := range p.x.All() {
		n++
		b := p.of(node)
		if b == nil || b.value != node.Value || b.refs != node.Refs() || b.class != node.Class() ||
			b.lastUse != node.LastUse() || b.key != node.Key() {
			t.Fatalf("node %+v, want %+v", node, b)
		}
	}
	if n != len(p.blocks) || n != p.x.Len() {
		t.Fatalf("%d blocks, Len %d, want %d", n, p.x.Len(), len(p.blocks))
	}
}

// hashes are a good one and one under which most blocks collide.
var hashes = map[string]func(Key, []int32) Key{
	"xxh3":       Key.Next,
	"collisions": func(k Key, tokens []int32) Key { return Key{0, k.Next(tokens).Lo % 16} },
}

// several does an action up to eight times: rapid's steps are few, and indexes
// have to become large.
func several(f func(*rapid.T)) func(*rapid.T) {
	return func(t *rapid.T) {
		for range rapid.IntRange(1, 8).Draw(t, "times") {
			f(t)
		}
	}
}

func TestIndexIsItsModel(t *testing.T) {
	for name, hash := range hashes {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p := newPair(t, hash)
				t.Repeat(map[string]func(*rapid.T){
					"admit": several(p.admit),
					"match": func(t *rapid.T) {
						root, tokens := p.drawPrompt(t)
						p.match(t, root, tokens)
					},
					"end":  several(p.end),
					"move": several(p.move),
					"lose": several(p.lose),
					"wipe": p.wipe,
					"":     p.compare,
				})
			})
		})
	}
}
