// Package faultdevice wraps a device so that its I/O fails as real disks do: by
// script or at random from a seed.
package faultdevice

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
)

// Kind of a fault.
type Kind string

// The kinds of faults. What is said of I/Os holds for Syncs as far as it applies.
const (
	IOError Kind = "error" // ErrIO; a write may or may not have had its effect
	Short   Kind = "short" // half is transferred: ErrShort
	Wrong   Kind = "wrong" // reads: one bit is flipped, without an error
	Lost    Kind = "lost"  // writes: without effect and without an error
	Torn    Kind = "torn"  // writes: only the first part has effect, without an error
	Delay   Kind = "delay" // Fault.Delay later, the I/O takes its course
	Stuck   Kind = "stuck" // until Release or Cancel
	Gone    Kind = "gone"  // ErrGone, from now on for everything
	Full    Kind = "full"  // writes: ErrFull
)

// Ops are operations that a fault can hit.
type Ops uint8

// Operations; they can be combined.
const (
	Reads Ops = 1 << iota
	Writes
	Syncs
)

// Fault is one entry of a script.
type Fault struct {
	Kind  Kind
	Ops   Ops   // 0: Reads|Writes
	Off   int64 // with Len, the range that an I/O must touch; Len 0: any
	Len   int64
	After int           // so many matching operations pass first
	Times int           // so many are hit (0: one), negative: all
	Delay time.Duration // of kind Delay
}

// Faulty is a Device with faults. It is safe for concurrent use.
type Faulty struct {
	inner device.Device
	meter *device.Meter

	mu       sync.Mutex
	idle     sync.Cond
	rnd      *rand.Rand           // guarded by mu, as all that follows
	script   []*Fault             //
	rates    []rate               //
	flight   map[*device.IO]*trip //
	injected map[Kind]int         //
	stuck    []func()             // what Release sets free
	busy     int                  // what Close waits for besides flight
	gone     bool                 //
	closed   bool                 //
}

type rate struct {
	fault Fault
	p     float64
}

// trip is an I/O on its way through the inner device.
type trip struct {
	f     *Faulty
	outer *device.IO
	inner device.IO
	kind  Kind // of its fault; empty: none
	err   error
	sent  bool // the inner device has it
	bit   int  // that is flipped
	at    time.Time
}

// NewFaulty wraps a device, which closes with the wrapper. Without a script or
// rates it has no faults of its own.
func NewFaulty(d device.Device, seed uint64) *Faulty {
	f := &Faulty{
		inner: d, meter: device.NewMeter(),
		rnd:    rand.New(rand.NewPCG(seed, 1)),
		flight: map[*device.IO]*trip{}, injected: map[Kind]int{},
	}
	f.idle.L = &f.mu
	return f
}

// Script adds faults; the first that matches an operation hits it.
func (f *Faulty) Script(faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range faults {
		if x.Ops == 0 {
			x.Ops = Reads | Writes
		}
		if x.Times == 0 {
			x.Times = 1
		}
		f.script = append(f.script, &x)
	}
}

// Random has the fault hit each operation that it matches with probability p,
// from now on; After and Times count for nothing.
func (f *Faulty) Random(p float64, x Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if x.Ops == 0 {
		x.Ops = Reads | Writes
	}
	f.rates = append(f.rates, rate{x, p})
}

// Clear forgets script and rates. A device that is gone comes back.
func (f *Faulty) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script, f.rates, f.gone = nil, nil, false
}

// Release sets free everything that is stuck, and says how much.
func (f *Faulty) Release() int {
	f.mu.Lock()
	free := f.stuck
	f.stuck = nil
	f.mu.Unlock()
	for _, send := range free {
		send()
	}
	return len(free)
}

// Stuck is how many operations wait for Release.
func (f *Faulty) Stuck() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.stuck)
}

// Injected counts the faults so far.
func (f *Faulty) Injected() map[Kind]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[Kind]int, len(f.injected))
	for k, n := range f.injected {
		out[k] = n
	}
	return out
}

// Info implements device.Device.
func (f *Faulty) Info() device.Info { return f.inner.Info() }

// Meter is what the wrapped device achieves, faults included.
func (f *Faulty) Meter() *device.Meter { return f.meter }

// draw is the fault that hits an operation. Called under mu.
func (f *Faulty) draw(op Ops, off, n int64) (Fault, bool) {
	hit := func(x *Fault) bool {
		fits := x.Kind != Wrong && x.Kind != Lost && x.Kind != Torn && x.Kind != Full ||
			x.Kind == Wrong && op == Reads || x.Kind != Wrong && op == Writes
		return fits && x.Ops&op != 0 && (x.Len == 0 || off < x.Off+x.Len && x.Off < off+n)
	}
	if f.gone {
		return Fault{Kind: Gone}, true
	}
	for _, x := range f.script {
		if x.Times == 0 || !hit(x) {
			continue
		}
		if x.After > 0 {
			x.After--
			continue
		}
		x.Times--
		return f.count(*x), true
	}
	for i := range f.rates {
		if r := &f.rates[i]; hit(&r.fault) && f.rnd.Float64() < r.p {
			return f.count(r.fault), true
		}
	}
	return Fault{}, false
}

func (f *Faulty) count(x Fault) Fault {
	f.injected[x.Kind]++
	f.gone = f.gone || x.Kind == Gone
	return x
}

// Submit implements device.Device.
func (f *Faulty) Submit(ios []*device.IO) error {
	i := f.inner.Info()
	if err := device.Check(i, ios); err != nil {
		return err
	}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return &device.Error{Device: i.Name, Op: "submit", Err: device.ErrClosed}
	}
	now := time.Now()
	trips := make([]*trip, len(ios))
	for n, io := range ios {
		if f.flight[io] != nil {
			for _, added := range ios[:n] {
				delete(f.flight, added)
			}
			f.mu.Unlock()
			return device.Fault(i.Name, io, fmt.Errorf("%w: I/O %d of the batch is in flight already", device.ErrUnaligned, n))
		}
		t := &trip{f: f, outer: io, at: now}
		t.inner = device.IO{Write: io.Write, Off: io.Off, Buf: io.Buf, Done: t.done, Owner: t}
		trips[n], f.flight[io] = t, t
	}
	for _, t := range trips {
		t.outer.Began = now
		f.meter.Began(t.outer)
	}
	var batch []*device.IO
	for _, t := range trips {
		if f.route(t) {
			t.sent = true
			batch = append(batch, &t.inner)
		}
	}
	f.mu.Unlock()
	f.send(batch)
	return nil
}

// route applies a fault, if one hits, and says whether the I/O is to be sent
// right away. Called under mu.
func (f *Faulty) route(t *trip) bool {
	op := Reads
	if t.outer.Write {
		op = Writes
	}
	x, hit := f.draw(op, t.outer.Off, int64(len(t.outer.Buf)))
	if !hit {
		return true
	}
	t.kind = x.Kind
	pages := len(t.inner.Buf) / device.Align
	switch x.Kind {
	case Delay:
		time.AfterFunc(x.Delay, func() { f.late(t) })
		return false
	case Stuck:
		f.stuck = append(f.stuck, func() { f.late(t) })
		return false
	case IOError:
		t.err = device.ErrIO
		if f.rnd.IntN(2) == 0 {
			t.carry()
		}
	case Gone:
		t.err = device.ErrGone
		t.carry()
	case Full:
		t.err = device.ErrFull
		t.carry()
	case Lost:
		t.carry()
	case Short, Torn:
		if x.Kind == Short {
			t.err = device.ErrShort
		}
		if pages == 1 {
			t.carry()
			break
		}
		t.inner.Buf = t.inner.Buf[:pages/2*device.Align]
	case Wrong:
		t.bit = f.rnd.IntN(8 * len(t.inner.Buf))
	}
	return true
}

// carry makes the inner I/O one without effect, which only brings the end.
func (t *trip) carry() {
	t.inner.Write, t.inner.Buf = false, page()
}

// send hands I/Os to the inner device. What it refuses ends with its error.
func (f *Faulty) send(batch []*device.IO) {
	if len(batch) == 0 {
		return
	}
	if err := f.inner.Submit(batch); err != nil {
		for _, io := range batch {
			io.Err, io.Ended = err, time.Now()
			io.Done(io)
		}
	}
}

// late sends what was delayed or stuck.
func (f *Faulty) late(t *trip) {
	f.mu.Lock()
	send := !t.sent
	t.sent = true
	f.mu.Unlock()
	if send {
		f.send([]*device.IO{&t.inner})
	}
}

// done is the Done of the inner I/O.
func (t *trip) done(in *device.IO) {
	f, out := t.f, t.outer
	out.Began, out.Ended, out.Err = t.at, in.Ended, nil
	if t.kind == "" {
		out.Began = in.Began
	}
	err := t.err
	if err == nil && in.Err != nil {
		out.Err = in.Err
	} else if err != nil {
		out.Err = device.Fault(f.inner.Info().Name, out, err)
	}
	if t.kind == Wrong && in.Err == nil {
		out.Buf[t.bit/8] ^= 1 << (t.bit % 8)
	}
	f.meter.Ended(&device.IO{Write: out.Write, Buf: out.Buf, Began: t.at, Ended: out.Ended, Err: out.Err})
	f.mu.Lock()
	delete(f.flight, out)
	f.busy++ // Close waits for Done, too
	f.mu.Unlock()
	out.Done(out)
	f.rest()
}

// rest ends one of what busy counts.
func (f *Faulty) rest() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy--
	f.idle.Broadcast()
}

// Cancel implements device.Device.
func (f *Faulty) Cancel(io *device.IO) {
	f.mu.Lock()
	t := f.flight[io]
	if t == nil {
		f.mu.Unlock()
		return
	}
	early := !t.sent
	if early {
		t.sent = true
		t.err = device.ErrCancelled
		t.carry()
	}
	f.mu.Unlock()
	if early {
		f.send([]*device.IO{&t.inner})
		return
	}
	f.inner.Cancel(&t.inner)
}

// Sync implements device.Device.
func (f *Faulty) Sync(ctx context.Context) error {
	i := f.inner.Info()
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return &device.Error{Device: i.Name, Op: "sync", Err: device.ErrClosed}
	}
	x, hit := f.draw(Syncs, 0, i.Size)
	free := make(chan struct{})
	if hit && x.Kind == Stuck {
		f.stuck = append(f.stuck, func() { close(free) })
	}
	f.busy++
	f.mu.Unlock()
	defer f.rest()
	if !hit {
		return f.inner.Sync(ctx)
	}
	fail := func(err error) error { return &device.Error{Device: i.Name, Op: "sync", Err: err} }
	switch x.Kind {
	case IOError:
		return fail(device.ErrIO)
	case Gone:
		return fail(device.ErrGone)
	case Delay:
		time.AfterFunc(x.Delay, func() { close(free) })
	}
	if x.Kind == Delay || x.Kind == Stuck {
		select {
		case <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return f.inner.Sync(ctx)
}

// Close implements device.Device. It waits for Release where something is stuck.
func (f *Faulty) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	for len(f.flight) > 0 || f.busy > 0 {
		f.idle.Wait()
	}
	f.mu.Unlock()
	return f.inner.Close()
}
