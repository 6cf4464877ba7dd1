// Package hostkv lets an engine that computes on the host serve a model whose KV
// lies in memory that the host cannot address. Before each layer the layer blocks
// that its attention reads are copied to pinned memory of the host, and those with
// new tokens are copied back after it. It stands for an engine that computes where
// the KV is: what it costs is no measure of that one.
package hostkv

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/nvlink"
)

// Options describe a Runner.
type Options struct {
	Arena  nvlink.Arena  // into which the tables of the passes point
	Stream nvlink.Stream // carries the copies; the caller closes it after the Runner
	// Host allocates memory of the host that Stream reaches.
	Host func(size int64) (nvlink.Arena, error)
}

// Runner is an engine.Runner. Like the one within, it is not safe for concurrent
// use.
type Runner struct {
	engine.Runner
	opt    Options
	block  int64        // bytes of a layer block
	tokens int          // that it holds
	memory nvlink.Arena // of the host; nil before the first pass
	pieces []nvlink.Copy
	flat   []int64
	tables [][]int64
}

// New wraps an engine.
func New(inner engine.Runner, opt Options) (*Runner, error) {
	if opt.Arena == nil || opt.Stream == nil || opt.Host == nil {
		return nil, errors.New("hostkv: Arena, Stream and Host are needed")
	}
	layout := inner.KVLayout()
	return &Runner{Runner: inner, opt: opt, block: layout.LayerBlockBytes(), tokens: layout.BlockTokens}, nil
}

// Close frees the memory of the host.
func (r *Runner) Close() error {
	if r.memory == nil {
		return nil
	}
	return r.memory.Close()
}

// Forward implements engine.Runner.
func (r *Runner) Forward(ctx context.Context, batch []engine.Sequence, kv engine.KV) (*engine.Output, error) {
	if err := r.grow(batch); err != nil {
		return nil, err
	}
	s := &staged{Runner: r, kv: kv, batch: batch}
	out, err := r.Runner.Forward(ctx, batch, s)
	if s.err != nil {
		return nil, s.err
	}
	return out, err
}

// blocks is how many layer blocks a sequence has in each layer.
func (r *Runner) blocks(s *engine.Sequence) int {
	return max(0, s.Start+len(s.Tokens)+r.tokens-1) / r.tokens
}

// leastBlocks is how many layer blocks there is room for from the start.
const leastBlocks = 64

// Staging is the memory of the host, in bytes, for a pass that reads n layer
// blocks of the given size in each layer: a power of two of them, so that a
// sequence that grows seldom needs more.
func Staging(layerBlock int64, n int) int64 {
	room := leastBlocks
	for room < n {
		room *= 2
	}
	return int64(room) * layerBlock
}

// grow makes room for one layer of a batch, and the tables that lead there: the
// blocks of all sequences one after another.
func (r *Runner) grow(batch []engine.Sequence) error {
	n := 0
	for i := range batch {
		n += r.blocks(&batch[i])
	}
	if r.memory == nil || r.memory.Size() < int64(n)*r.block {
		memory, err := r.opt.Host(Staging(r.block, n))
		if err != nil {
			return fmt.Errorf("memory of the host for a layer: %w", err)
		}
		if err := r.Close(); err != nil {
			return errors.Join(err, memory.Close())
		}
		r.memory = memory
	}
	r.tables, r.flat = r.tables[:0], r.flat[:0]
	for i := range n {
		r.flat = append(r.flat, int64(i)*r.block)
	}
	at := 0
	for i := range batch {
		end := at + r.blocks(&batch[i])
		r.tables = append(r.tables, r.flat[at:end:end])
		at = end
	}
	return nil
}

// staged is the KV of one pass as the engine sees it.
type staged struct {
	*Runner
	kv    engine.KV
	batch []engine.Sequence
	far   [][]int64 // the tables of the layer
	err   error     // what Written could not say
}

// Memory implements engine.KV.
func (s *staged) Memory() []byte { return s.memory.Bytes() }

// Layer implements engine.KV.
func (s *staged) Layer(l int) ([][]int64, error) {
	if s.err != nil {
		return nil, s.err
	}
	var err error
	if s.far, err = s.kv.Layer(l); err != nil {
		return nil, err
	}
	if len(s.far) != len(s.batch) {
		return nil, fmt.Errorf("layer %d: tables of %d sequences, want %d", l, len(s.far), len(s.batch))
	}
	s.pieces = s.pieces[:0]
	for i, table := range s.far {
		if len(table) < len(s.tables[i]) {
			return nil, fmt.Errorf("layer %d: sequence %d has %d blocks, want %d", l, i, len(table), len(s.tables[i]))
		}
		for j := range s.tables[i] {
			here, there := s.ends(i, j)
			s.pieces = append(s.pieces, nvlink.Copy{Dst: here, Src: there})
		}
	}
	if err := s.copy(); err != nil {
		return nil, fmt.Errorf("layer %d to the host: %w", l, err)
	}
	return s.tables, nil
}

// Written implements engine.KV.
func (s *staged) Written(l int) {
	s.pieces = s.pieces[:0]
	for i := range s.batch {
		for j := s.batch[i].Start / s.tokens; j < len(s.tables[i]); j++ {
			here, there := s.ends(i, j)
			s.pieces = append(s.pieces, nvlink.Copy{Dst: there, Src: here})
		}
	}
	if err := s.copy(); err != nil {
		s.err = fmt.Errorf("layer %d from the host: %w", l, err)
		return
	}
	s.kv.Written(l)
}

// Done implements engine.KV.
func (s *staged) Done(l int) {
	if s.err == nil {
		s.kv.Done(l)
	}
}

// ends are block j of sequence i on the host and in the arena.
func (s *staged) ends(i, j int) (here, there nvlink.Span) {
	n := s.block
	return nvlink.Span{Arena: s.memory, Off: s.tables[i][j], Len: n}, nvlink.Span{Arena: s.opt.Arena, Off: s.far[i][j], Len: n}
}

// copy copies the pieces and waits for them.
func (s *staged) copy() error {
	if err := s.opt.Stream.CopyBatch(s.pieces); err != nil {
		return err
	}
	ev, err := s.opt.Stream.Record()
	if err != nil {
		return err
	}
	return ev.Wait(context.Background()) // the memory must not be used before, cancelled or not
}
