package store

import "github.com/kvlend/kvlend/prefix"

// chunkSlots is how many slots' entries are allocated at once.
const chunkSlots = 1024

// Flags of a slot.
const (
	flagLive   = 1 << iota // holds a committed block
	flagDirty              // is in the list of changes
	flagLogged             // the active area may hold an entry of it
)

// memory holds the entries of all slots. It knows no locks.
type memory struct {
	geo    *Geometry
	flags  []uint8
	chunks []*chunk
}

// chunk is the entries of chunkSlots slots.
type chunk struct {
	head   []entryHead
	tokens []int32
	sums   []uint64
}

type entryHead struct {
	key, parent prefix.Key
	tag, number uint64
	root        bool
}

func newMemory(g *Geometry) memory {
	return memory{
		geo:    g,
		flags:  make([]uint8, g.Slots),
		chunks: make([]*chunk, (g.Slots+chunkSlots-1)/chunkSlots),
	}
}

func (m *memory) has(s Slot, flag uint8) bool { return m.flags[s]&flag != 0 }

// chunk is where the entry of s belongs.
func (m *memory) chunk(s Slot) *chunk {
	c := m.chunks[s/chunkSlots]
	if c == nil {
		n := min(chunkSlots, m.geo.Slots)
		c = &chunk{make([]entryHead, n), make([]int32, n*m.geo.BlockTokens), make([]uint64, n*m.geo.Layers)}
		m.chunks[s/chunkSlots] = c
	}
	return c
}

func (m *memory) head(s Slot) *entryHead { return &m.chunks[s/chunkSlots].head[s%chunkSlots] }

func (m *memory) key(s Slot) prefix.Key { return m.head(s).key }

func (c *chunk) slices(g *Geometry, s Slot) (tokens []int32, sums []uint64) {
	i, b, l := int(s%chunkSlots), g.BlockTokens, g.Layers
	return c.tokens[i*b : (i+1)*b : (i+1)*b], c.sums[i*l : (i+1)*l : (i+1)*l]
}

// entry is a view of a slot's entry.
func (m *memory) entry(s Slot) Entry {
	c := m.chunks[s/chunkSlots]
	h := &c.head[s%chunkSlots]
	e := Entry{Slot: s, Key: h.key, Parent: h.parent, Root: h.root, Tag: h.tag}
	e.Tokens, e.Sums = c.slices(m.geo, s)
	return e
}

func (m *memory) put(e *Entry, number uint64) {
	c := m.chunk(e.Slot)
	c.head[e.Slot%chunkSlots] = entryHead{e.Key, e.Parent, e.Tag, number, e.Root}
	tokens, sums := c.slices(m.geo, e.Slot)
	copy(tokens, e.Tokens)
	copy(sums, e.Sums)
}

// decode puts the entry of a record.
func (m *memory) decode(rec []byte) {
	s := recordSlot(rec)
	c := m.chunk(s)
	var e Entry
	e.Tokens, e.Sums = c.slices(m.geo, s)
	getEntry(rec, &e)
	c.head[s%chunkSlots] = entryHead{e.Key, e.Parent, e.Tag, recordNumber(rec), e.Root}
}

// encode fills a record with the entry of a live slot.
func (m *memory) encode(rec []byte, s Slot) {
	e := m.entry(s)
	putEntry(rec, &e, m.head(s).number)
}
