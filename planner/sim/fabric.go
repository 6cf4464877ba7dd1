package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

// arena has a size and no bytes.
type arena struct {
	name   string
	device *device
	size   int64
}

func (a *arena) Name() string   { return a.name }
func (a *arena) Device() string { return a.device.name }
func (a *arena) Size() int64    { return a.size }
func (a *arena) Bytes() []byte  { return nil }
func (a *arena) Close() error   { return nil }

// device is a GPU, the host or a disk: what links lead from and to.
type device struct {
	name string
	// slow is how much longer computing takes while a byte stream of the whole
	// memory bandwidth runs beside it, and hbm that bandwidth in bytes per
	// second; 0: not known.
	hbm float64
	// served is what links have read from and written to its memory lately.
	served traffic
}

// link carries batches of one direction one after the other. Processes that use
// it at the same time wait for each other's batches.
type link struct {
	model Mover
	from  *device
	to    *device
	free  time.Duration // when the last batch is through
	bytes int64
	busy  time.Duration
}

// carry books a batch of pieces that is ready at a time, and returns when it
// begins and ends.
func (l *link) carry(ready time.Duration, bytes, piece int64) (began, ended time.Duration) {
	began = max(ready, l.free)
	d := l.model.Time(bytes, piece)
	ended = began + d
	l.free = ended
	l.bytes += bytes
	l.busy += d
	l.from.served.add(began, ended, bytes)
	l.to.served.add(began, ended, bytes)
	return began, ended
}

// wires finds the link between two devices.
type wires map[[2]*device]*link

// stream is an in-order stream of one process.
type stream struct {
	clock *clock
	wires wires
	free  time.Duration
	err   error
}

// event is a point in a stream's order whose time is known.
type done struct {
	clock *clock
	at    time.Duration
	err   error
}

var past = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Done implements nvlink.Event. Whoever asks waits: the clock of the process is
// afterwards.
func (d *done) Done() <-chan struct{} {
	d.clock.advance(d.at)
	return past
}

// Err implements nvlink.Event.
func (d *done) Err() error { return d.err }

// Wait implements nvlink.Event.
func (d *done) Wait(context.Context) error {
	d.clock.advance(d.at)
	return d.err
}

// CopyBatch implements nvlink.Stream.
func (s *stream) CopyBatch(pieces []nvlink.Copy) error {
	ready := max(s.free, s.clock.t)
	end := ready
	for len(pieces) > 0 {
		from, to := pieces[0].Src.Arena.(*arena).device, pieces[0].Dst.Arena.(*arena).device
		n, bytes := 1, pieces[0].Src.Len
		for n < len(pieces) && pieces[n].Src.Arena == pieces[0].Src.Arena && pieces[n].Dst.Arena == pieces[0].Dst.Arena {
			bytes += pieces[n].Src.Len
			n++
		}
		if from != to {
			l := s.wires[[2]*device{from, to}]
			if l == nil {
				return fmt.Errorf("%w: no link leads from %s to %s", nvlink.ErrBadSpan, from.name, to.name)
			}
			_, ended := l.carry(ready, bytes, bytes/int64(n))
			end = max(end, ended)
		}
		pieces = pieces[n:]
	}
	s.free = end
	return nil
}

// Call implements nvlink.Stream.
func (s *stream) Call(f func() error) error {
	if err := f(); err != nil && s.err == nil {
		s.err = err
	}
	return nil
}

// WaitEvent implements nvlink.Stream.
func (s *stream) WaitEvent(e nvlink.Event) error {
	s.free = max(s.free, e.(*done).at)
	return nil
}

// Record implements nvlink.Stream.
func (s *stream) Record() (nvlink.Event, error) {
	d := &done{clock: s.clock, at: max(s.free, s.clock.t), err: s.err}
	s.err = nil
	return d, nil
}

// Close implements nvlink.Stream.
func (s *stream) Close() error { return nil }

// later runs what a cache has to wait for as events of its process.
type later struct {
	clock *clock
	after func() // called after each
}

// When implements master.Later.
func (l later) When(e nvlink.Event, f func()) { l.run(e.(*done).at, f) }

// After implements master.Later.
func (l later) After(d time.Duration, f func()) { l.run(l.clock.t+d, f) }

func (l later) run(at time.Duration, f func()) {
	l.clock.at(at, func() {
		f()
		l.after()
	})
}

// traffic is what has moved through a device's memory, by fine slices of time.
type traffic struct {
	slice [trafficSlices]struct {
		number int64
		bytes  float64
	}
}

const (
	trafficSlices = 64
	trafficSlice  = 10 * time.Millisecond
)

func (t *traffic) add(from, to time.Duration, bytes int64) {
	if to <= from {
		return
	}
	per := float64(bytes) / float64(to-from)
	last := int64((to - 1) / trafficSlice)
	for n := max(int64(from/trafficSlice), last-trafficSlices+1); n <= last; n++ { // what is older is forgotten
		a, b := max(from, time.Duration(n)*trafficSlice), min(to, time.Duration(n+1)*trafficSlice)
		s := &t.slice[n%trafficSlices]
		if s.number != n {
			s.number, s.bytes = n, 0
		}
		s.bytes += per * float64(b-a)
	}
}

// rate is the mean bytes per second in a span of time, as far as it is known.
func (t *traffic) rate(from, to time.Duration) float64 {
	if to <= from {
		return 0
	}
	first := max(int64(from/trafficSlice), int64(to/trafficSlice)-trafficSlices+1)
	sum := 0.0
	for n := first; n <= int64((to-1)/trafficSlice); n++ {
		if s := &t.slice[((n%trafficSlices)+trafficSlices)%trafficSlices]; s.number == n {
			sum += s.bytes
		}
	}
	whole := time.Duration(int64((to-1)/trafficSlice)-first+1) * trafficSlice
	return sum / whole.Seconds()
}
