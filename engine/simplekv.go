package engine

import "fmt"

// SimpleKV is the plainest KV cache: one arena that holds a few sequences at
// full length, block j of a sequence behind block j-1, everything always
// readable. It is the reference that tiered caches are compared with. It is
// not safe for concurrent use.
type SimpleKV struct {
	mem    []byte
	tables [][][]int64 // [layer][sequence][block]
	active [][]int64   // the tables of the current pass
	use    []int
}

var _ KV = (*SimpleKV)(nil)

// NewSimpleKV makes a cache for one sequence of up to maxTokens tokens.
func NewSimpleKV(m Runner, maxTokens int) *SimpleKV {
	return NewSimpleKVs(m, 1, maxTokens)
}

// NewSimpleKVs makes a cache for seqs sequences of up to maxTokens tokens
// each. Passes run over all of them, in order, until Use says otherwise.
func NewSimpleKVs(m Runner, seqs, maxTokens int) *SimpleKV {
	layout := m.KVLayout()
	layers, size := m.Config().Layers, layout.LayerBlockBytes()
	blocks := (maxTokens + layout.BlockTokens - 1) / layout.BlockTokens
	kv := &SimpleKV{
		mem:    make([]byte, int64(layers)*int64(seqs)*int64(blocks)*size),
		tables: make([][][]int64, layers),
		active: make([][]int64, seqs),
		use:    make([]int, seqs),
	}
	off := int64(0)
	for l := range kv.tables {
		kv.tables[l] = make([][]int64, seqs)
		for s := range seqs {
			t := make([]int64, blocks)
			for j := range t {
				t[j] = off
				off += size
			}
			kv.tables[l][s] = t
		}
	}
	for s := range seqs {
		kv.use[s] = s
	}
	return kv
}

// Use says which sequences of the cache the batches of the next passes are,
// in batch order. It panics when there is no such sequence.
func (kv *SimpleKV) Use(seqs ...int) {
	for _, s := range seqs {
		if s < 0 || s >= len(kv.tables[0]) {
			panic(fmt.Sprintf("BUG: sequence %d of a SimpleKV with %d", s, len(kv.tables[0])))
		}
	}
	kv.use = append(kv.use[:0], seqs...)
}

// Memory is the arena.
func (kv *SimpleKV) Memory() []byte { return kv.mem }

// Layer returns the tables of the sequences in use, at full length.
func (kv *SimpleKV) Layer(l int) ([][]int64, error) {
	kv.active = kv.active[:0]
	for _, s := range kv.use {
		kv.active = append(kv.active, kv.tables[l][s])
	}
	return kv.active, nil
}

// Written does nothing: what is written is readable.
func (kv *SimpleKV) Written(int) {}

// Done does nothing.
func (kv *SimpleKV) Done(int) {}
