package lsc

import (
	"cmp"
	"fmt"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

// kindOf a load: streamed blocks reuse their slots, promoted ones do not.
type kindOf uint8

const (
	streamed kindOf = iota
	promoted
	kinds
)

// lane is what one stream loads in a pass. Guarded by the pass's mutex except
// blocks, stream and submitted, which do not change.
type lane struct {
	stream nvlink.Stream
	via    int
	blocks [kinds][]int   // indices into the pass's blocks
	loads  [kinds][]*load // by layer; shorter than Layers while some are not submitted
	verify [kinds][]int   // those of them to verify
	landed int            // promoted loads that have completed, in order
	flying int            // batches of a pumped lane that are not over
	pumped bool           // the end of a batch chooses what is submitted
	// submitted, on a pumped lane, is closed per layer when its loads are
	// submitted, or never will be.
	submitted []chan struct{}
	announced int // of them are closed
}

// load is a batch: one layer of the blocks of one kind.
type load struct {
	ev       nvlink.Event
	bytes    int64
	verified hashes // complete when ev is
}

// lanesOf sorts the blocks that load by stream and kind.
func (p *Pass) lanesOf() []lane {
	byVia := make([]lane, len(p.pl.cfg.Loads))
	for i := range p.blocks {
		b := &p.blocks[i]
		if !b.Load {
			continue
		}
		ln := &byVia[b.Via]
		k := p.kind(b)
		ln.blocks[k] = append(ln.blocks[k], i)
		if b.Verify {
			ln.verify[k] = append(ln.verify[k], i)
		}
	}
	var out []lane
	for via := range byVia {
		ln := &byVia[via]
		if len(ln.blocks[streamed])+len(ln.blocks[promoted]) == 0 {
			continue
		}
		ln.via, ln.stream = via, p.pl.cfg.Loads[via]
		for k := range kinds {
			if len(ln.blocks[k]) > 0 {
				ln.loads[k] = make([]*load, 0, p.pl.cfg.Layers)
			}
		}
		out = append(out, *ln)
	}
	return out
}

func (p *Pass) kind(b *Block) kindOf {
	if len(b.Slots) == p.pl.cfg.Layers {
		return promoted
	}
	return streamed
}

// left reports whether loads of kind k remain to be submitted.
func (p *Pass) left(ln *lane, k kindOf) bool {
	return len(ln.blocks[k]) > 0 && len(ln.loads[k]) < p.pl.cfg.Layers
}

// start submits, under mu, what may be loaded at once. On a lane with both kinds
// what goes next is chosen when the last batch is over; so it is where stores
// share the stream, since a guard lets a store wait for one batch of loads only.
func (p *Pass) start(ln *lane) {
	chosen := len(ln.blocks[streamed]) > 0 || ln.stream == p.pl.cfg.Store
	if len(ln.blocks[promoted]) > 0 && chosen {
		ln.pumped = true
		ln.submitted = make([]chan struct{}, p.pl.cfg.Layers)
		for l := range ln.submitted {
			ln.submitted[l] = make(chan struct{})
		}
		p.next(ln)
		return
	}
	for p.left(ln, promoted) && p.submitLoad(ln, promoted) != nil {
	}
	p.stream(ln)
}

// stream submits, under mu, the streamed loads whose slots the attention has
// left. What is still stored from there the stream waits for.
func (p *Pass) stream(ln *lane) {
	for p.left(ln, streamed) && p.free(len(ln.loads[streamed])) && p.submitLoad(ln, streamed) != nil {
	}
}

// free reports whether attention has left the slots of layer l.
func (p *Pass) free(l int) bool { return l-p.pl.cfg.Buffers < p.layer }

// next submits, under mu, what goes next on a pumped lane, and has the stream
// itself call again when a batch is over: the link is busy until promoted loads
// are through. After that every streamed load is submitted when attention is
// done with its slots.
func (p *Pass) next(ln *lane) {
	for {
		if p.ended || p.err != nil {
			break
		}
		k, certain := p.choose(ln)
		if ln.flying > 0 && (!certain || ln.flying >= p.ahead(ln)) {
			return // the end of a batch calls again
		}
		if p.submitLoad(ln, k) == nil {
			break
		}
		if !p.left(ln, promoted) {
			p.stream(ln)
			break
		}
		p.announce(ln)
		if err := p.again(ln); err != nil {
			p.err = cmp.Or(p.err, fmt.Errorf("lsc: loads of a pass: %w", err))
			break
		}
		ln.flying++
	}
	p.endPump(ln)
}

// choose says, under mu, which kind goes next on a pumped lane, and whether that
// is certain: a streamed load that may not start yet goes first once it may.
func (p *Pass) choose(ln *lane) (k kindOf, certain bool) {
	s, w := len(ln.loads[streamed]), len(ln.loads[promoted])
	switch {
	case s > w || !p.left(ln, streamed):
		return promoted, true
	case p.free(s) && p.stored(s):
		return streamed, true
	}
	return promoted, false
}

// ahead is how many batches a pumped lane may have: one waits in the stream, so
// that the link need not, unless stores would wait behind it.
func (p *Pass) ahead(ln *lane) int {
	if ln.stream == p.pl.cfg.Store {
		return 1
	}
	return 2
}

// again has next called when the batch that was submitted last is over. The call gets an event
// of its own, so that it counts for no batch's time.
func (p *Pass) again(ln *lane) error {
	err := ln.stream.Call(func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		ln.flying--
		if ln.pumped {
			p.next(ln)
		}
		return nil
	})
	if err == nil {
		_, err = ln.stream.Record()
	}
	return err
}

// announce closes submitted of the layers that have all their loads.
func (p *Pass) announce(ln *lane) {
	n := len(ln.loads[promoted])
	if len(ln.blocks[streamed]) > 0 {
		n = min(n, len(ln.loads[streamed]))
	}
	for ; ln.announced < n; ln.announced++ {
		close(ln.submitted[ln.announced])
	}
}

// endPump hands the lane over to Done: from here on a streamed load is
// submitted before the Layer that waits for it is called, or never.
func (p *Pass) endPump(ln *lane) {
	ln.pumped = false
	for ; ln.announced < len(ln.submitted); ln.announced++ {
		close(ln.submitted[ln.announced])
	}
}

// stored reports whether the store that uses the slots of layer l has completed.
func (p *Pass) stored(l int) bool {
	ev := p.storeBefore(l)
	return ev == nil || over(ev)
}

// storeBefore is the event of the store from the slots that layer l uses
// again; nil: there is none.
func (p *Pass) storeBefore(l int) nvlink.Event {
	if before := l - p.pl.cfg.Buffers; before >= 0 && p.reuse {
		return p.storeEv[before]
	}
	return nil
}

func over(ev nvlink.Event) bool {
	select {
	case <-ev.Done():
		return true
	default:
		return false
	}
}

// submitLoad enqueues the next layer of the blocks of kind k under mu. It
// returns nil when the pass cannot go on.
func (p *Pass) submitLoad(ln *lane, k kindOf) *load {
	if p.err != nil || p.refused != nil {
		return nil
	}
	if p.refused = p.refusedLoads(); p.refused != nil {
		return nil
	}
	l := len(ln.loads[k])
	p.pieces = p.pieces[:0]
	for _, i := range ln.blocks[k] {
		b := &p.blocks[i]
		p.pieces = append(p.pieces, nvlink.Copy{Dst: p.slot(b, l), Src: b.Remote(l)})
	}
	var after nvlink.Event
	if k == streamed {
		after = p.storeBefore(l)
	}
	ld := &load{}
	var err error
	ld.ev, ld.bytes, err = p.submit(ln.stream, after, func() error { return p.verifyLoad(ln, k, l, ld) })
	if err != nil {
		p.err = fmt.Errorf("lsc: load of layer %d: %w", l, err)
		return nil
	}
	ln.loads[k] = append(ln.loads[k], ld)
	p.stats.LoadedBlocks += len(p.pieces)
	p.stats.LoadedBytes += ld.bytes
	if k == promoted {
		p.stats.PromotedBlocks += len(p.pieces)
		p.stats.PromotedBytes += ld.bytes
	}
	return ld
}

// loadsOf lists, under mu, the batches that layer l waits for.
func (p *Pass) loadsOf(l int) []*load {
	out := p.waits[:0]
	for i := range p.lanes {
		for _, loads := range p.lanes[i].loads {
			if l < len(loads) {
				out = append(out, loads[l])
			}
		}
	}
	p.waits = out
	return out
}

// land notes, under mu, how far promoted loads have come. It reports whether
// all have completed: their blocks no longer need the borrowed memory.
func (p *Pass) land() bool {
	for i := range p.lanes {
		ln := &p.lanes[i]
		for ln.landed < len(ln.loads[promoted]) && over(ln.loads[promoted][ln.landed].ev) {
			ln.landed++
		}
		if len(ln.blocks[promoted]) > 0 && ln.landed < p.pl.cfg.Layers {
			return false
		}
	}
	return true
}

// refusedLoads lists the keys of blocks whose loads still need borrowed memory
// and whose guard says no.
func (p *Pass) refusedLoads() []int64 {
	var keys []int64
	for i := range p.blocks {
		b := &p.blocks[i]
		if !b.Load || b.Guard == nil || p.landed && p.kind(b) == promoted {
			continue
		}
		if !b.Guard.MayLoad() {
			keys = append(keys, b.Key)
		}
	}
	return keys
}

// Load is what one batch of loads took.
type Load struct {
	Via   int // the stream, an index into Config.Loads
	Bytes int64
	// Busy is the time on the stream from the batch's start to its end,
	// queueing behind others on the link included, checksums too, waiting for
	// attention and stores not.
	Busy time.Duration
}

// Loads calls f for each batch of loads that has completed, where the fabric
// tells the time (nvlink.Timed). After Finish and Abort those are all.
func (p *Pass) Loads(f func(Load)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eachLoad(func(ln *lane, _ kindOf, _ int, ld *load) {
		if began, ended, ok := ran(ld.ev); ok {
			f(Load{Via: ln.via, Bytes: ld.bytes, Busy: ended.Sub(began)})
		}
	})
}

func (p *Pass) eachLoad(f func(ln *lane, k kindOf, l int, ld *load)) {
	for i := range p.lanes {
		for k, loads := range p.lanes[i].loads {
			for l, ld := range loads {
				f(&p.lanes[i], kindOf(k), l, ld)
			}
		}
	}
}

// ran tells when the batch before ev ran, if it has completed and is known.
func ran(ev nvlink.Event) (began, ended time.Time, ok bool) {
	if t, timed := ev.(nvlink.Timed); timed {
		began, ended = t.Ran()
	}
	return began, ended, !began.IsZero()
}

// record tells the recorder, under mu, what the pass moved.
func (p *Pass) record() {
	rec := p.pl.cfg.Recorder
	if rec == nil || !rec.On() {
		return
	}
	p.eachLoad(func(ln *lane, k kindOf, l int, ld *load) {
		if began, ended, ok := ran(ld.ev); ok {
			rec.Transfer([kinds]string{"load", "promote"}[k], ln.via, l, began, ended, ld.bytes)
		}
	})
	for l, ev := range p.storeEv {
		if ev == nil {
			continue
		}
		if began, ended, ok := ran(ev); ok {
			rec.Transfer("store", 0, l, began, ended, p.storeBytes[l])
		}
	}
}
