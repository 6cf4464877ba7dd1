package overlap

import (
	"context"
	"slices"
	"time"

	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/scheduler"
)

// decodeCache is a scheduler's cache in which every sequence finds its history in
// place: the first streaming ones in borrowed memory, from where every step
// streams it, the others at home. New tokens are at home.
type decodeCache struct {
	d         *decoder
	c         *DecodeCell
	link      *linkEnd // nil: nothing is streamed
	streaming int      // set while nothing runs
	blocks    [][]lsc.Block
	changed   chan struct{}
	perSeq    time.Duration // of streaming one sequence
	steps     []decodeLap   // that ran
}

var (
	_ scheduler.PrefixCache = (*decodeCache)(nil)
	_ scheduler.StepCoster  = (*decodeCache)(nil)
)

// decodeLap is what one step took, in seconds.
type decodeLap struct {
	seqs                []int
	finished            time.Time
	stream, step, least float64
}

func newDecodeCache(d *decoder, c *DecodeCell) *decodeCache {
	k := &decodeCache{d: d, c: c, link: d.links[c.Link], changed: make(chan struct{})}
	if k.link == nil {
		return k
	}
	per := c.History / blockTokens
	k.perSeq = time.Duration(float64(d.layers) * d.took(k.link, per) * float64(time.Second))
	for i := range c.streaming() {
		var list []lsc.Block
		for j := range per {
			at := k.history(i) + j
			b := lsc.Block{Load: true, Key: int64(at), Remote: func(l int) nvlink.Span {
				return nvlink.Span{Arena: k.link.remote, Off: d.offset(at, l), Len: d.layerBytes}
			}}
			for buffer := range c.buffers() {
				b.Slots = append(b.Slots, k.slot(at, buffer))
			}
			list = append(list, b)
		}
		k.blocks = append(k.blocks, list)
	}
	return k
}

// history is the first block of sequence i.
func (k *decodeCache) history(i int) int { return i * slices.Max(k.d.opt.History) / blockTokens }

func (k *decodeCache) slot(at, buffer int) int64 {
	return k.d.slots + int64(at*k.c.buffers()+buffer)*k.d.layerBytes
}

// index is which sequence a request is: requests come in rounds.
func (k *decodeCache) index(id uint64) int { return int(id-1) % k.c.Batch }

func (k *decodeCache) streams(id uint64) bool { return k.index(id) < k.streaming }

func (k *decodeCache) BlockTokens() int                       { return blockTokens }
func (k *decodeCache) MaxTokens() int                         { return k.c.History + k.d.opt.room() }
func (k *decodeCache) Reserve(uint64, int) error              { return nil }
func (k *decodeCache) Release(uint64)                         {}
func (k *decodeCache) Evicted() []uint64                      { return nil }
func (k *decodeCache) Changed() <-chan struct{}               { return k.changed }
func (k *decodeCache) Expect(scheduler.Admission)             {}
func (k *decodeCache) Receipt(uint64) (r scheduler.Receipt)   { return r }
func (k *decodeCache) Admit(scheduler.Admission) (int, error) { return k.c.History, nil }

// StepCost implements scheduler.StepCoster.
func (k *decodeCache) StepCost(id uint64) (int64, time.Duration) {
	if !k.streams(id) {
		return 0, 0
	}
	return int64(k.c.History) * k.d.kvToken(), k.perSeq
}

// Begin implements scheduler.Cache.
func (k *decodeCache) Begin(_ context.Context, steps []scheduler.StepSeq) (scheduler.Step, error) {
	s := &decodeStep{k: k, bound: pass{buffers: k.c.buffers()}}
	s.began = time.Now()
	var blocks []lsc.Block
	for _, st := range steps {
		s.seqs = append(s.seqs, k.index(st.ID))
		s.tables = append(s.tables, make([]int64, (st.Start+st.New+blockTokens-1)/blockTokens))
		s.streamed = append(s.streamed, k.streams(st.ID))
		if k.streams(st.ID) {
			blocks = append(blocks, k.blocks[k.index(st.ID)]...)
		}
	}
	if len(blocks) == 0 {
		return s, nil
	}
	s.bound.streamed = k.d.took(k.link, len(blocks))
	var err error
	s.pass, err = k.link.pipelines[k.c.buffers()].Begin(blocks)
	return s, err
}

// decodeStep is a scheduler.Step that times itself.
type decodeStep struct {
	k        *decodeCache
	pass     *lsc.Pass // nil: all is local
	seqs     []int
	streamed []bool
	tables   [][]int64
	bound    pass
	laps
}

// Memory implements engine.KV.
func (s *decodeStep) Memory() []byte { return s.k.d.local.Bytes() }

// Layer implements engine.KV.
func (s *decodeStep) Layer(l int) ([][]int64, error) {
	s.called = append(s.called, time.Now())
	if s.pass != nil {
		if err := s.pass.Layer(l); err != nil {
			return nil, err
		}
	}
	s.ready = append(s.ready, time.Now())
	d, old := s.k.d, s.k.c.History/blockTokens
	for n, i := range s.seqs {
		first := s.k.history(i)
		for j := range s.tables[n] {
			switch {
			case j >= old:
				s.tables[n][j] = d.fresh + d.offset(i*d.opt.room()/blockTokens+j-old, l)
			case s.streamed[n]:
				s.tables[n][j] = s.k.slot(first+j, l%s.k.c.buffers())
			default:
				s.tables[n][j] = d.residentAt(first+j, l)
			}
		}
	}
	return s.tables, nil
}

// Written implements engine.KV.
func (s *decodeStep) Written(l int) {
	if s.pass != nil {
		s.pass.Written(l)
	}
}

// Done implements engine.KV.
func (s *decodeStep) Done(l int) {
	s.ended = append(s.ended, time.Now())
	if s.pass != nil {
		s.pass.Done(l)
	}
}

// Commit implements scheduler.Step.
func (s *decodeStep) Commit() error {
	if s.pass != nil {
		if err := s.pass.Finish(); err != nil {
			return err
		}
	}
	s.finished = time.Now()
	s.times(&s.bound)
	k := s.k
	k.steps = append(k.steps, decodeLap{seqs: s.seqs, finished: s.finished, stream: float64(k.d.layers) * s.bound.streamed,
		step: s.step(), least: s.step() - s.stall() + sum(s.bound.stalls())})
	return nil
}

// Abort implements scheduler.Step.
func (s *decodeStep) Abort() {
	if s.pass != nil {
		s.pass.Abort()
	}
}
