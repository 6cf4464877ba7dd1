package disk

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
)

// pump keeps a number of random reads of one size in flight on a device: each
// completion starts the next. All but the counters belong to the goroutine that
// calls Done once the pump runs.
type pump struct {
	dev    device.Device
	block  int64
	blocks int64
	rng    *rand.PCG
	ios    []*device.IO

	stop  atomic.Bool
	reads atomic.Int64
	lat   []time.Duration // of the last len(lat) reads
	left  int
	err   error
	ended chan struct{}
}

// latencies is how many of the last latencies a pump keeps.
const latencies = 1 << 16

// newPump reads blocks of block bytes in the first span bytes of dev, depth at
// once, into mem, which has room for all of them.
func newPump(dev device.Device, mem []byte, span, block int64, depth int, seed uint64) *pump {
	p := &pump{dev: dev, block: block, blocks: span / block, rng: rand.NewPCG(seed, 1), left: depth,
		lat: make([]time.Duration, latencies), ended: make(chan struct{})}
	for i := range depth {
		p.ios = append(p.ios, &device.IO{Buf: mem[int64(i)*block:][:block:block], Done: p.done, Owner: i})
	}
	return p
}

// run starts reads for d and returns how many there were and how long it took
// until the last had ended, as fio counts.
func (p *pump) run(ctx context.Context, d time.Duration) (reads int64, took time.Duration, err error) {
	for _, io := range p.ios {
		io.Off = p.offset()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	began := time.Now()
	if err := p.dev.Submit(p.ios); err != nil {
		return 0, 0, err
	}
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-p.ended: // failed
	}
	p.stop.Store(true)
	<-p.ended
	reads, took = p.reads.Load(), time.Since(began)
	if p.err == nil {
		p.err = ctx.Err()
	}
	return reads, took, p.err
}

func (p *pump) offset() int64 {
	// The bias of the remainder is below 2^-40.
	return int64(p.rng.Uint64()%uint64(p.blocks)) * p.block
}

func (p *pump) done(io *device.IO) {
	if io.Err != nil && p.err == nil {
		p.err = io.Err
	}
	n := p.reads.Load()
	p.lat[n%latencies] = io.Ended.Sub(io.Began)
	p.reads.Store(n + 1)
	if p.err == nil && !p.stop.Load() {
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
	n := min(p.reads.Load(), latencies)
	if n == 0 {
		return 0, 0
	}
	l := slices.Clone(p.lat[:n])
	slices.Sort(l)
	return l[n/2].Seconds(), l[n*99/100].Seconds()
}
