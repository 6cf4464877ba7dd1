package lsc

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

// Stats counts what one pass did.
type Stats struct {
	LoadedBytes, StoredBytes int64 // submitted to the streams
	LoadedBlocks             int   // layer blocks loaded
	StoredBlocks             int   // layer blocks stored
	// PromotedBytes and PromotedBlocks are the part of the loads that went to
	// promoted blocks; the rest was streamed.
	PromotedBytes  int64
	PromotedBlocks int
	VerifiedBlocks int // loaded layer blocks whose checksums were compared
	// Stall is the time that Layer spent waiting: transfers that did not
	// hide behind computation.
	Stall time.Duration
	// FirstStall is the part of Stall before layer 0, which nothing hides
	// unless the loads started while the request still queued.
	FirstStall time.Duration
	// LoadBusy is the sum of Load.Busy over the batches that have completed;
	// those of different streams overlap.
	LoadBusy time.Duration
}

// Pass is one forward pass through all layers. The goroutine that computes
// calls, for l = 0, 1, ..., Layer(l), Written(l), Done(l), and then Finish.
// Abort and Stats may be called from any goroutine at any time.
type Pass struct {
	pl      *Pipeline
	blocks  []Block
	summed  []int // blocks that are stored and keep checksums
	reuse   bool  // some block that is stored shares its slots between layers
	aborted chan struct{}

	mu     sync.Mutex
	pieces []nvlink.Copy // scratch
	waits  []*load       // scratch
	lanes  []lane
	// storeEv holds an event per layer; nil: nothing was submitted.
	storeEv    []nvlink.Event
	storeBytes []int64
	sealed     []hashes // by layer: of what was stored
	// refused are the keys whose guard refused a load. Nothing is loaded then.
	refused []int64
	landed  bool // all promoted loads completed before a guard refused any
	// lost says by index which blocks may no longer be stored to.
	lost  []bool
	layer int   // the layer whose turn it is
	phase phase // what was called last for it
	err   error // sticky: the pass cannot go on
	ended bool  // Finish or Abort was called
	stats Stats
}

type phase uint8

const (
	idle phase = iota
	reading
	written
)

func newPass(pl *Pipeline, blocks []Block) *Pass {
	n := pl.cfg.Layers
	p := &Pass{
		pl:         pl,
		blocks:     slices.Clone(blocks),
		aborted:    make(chan struct{}),
		pieces:     pl.takeSpare(),
		storeEv:    make([]nvlink.Event, n),
		storeBytes: make([]int64, n),
		sealed:     make([]hashes, n),
		lost:       make([]bool, len(blocks)),
	}
	for i := range blocks {
		b := &blocks[i]
		if b.Store && b.Sums != nil {
			p.summed = append(p.summed, i)
		}
		p.reuse = p.reuse || b.Store && len(b.Slots) < n
	}
	p.lanes = p.lanesOf()
	return p
}

// Layer waits until the slots of layer l hold its history and may be written:
// its loads have completed, and so has the store that used the slots before.
// Then it asks the guards once more. A StaleError lists the blocks whose
// memory changed hands, a CorruptError those whose bytes in layer l are not what
// was stored; the pass is over then, as after any other error, and must be
// aborted. A promoted block whose layers have all arrived is no longer asked for.
func (p *Pass) Layer(l int) error {
	if err := p.enter(l); err != nil {
		return err
	}
	began := time.Now()
	// Lanes are fixed, and so is which of them have submitted.
	for i := range p.lanes {
		if ch := p.lanes[i].submitted; ch != nil && !p.wait(ch[l]) {
			return ErrAborted
		}
	}
	p.mu.Lock()
	loads, store := p.loadsOf(l), p.storeBefore(l)
	p.mu.Unlock()
	if store != nil && !p.wait(store.Done()) {
		return ErrAborted
	}
	for _, ld := range loads {
		if !p.wait(ld.ev.Done()) {
			return ErrAborted
		}
	}
	return p.entered(l, loads, store, time.Since(began))
}

// wait waits for done; false: the pass was aborted first.
func (p *Pass) wait(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-p.aborted:
		return false
	}
}

// enter checks that it is layer l's turn.
func (p *Pass) enter(l int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.turn("Layer", l, idle); err != nil {
		return err
	}
	return p.refusal()
}

// refusal ends the pass, under mu, if a guard has refused a load.
func (p *Pass) refusal() error {
	if p.err == nil && p.refused != nil {
		p.err = &StaleError{Keys: p.refused}
	}
	return p.err
}

func (p *Pass) entered(l int, loads []*load, store nvlink.Event, stall time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Stall += stall
	if l == 0 {
		p.stats.FirstStall = stall
	}
	if p.ended {
		return ErrAborted
	}
	if store != nil && store.Err() != nil {
		p.err = p.broken(fmt.Errorf("lsc: store of layer %d: %w", l-p.pl.cfg.Buffers, store.Err()))
		return p.err
	}
	for _, ld := range loads {
		if err := ld.ev.Err(); err != nil {
			p.err = p.broken(fmt.Errorf("lsc: load of layer %d: %w", l, err))
			return p.err
		}
	}
	landed := p.land()
	if keys := p.refusedLoads(); keys != nil {
		p.refused = keys
	}
	if err := p.refusal(); err != nil {
		return err
	}
	p.landed = landed
	// Only now: the next owner's bytes are no corruption.
	if err := p.corruption(l, loads); err != nil {
		p.err = err
		return err
	}
	p.phase = reading
	return nil
}

// broken is the error of a transfer that failed, under mu: memory that fails is
// as good as gone, if its guard says so.
func (p *Pass) broken(err error) error {
	var keys []int64
	for i := range p.blocks {
		b := &p.blocks[i]
		if (b.Load || b.Store) && b.Guard != nil && !b.Guard.MayLoad() {
			keys = append(keys, b.Key)
		}
	}
	if keys == nil {
		return err
	}
	return &StaleError{Keys: keys, Err: err}
}

// Written says that the new KV of layer l is in the slots, and submits
// store(l). It does not block.
func (p *Pass) Written(l int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.turn("Written", l, reading) != nil {
		return
	}
	p.phase = written
	p.submitStore(l)
}

// Done says that attention of layer l has finished, and submits the next load
// into its slots, to start when store(l) has completed. It does not block.
func (p *Pass) Done(l int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.turn("Done", l, written) != nil {
		return
	}
	p.phase = idle
	p.layer++
	for i := range p.lanes {
		if ln := &p.lanes[i]; ln.pumped {
			p.next(ln)
		} else {
			p.stream(ln)
		}
	}
}

// Finish waits for all stores and asks the guards of stored blocks once more.
// A StaleError lists the blocks that lost their memory before all their layers
// were in place: what was stored of them is void. After any other error all
// stored blocks of this pass are void. In every case nothing is in flight
// when Finish returns, so slots may be used again.
func (p *Pass) Finish() error {
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		return ErrAborted
	}
	p.ended = true
	p.mu.Unlock()
	p.drain()

	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.recycle()
	p.keepSums()
	if p.err != nil {
		return p.err
	}
	if p.layer < p.pl.cfg.Layers {
		return fmt.Errorf("lsc: Finish after %d of %d layers", p.layer, p.pl.cfg.Layers)
	}
	for l, ev := range p.storeEv {
		if ev != nil && ev.Err() != nil {
			return p.broken(fmt.Errorf("lsc: store of layer %d: %w", l, ev.Err()))
		}
	}
	var keys []int64
	for i := range p.blocks {
		b := &p.blocks[i]
		if b.Store && (p.lost[i] || b.Guard != nil && !b.Guard.MayLoad()) {
			keys = append(keys, b.Key)
		}
	}
	if keys != nil {
		return &StaleError{Keys: keys}
	}
	return nil
}

// Abort ends the pass: nothing more is submitted, and what was submitted has
// completed when Abort returns, so slots may be used again. A Layer that waits
// returns ErrAborted. After Finish, and when called again, Abort does nothing.
func (p *Pass) Abort() {
	p.mu.Lock()
	first := !p.ended
	if first {
		p.ended = true
		close(p.aborted)
	}
	p.mu.Unlock()
	p.drain()
	if first {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.recycle()
	}
}

// Stats returns the counters so far.
func (p *Pass) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.stats
	p.eachLoad(func(_ *lane, _ kindOf, _ int, ld *load) {
		if began, ended, ok := ran(ld.ev); ok {
			st.LoadBusy += ended.Sub(began)
		}
	})
	return st
}

// turn checks, under mu, that the call fits the order of calls. A wrong order
// is kept as the pass's error, because Written and Done return none.
func (p *Pass) turn(call string, l int, want phase) error {
	switch {
	case p.ended:
		return ErrAborted
	case p.err != nil:
		return p.err
	case l != p.layer || p.phase != want || l >= p.pl.cfg.Layers:
		p.err = fmt.Errorf("lsc: %s(%d) out of order: layer %d of %d is next, calls are Layer, Written, Done",
			call, l, p.layer, p.pl.cfg.Layers)
		return p.err
	}
	return nil
}

// submitStore enqueues store(l) under mu, leaving out blocks that may no
// longer be stored. Errors end the pass.
func (p *Pass) submitStore(l int) {
	p.pieces = p.pieces[:0]
	for i := range p.blocks {
		b := &p.blocks[i]
		if !b.Store || p.lost[i] {
			continue
		}
		if b.Guard != nil && !b.Guard.MayStore() {
			p.lost[i] = true
			continue
		}
		p.pieces = append(p.pieces, nvlink.Copy{Dst: b.Remote(l), Src: p.slot(b, l)})
	}
	if len(p.pieces) == 0 {
		return
	}
	ev, bytes, err := p.submit(p.pl.cfg.Store, nil, func() error { return p.sumStore(l) })
	if err != nil {
		p.err = fmt.Errorf("lsc: store of layer %d: %w", l, err)
		return
	}
	p.storeEv[l], p.storeBytes[l] = ev, bytes
	p.stats.StoredBlocks += len(p.pieces)
	p.stats.StoredBytes += bytes
}

// submit enqueues p.pieces as one batch, to start after an event of the other
// stream, then what behind enqueues, and returns the event of its completion.
func (p *Pass) submit(s nvlink.Stream, after nvlink.Event, behind func() error) (nvlink.Event, int64, error) {
	want := p.pl.cfg.LayerBlockBytes
	for i := range p.pieces {
		for _, sp := range []nvlink.Span{p.pieces[i].Dst, p.pieces[i].Src} {
			if sp.Len != want {
				return nil, 0, fmt.Errorf("piece %d: Remote gives %d bytes, want %d: %w", i, sp.Len, want, nvlink.ErrBadSpan)
			}
		}
	}
	if after != nil && !over(after) {
		if err := s.WaitEvent(after); err != nil {
			return nil, 0, err
		}
	}
	if err := s.CopyBatch(p.pieces); err != nil {
		return nil, 0, err
	}
	if err := behind(); err != nil {
		return nil, 0, err
	}
	ev, err := s.Record()
	return ev, want * int64(len(p.pieces)), err
}

func (p *Pass) slot(b *Block, l int) nvlink.Span {
	return nvlink.Span{Arena: p.pl.cfg.Local, Off: b.Slots[l%len(b.Slots)], Len: p.pl.cfg.LayerBlockBytes}
}

// drain waits until everything that was submitted has completed. Nothing more
// is, since the pass has ended.
func (p *Pass) drain() {
	p.mu.Lock()
	evs := slices.Clone(p.storeEv)
	p.eachLoad(func(_ *lane, _ kindOf, _ int, ld *load) { evs = append(evs, ld.ev) })
	p.mu.Unlock()
	for _, ev := range evs {
		if ev != nil {
			<-ev.Done()
		}
	}
}

// recycle tells the recorder what was moved and hands the scratch list, under
// mu, to the next pass.
func (p *Pass) recycle() {
	p.record()
	clear(p.pieces[:cap(p.pieces)])
	p.pl.giveSpare(p.pieces)
	p.pieces = nil
}
