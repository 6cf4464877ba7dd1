package sim

import (
	"time"

	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/master"
	"github.com/kvlend/kvlend/planner/perf"
)

// passes is the layer stream cache without bytes: it keeps the order of loads and
// stores of package lsc, and works out when each begins and ends.
type passes struct {
	clock   *clock
	layers  int
	buffers int
	bytes   int64   // of a layer block
	loads   []*link // by via
	store   []*link // by via, the other direction
	now     *pass   // the pass of the step that is being computed
	free    *pass   // for the next one
}

// Begin implements master.Passes.
func (p *passes) Begin(blocks []lsc.Block) (master.Pass, error) {
	ps := p.free
	if ps == nil {
		ps = &pass{of: p, lanes: make([]lane, len(p.loads)), stored: make([]time.Duration, p.layers), left: make([]time.Duration, p.layers)}
	}
	p.free = nil
	ps.begin(blocks)
	p.now = ps
	return ps, nil
}

// pass is the account of one step.
type pass struct {
	of     *passes
	lanes  []lane
	stored []time.Duration // when the store of each layer has ended
	left   []time.Duration // when the attention of each layer has ended
	refuse []int64
	guards []guarded
	stats  lsc.Stats
	end    time.Duration
	reuse  bool // some block that is stored shares its slots between layers
}

// guarded is a block whose memory may change hands.
type guarded struct {
	guard lsc.Guard
	key   int64
	store bool
}

// lane is what comes over one link, and goes over it.
type lane struct {
	streamed, promoted, stores int64 // bytes of a layer
	s, w                       int   // layers loaded of each kind
	free                       time.Duration
	sent                       time.Duration // until when stores are on their way
	busy                       time.Duration
	at                         []time.Duration // by layer: when all its loads have ended
}

func (p *pass) begin(blocks []lsc.Block) {
	L := p.of.layers
	p.refuse, p.guards, p.stats, p.reuse = p.refuse[:0], p.guards[:0], lsc.Stats{}, false
	for i := range p.lanes {
		ln := &p.lanes[i]
		at := ln.at
		if at == nil {
			at = make([]time.Duration, L)
		}
		*ln = lane{at: at, free: p.of.clock.t, sent: p.of.clock.t}
	}
	n := p.of.bytes
	for i := range blocks {
		b := &blocks[i]
		ln := &p.lanes[b.Via]
		switch {
		case b.Load && len(b.Slots) == L:
			ln.promoted += n
			p.stats.PromotedBlocks += L
		case b.Load:
			ln.streamed += n
		}
		if b.Load {
			p.stats.LoadedBlocks += L
		}
		if b.Store {
			ln.stores += n
			p.reuse = p.reuse || len(b.Slots) < L
			p.stats.StoredBlocks += L
		}
		if (b.Load || b.Store) && b.Guard != nil {
			p.guards = append(p.guards, guarded{b.Guard, b.Key, b.Store})
		}
	}
	p.stats.LoadedBytes = int64(p.stats.LoadedBlocks) * n
	p.stats.PromotedBytes = int64(p.stats.PromotedBlocks) * n
	p.stats.StoredBytes = int64(p.stats.StoredBlocks) * n
	p.check(true)
}

// check asks the guards.
func (p *pass) check(loads bool) {
	for _, g := range p.guards {
		if (loads || g.store) && !g.guard.MayLoad() {
			p.refuse = append(p.refuse, g.key)
		}
	}
}

// run takes the pass through all layers of a computation that begins now.
func (p *pass) run(c perf.Cost) error {
	if len(p.refuse) > 0 {
		return &lsc.StaleError{Keys: p.refuse}
	}
	t := p.of.clock.t
	b := p.of.buffers
	// The projections of Q, K and V precede attention; the new KV is there
	// after them.
	before := (c.Layer - c.Attention) / projections
	for l := range p.of.layers {
		ready := t
		for i := range p.lanes {
			if ln := &p.lanes[i]; ln.streamed+ln.promoted > 0 {
				ready = max(ready, p.load(i, l))
			}
		}
		if l >= b && p.reuse {
			ready = max(ready, p.stored[l-b])
		}
		p.stats.Stall += ready - t
		if l == 0 {
			p.stats.FirstStall = ready - t
		}
		written := ready + before
		p.left[l] = written + c.Attention
		p.store(l, written)
		t = ready + c.Layer
	}
	p.of.clock.advance(t + c.Fixed)
	p.end = t
	for i := range p.lanes {
		p.end = max(p.end, p.lanes[i].free, p.lanes[i].sent)
	}
	return nil
}

// projections is the part of a layer's linear work that precedes attention, as a
// divisor.
const projections = 6

// store sends layer l of the blocks that are stored.
func (p *pass) store(l int, written time.Duration) {
	p.stored[l] = 0
	for i := range p.lanes {
		ln := &p.lanes[i]
		if ln.stores == 0 {
			continue
		}
		_, ln.sent = p.of.store[i].carry(max(written, ln.sent), ln.stores, p.of.bytes)
		p.stored[l] = max(p.stored[l], ln.sent)
	}
}

// load sees to it that layer l of both kinds is loaded over a lane, in the order
// of package lsc: of what may start the earliest layer, of one layer the streamed
// batch; while that has to wait for its slots, promoted ones of later layers.
func (p *pass) load(via, l int) time.Duration {
	ln, L := &p.lanes[via], p.of.layers
	for {
		wantS, wantW := ln.streamed > 0 && ln.s <= l, ln.promoted > 0 && ln.w <= l
		if !wantS && !wantW {
			return ln.at[l]
		}
		leftW := ln.promoted > 0 && ln.w < L
		switch {
		case wantS && (ln.s <= ln.w || !leftW):
			ready := p.ready(ln.s)
			if leftW && ready > ln.free {
				p.batch(via, ln.w, ln.promoted, ln.free)
				ln.w++
				continue
			}
			p.batch(via, ln.s, ln.streamed, ready)
			ln.s++
		case leftW:
			p.batch(via, ln.w, ln.promoted, ln.free)
			ln.w++
		default:
			p.batch(via, ln.s, ln.streamed, p.ready(ln.s))
			ln.s++
		}
	}
}

// ready is when the slots of layer l may be loaded into. Attention has left those
// of the layers before.
func (p *pass) ready(l int) time.Duration {
	if before := l - p.of.buffers; before >= 0 {
		if !p.reuse {
			return p.left[before]
		}
		return max(p.left[before], p.stored[before])
	}
	return 0
}

// batch loads one layer of one kind.
func (p *pass) batch(via, l int, bytes int64, ready time.Duration) {
	ln := &p.lanes[via]
	began, ended := p.of.loads[via].carry(max(ready, ln.free), bytes, p.of.bytes)
	ln.free = ended
	ln.busy += ended - began
	ln.at[l] = max(ended, ln.at[l])
}

// Layer implements master.Pass. The engine of a simulation calls run instead.
func (p *pass) Layer(int) error { return nil }

// Written implements master.Pass.
func (p *pass) Written(int) {}

// Done implements master.Pass.
func (p *pass) Done(int) {}

// Finish implements master.Pass.
func (p *pass) Finish() error {
	p.of.clock.advance(p.end)
	p.of.now = nil
	p.refuse = p.refuse[:0]
	p.check(false)
	if len(p.refuse) > 0 {
		return &lsc.StaleError{Keys: p.refuse}
	}
	return nil
}

// Abort implements master.Pass.
func (p *pass) Abort() { p.of.now = nil }

// Stats implements master.Pass.
func (p *pass) Stats() lsc.Stats { return p.stats }

// Loads implements master.Pass.
func (p *pass) Loads(f func(lsc.Load)) {
	for i := range p.lanes {
		ln := &p.lanes[i]
		for _, kind := range [2]struct {
			bytes  int64
			layers int
		}{{ln.streamed, ln.s}, {ln.promoted, ln.w}} {
			for range kind.layers {
				if kind.bytes > 0 {
					f(lsc.Load{Via: i, Bytes: kind.bytes, Busy: p.of.loads[i].model.Time(kind.bytes, p.of.bytes)})
				}
			}
		}
	}
	p.of.free = p // the last that is asked of a pass
}
