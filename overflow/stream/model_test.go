package stream_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/stream"
)

// TestAgainstModel: two streams of random batches, calls and events, on devices
// that end I/Os in any order and fail some, do what one after another would.
// Stream i has half of the devices and of the host for itself; what it waits for
// is the other one's events.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, rt)
		defer w.close()
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			w.step(rapid.IntRange(0, 1).Draw(rt, "stream"))
		}
	})
}

const (
	worldDev  = 64 * page // of each stream, on each device
	worldHost = 40 * page // of each stream
)

type world struct {
	*rig
	rt      *rapid.T
	streams [2]*stream.Stream
	// The model: what a stream's part of the host and of the devices holds
	// after what was enqueued. Where bad is set, nothing is known.
	host    [2][]byte
	dev     [2][2][]byte
	events  []nvlink.Event
	errs    [2]bool // an error is due at the next event
	order   [2]atomic.Int64
	nth     [2]int64
	faults  map[[2]int64]bool // device, block: reads of it fail
	stop    chan struct{}
	stopped sync.WaitGroup
}

func newWorld(t *testing.T, rt *rapid.T) *world {
	o := stream.Options{
		MaxRead: rapid.SampledFrom([]int{1, 2, 5}).Draw(rt, "max") * page,
		Gap:     rapid.SampledFrom([]int{0, 1, 3}).Draw(rt, "gap") * page,
	}
	o.Gap = min(o.Gap, o.MaxRead)
	o.Staging = int64(o.MaxRead) * rapid.SampledFrom([]int64{1, 3, 100}).Draw(rt, "staging")
	w := &world{rig: newRig(t, 2, 2*worldDev, 2*worldHost, o), rt: rt, faults: map[[2]int64]bool{}, stop: make(chan struct{})}
	if rapid.Bool().Draw(rt, "poor") {
		w.mem.left = rapid.IntRange(0, 4).Draw(rt, "pages") * page
	}
	o.Memory = w.mem
	second, err := stream.New(o)
	w.must(err)
	w.streams = [2]*stream.Stream{w.s, second}
	all := w.fill(1)
	for i := range 2 {
		w.host[i] = bytes.Clone(all[i*worldHost:][:worldHost])
		for d := range 2 {
			w.dev[i][d] = w.devs[d].bytes(int64(i)*worldDev, worldDev)
		}
	}
	for n := rapid.IntRange(0, 3).Draw(rt, "faults"); n > 0; n-- {
		w.faults[[2]int64{rapid.Int64Range(0, 1).Draw(rt, "dev"), rapid.Int64Range(0, 2*worldDev/page-1).Draw(rt, "block")}] = true
	}
	for i, d := range w.devs {
		d.hold = true
		d.fault = func(io *device.IO) error {
			if w.faulty(i, io.Off, int64(len(io.Buf))) && !io.Write {
				return errTest
			}
			return nil
		}
		w.stopped.Go(func() { w.land(d, uint64(i)) })
	}
	return w
}

// faulty reports whether reads of a range of device d fail.
func (w *world) faulty(d int, off, n int64) bool {
	for at := off / page; at < (off+n+page-1)/page; at++ {
		if w.faults[[2]int64{int64(d), at}] {
			return true
		}
	}
	return false
}

// land ends I/Os of d in any order until the world stops.
func (w *world) land(d *fake, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for {
		select {
		case <-w.stop:
			return
		case <-d.news:
		}
		for ios := d.inFlight(); len(ios) > 0; ios = d.inFlight() {
			d.land(ios[rng.IntN(len(ios))], nil)
			runtime.Gosched()
		}
	}
}

func (w *world) close() {
	for i := range 2 {
		w.check(i)
	}
	w.must(w.streams[1].Close())
	w.must(w.streams[0].Close())
	close(w.stop)
	w.stopped.Wait()
	for i := range 2 {
		w.equal("host", w.rig.host.Bytes()[i*worldHost:][:worldHost], w.host[i])
		for d := range 2 {
			w.equal("device", w.devs[d].bytes(int64(i)*worldDev, worldDev), w.dev[i][d])
		}
	}
	for _, a := range w.ar {
		w.must(a.Close())
	}
	w.mem.empty()
}

func (w *world) step(i int) {
	switch rapid.IntRange(0, 5).Draw(w.rt, "op") {
	case 0, 1, 2:
		w.batch(i)
	case 3:
		w.call(i)
	case 4:
		e, err := w.streams[i].Record()
		w.must(err)
		w.events = append(w.events, e)
		want := w.errs[i]
		w.errs[i] = false
		w.must(w.streams[i].Call(func() error {
			if !isDone(e) || errors.Is(e.Err(), errTest) != want {
				w.Errorf("stream %d: event %v, want an error: %v", i, e.Err(), want)
			}
			return nil
		}))
	case 5:
		if n := len(w.events); n > 0 {
			w.must(w.streams[i].WaitEvent(w.events[rapid.IntRange(0, n-1).Draw(w.rt, "event")]))
		}
	}
}

// call has the stream compare a part of the host with the model, in its turn.
func (w *world) call(i int) {
	off := rapid.IntRange(0, worldHost-1).Draw(w.rt, "off")
	n := rapid.IntRange(1, worldHost-off).Draw(w.rt, "len")
	want := bytes.Clone(w.host[i][off:][:n])
	turn := w.nth[i]
	w.nth[i]++
	w.must(w.streams[i].Call(func() error {
		if !w.order[i].CompareAndSwap(turn, turn+1) {
			w.Errorf("stream %d: call %d is not in order", i, turn)
		}
		if !bytes.Equal(w.rig.host.Bytes()[i*worldHost+off:][:n], want) {
			w.Errorf("stream %d: call %d does not see what the model has", i, turn)
		}
		return nil
	}))
}

// batch enqueues pieces whose destinations do not meet, and does them in the
// model. Where a read may fail, what it leaves is taken from the real thing.
func (w *world) batch(i int) {
	var pieces []nvlink.Copy
	var hostUsed, devUsed [2]map[int64]bool
	for k := range 2 {
		hostUsed[k], devUsed[k] = map[int64]bool{}, map[int64]bool{}
	}
	failed := false
	host, dev := bytes.Clone(w.host[i]), [2][]byte{bytes.Clone(w.dev[i][0]), bytes.Clone(w.dev[i][1])}
	for range rapid.IntRange(0, 12).Draw(w.rt, "pieces") {
		d := rapid.IntRange(0, 1).Draw(w.rt, "dev")
		n := rapid.Int64Range(1, 4*page).Draw(w.rt, "len")
		off := rapid.Int64Range(0, (worldDev-4*page)/page).Draw(w.rt, "block") * page
		at := rapid.Int64Range(0, worldHost-n).Draw(w.rt, "host")
		far, near := int64(i)*worldDev+off, int64(i)*worldHost+at
		blocks := (n + page - 1) / page
		if rapid.IntRange(0, 2).Draw(w.rt, "kind") == 0 { // a write
			if !claim(devUsed[d], off/page, blocks, true) || !claim(hostUsed[0], at/64, (at+n+63)/64-at/64, false) {
				continue
			}
			clear(dev[d][off:][:blocks*page])
			copy(dev[d][off:], w.host[i][at:][:n])
			pieces = append(pieces, w.store(d, far, near, n))
			continue
		}
		if w.faulty(d, far-4*page, 12*page) {
			if w.faulty(d, far, n) && !failed && len(pieces) == 0 {
				w.broken(i, w.load(d, far, near, n))
			}
			continue
		}
		if !claim(devUsed[d], off/page, blocks, false) || !claim(hostUsed[0], at/64, (at+n+63)/64-at/64, true) {
			continue
		}
		copy(host[at:], w.dev[i][d][off:][:n])
		pieces = append(pieces, w.load(d, far, near, n))
	}
	w.must(w.streams[i].CopyBatch(pieces))
	w.host[i], w.dev[i] = host, dev
}

// claim notes that cells are read or written by a batch; false: it would meet
// another piece.
func claim(used map[int64]bool, from, n int64, write bool) bool {
	for c := from; c < from+n; c++ {
		if wrote, ok := used[c]; ok && (wrote || write) {
			return false
		}
	}
	for c := from; c < from+n; c++ {
		used[c] = used[c] || write
	}
	return true
}

// broken enqueues a read that fails. Its destination is unspecified, so the
// stream itself puts back what was there.
func (w *world) broken(i int, p nvlink.Copy) {
	w.must(w.streams[i].CopyBatch([]nvlink.Copy{p}))
	w.errs[i] = true
	at := p.Dst.Off - int64(i)*worldHost
	old := bytes.Clone(w.host[i][at:][:p.Dst.Len])
	w.must(w.streams[i].Call(func() error { copy(w.rig.host.Bytes()[p.Dst.Off:], old); return nil }))
}

// check waits for a stream and its last error.
func (w *world) check(i int) {
	e, err := w.streams[i].Record()
	w.must(err)
	if err := e.Wait(context.Background()); errors.Is(err, errTest) != w.errs[i] {
		w.Errorf("stream %d: last event %v, want an error: %v", i, err, w.errs[i])
	}
}
