package disk

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
)

// load is what a device is made to do.
type load struct {
	span, block int64 // I/Os of block bytes in the first span bytes
	depth       int   // I/Os in flight
	write       bool
	sequential  bool // one after the other, from the beginning again at the end
	// syncEvery is after how many writes all are waited for and made durable; 0:
	// never.
	syncEvery int
}

// pump keeps a load's I/Os in flight on a device: each completion starts the
// next. All but the counters belong to the goroutine that calls Done while I/Os
// are in flight, and to run while none are.
type pump struct {
	load
	dev    device.Device
	blocks int64
	next   int64 // block, of a sequential load
	rng    *rand.PCG
	ios    []*device.IO

	stop  atomic.Bool
	count atomic.Int64
	lat   []time.Duration // of the last len(lat) I/Os
	left  int             // in flight
	more  int             // to start before the next sync; negative: there is none
	err   error
	ended chan struct{}
}

// latencies is how many of the last latencies a pump keeps.
const latencies = 1 << 16

// newPump makes a pump for I/O in mem, which has room for all that is in flight.
func newPump(dev device.Device, mem []byte, l load, seed uint64) *pump {
	p := &pump{load: l, dev: dev, blocks: l.span / l.block, rng: rand.NewPCG(seed, 1), lat: make([]time.Duration, latencies)}
	for i := range l.depth {
		buf := mem[int64(i)*l.block:][:l.block:l.block]
		p.ios = append(p.ios, &device.IO{Write: l.write, Buf: buf, Done: p.done, Owner: i})
	}
	return p
}

// run starts I/Os for d and returns how many there were and how long it took
// until the last had ended, as fio counts.
func (p *pump) run(ctx context.Context, d time.Duration) (ios int64, took time.Duration, err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	began := time.Now()
	for !p.stop.Load() && p.err == nil {
		if err := p.leg(ctx, timer.C); err != nil {
			return 0, 0, err
		}
		if p.syncEvery > 0 && p.err == nil {
			p.err = p.dev.Sync(ctx)
		}
	}
	ios, took = p.count.Load(), time.Since(began)
	if p.err == nil {
		p.err = ctx.Err()
	}
	return ios, took, p.err
}

// leg is the I/O between two syncs, or all of it.
func (p *pump) leg(ctx context.Context, over <-chan time.Time) error {
	p.left, p.more = p.depth, -1
	if p.syncEvery > 0 {
		p.left = min(p.depth, p.syncEvery)
		p.more = p.syncEvery - p.left
	}
	p.ended = make(chan struct{})
	ended := p.ended
	for _, io := range p.ios[:p.left] {
		io.Off = p.offset()
	}
	if err := p.dev.Submit(p.ios[:p.left]); err != nil {
		return err
	}
	select {
	case <-over:
	case <-ctx.Done():
	case <-ended: // or failed
		return nil
	}
	p.stop.Store(true)
	<-ended
	return nil
}

func (p *pump) offset() int64 {
	if p.sequential {
		at := p.next
		p.next = (p.next + 1) % p.blocks
		return at * p.block
	}
	// The bias of the remainder is below 2^-40.
	return int64(p.rng.Uint64()%uint64(p.blocks)) * p.block
}

func (p *pump) done(io *device.IO) {
	if io.Err != nil && p.err == nil {
		p.err = io.Err
	}
	n := p.count.Load()
	p.lat[n%latencies] = io.Ended.Sub(io.Began)
	p.count.Store(n + 1)
	if p.err == nil && !p.stop.Load() && p.more != 0 {
		p.more--
		io.Off = p.offset()
		// The engine joins what several Dones submit; one I/O is a list of one.
		if p.err = p.dev.Submit(p.one(io)); p.err == nil {
			return
		}
	}
	if p.left--; p.left == 0 {
		close(p.ended)
	}
}

// one is the list of io alone, without an allocation.
func (p *pump) one(io *device.IO) []*device.IO {
	i := io.Owner.(int)
	return p.ios[i : i+1]
}

// quantiles of the latencies, after run.
func (p *pump) quantiles() (median, p99 float64) {
	n := min(p.count.Load(), latencies)
	if n == 0 {
		return 0, 0
	}
	l := slices.Clone(p.lat[:n])
	slices.Sort(l)
	return l[n/2].Seconds(), l[n*99/100].Seconds()
}
