package stream_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/stream"
)

// TestErrorsOfDevices: the first one of a batch reaches its event, everything
// else of the batch and behind it is transferred.
func TestErrorsOfDevices(t *testing.T) {
	for _, cause := range []error{device.ErrIO, device.ErrShort, device.ErrGone, device.ErrFull, device.ErrCancelled} {
		r := newRig(t, 2, 1<<20, 1<<20, stream.Options{MaxRead: page})
		want := r.fill(7)
		r.devs[0].fault = func(io *device.IO) error {
			if io.Off == 2*page || io.Off == 8*page {
				return cause
			}
			return nil
		}
		r.copy(r.load(0, 0, 0, page), r.load(0, 2*page, page, page), r.load(1, 4*page, 2*page, page), r.load(0, 4*page, 3*page, page))
		e1 := r.record()
		r.copy(r.load(0, 6*page, 4*page, page))
		e2 := r.record()
		r.copy(r.store(0, 8*page, 8*page, page), r.store(0, 10*page, 9*page, page))
		e3 := r.record()
		var de *device.Error
		err := e1.Wait(t.Context())
		if !errors.Is(err, cause) || !errors.As(err, &de) || de.Off != 2*page || de.Op != "read" || de.Device != "d0" {
			t.Errorf("%v: the batch's event says %v", cause, err)
		}
		r.must(e2.Wait(t.Context()))
		if err := e3.Wait(t.Context()); !errors.Is(err, cause) || !errors.As(err, &de) || de.Op != "write" {
			t.Errorf("%v: the event of the writes says %v", cause, err)
		}
		for i, from := range []struct{ dev, block int64 }{{0, 0}, {-1, 0}, {1, 4}, {0, 4}, {0, 6}} {
			if from.dev >= 0 {
				copy(want[i*page:], r.devs[from.dev].bytes(from.block*page, page))
			}
		}
		got := r.host.Bytes()
		r.equal("before the failed one", got[:page], want[:page])
		r.equal("behind the failed one", got[2*page:], want[2*page:])
		r.equal("the write behind the failed one", r.devs[0].bytes(10*page, page), want[9*page:][:page])
		if len(r.errs) != 2 || r.s.Stats().Errors != 2 {
			t.Errorf("%v: %d errors were reported, %+v", cause, len(r.errs), r.s.Stats())
		}
	}
}

// TestRefusedSubmit: one report for all, the other device goes on.
func TestRefusedSubmit(t *testing.T) {
	r := newRig(t, 2, 1<<20, 1<<20, stream.Options{MaxRead: page})
	r.devs[0].refuse = device.ErrClosed
	r.copy(r.load(0, 0, 0, 3*page), r.load(1, 0, 3*page, page))
	if err := r.sync(); !errors.Is(err, device.ErrClosed) {
		t.Errorf("event: %v", err)
	}
	r.equal("the other device", r.host.Bytes()[3*page:][:page], r.devs[1].bytes(0, page))
	if st := r.s.Stats(); len(r.errs) != 1 || st.Errors != 3 {
		t.Errorf("%d reports, %+v", len(r.errs), st)
	}
	r.devs[0].refuse = nil
	r.copy(r.load(0, 0, 0, 3*page))
	r.must(r.sync())
}

// TestMemoryThatIsGone: a mapping whose pages cannot be had is an error of its
// pieces.
func TestMemoryThatIsGone(t *testing.T) {
	r := newRig(t, 1, 1<<20, 1<<20, stream.Options{MaxRead: page})
	gone, err := unix.Mmap(-1, 0, 4*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	r.must(err)
	defer func() { r.must(unix.Munmap(gone)) }()
	for _, store := range []bool{false, true} {
		bad, good := r.load(0, 0, 0, 8), r.load(0, 4*page, 0, page)
		bad.Dst = span(arenaOf{r.host, gone}, 0, 8)
		if store {
			bad, good = r.store(0, 0, 0, 8), r.store(0, 4*page, 0, page)
			bad.Src = span(arenaOf{r.host, gone}, 0, 8)
		}
		r.copy(bad, good)
		if err := r.sync(); err == nil || !strings.Contains(err.Error(), "memory fault") {
			t.Errorf("store %v: %v", store, err)
		}
		r.equal("the other piece", r.host.Bytes()[:page], r.devs[0].bytes(4*page, page))
	}
	if len(r.errs) != 0 {
		t.Errorf("the device was blamed: %v", r.errs)
	}
}

// arenaOf is an arena with other memory.
type arenaOf struct {
	nvlink.Arena
	mem []byte
}

func (a arenaOf) Bytes() []byte { return a.mem }
func (a arenaOf) Size() int64   { return int64(len(a.mem)) }

const patience = 100 * time.Millisecond

// TestTimeout: what is late is cancelled and fails alone.
func TestTimeout(t *testing.T) {
	held(t, 2, stream.Options{MaxRead: page, Timeout: patience}, func(t *testing.T, r *rig) {
		t0 := time.Now()
		r.copy(r.load(0, 0, 0, page), r.load(0, 2*page, page, page), r.load(1, 0, 2*page, page))
		e := r.record()
		synctest.Wait()
		time.Sleep(patience / 2)
		r.landAt(0, 2, nil)
		r.landAt(1, 0, nil)
		r.copy(r.load(1, 4*page, 3*page, page)) // younger
		late := r.record()
		err := e.Wait(t.Context())
		if !errors.Is(err, stream.ErrTimeout) || errors.Is(err, stream.ErrAbandoned) || time.Since(t0) != patience {
			t.Errorf("after %v: %v", time.Since(t0), err)
		}
		r.wantFlying(0)
		r.equal("what was in time", r.host.Bytes()[page:][:page], r.devs[0].bytes(2*page, page))
		r.equal("the other device", r.host.Bytes()[2*page:][:page], r.devs[1].bytes(0, page))
		if err := late.Wait(t.Context()); !errors.Is(err, stream.ErrTimeout) || time.Since(t0) != patience*3/2 {
			t.Errorf("after %v: %v", time.Since(t0), err)
		}
		// The device answers again.
		r.copy(r.load(0, 0, 0, page))
		end := r.record()
		r.wantFlying(0, 0)
		r.landAt(0, 0, nil)
		r.must(end.Wait(t.Context()))
		if st := r.s.Stats(); st.Timeouts != 2 || st.Abandoned != 0 || st.Errors != 2 || len(r.errs) != 2 {
			t.Errorf("%+v, %d reports", st, len(r.errs))
		}
	})
}

// TestOneTimeoutForAll: what is enqueued for a device that times out waits one
// Timeout, however many rounds of buffers it needs; what comes later is tried.
func TestOneTimeoutForAll(t *testing.T) {
	held(t, 2, stream.Options{MaxRead: page, Staging: 2 * page, Timeout: patience}, func(t *testing.T, r *rig) {
		r.devs[1].hold = false
		t0 := time.Now()
		var pieces []nvlink.Copy
		for i := range int64(9) {
			pieces = append(pieces, r.load(0, 2*i*page, i*page, page))
		}
		r.copy(pieces...)
		first := r.record()
		r.copy(r.store(0, 40*page, 0, page), r.load(1, 0, 9*page, page))
		second := r.record()
		for i, e := range []nvlink.Event{first, second} {
			if err := e.Wait(t.Context()); !errors.Is(err, stream.ErrTimeout) || time.Since(t0) != patience {
				t.Errorf("batch %d: after %v: %v", i, time.Since(t0), err)
			}
		}
		r.equal("the other device", r.host.Bytes()[9*page:][:page], r.devs[1].bytes(0, page))
		if st := r.s.Stats(); st.Errors != 10 || st.Timeouts != 2 {
			t.Errorf("%+v", st)
		}
		r.copy(r.load(0, 0, 0, page))
		end := r.record()
		r.wantFlying(0, 0)
		r.landAt(0, 0, nil)
		r.must(end.Wait(t.Context()))
	})
}

// TestTimeoutDuringCall: a stream that stands in a Call cancels all the same.
func TestTimeoutDuringCall(t *testing.T) {
	held(t, 1, stream.Options{Timeout: patience}, func(t *testing.T, r *rig) {
		t0 := time.Now()
		gate := make(chan struct{})
		r.must(r.s.Call(func() error { <-gate; return nil }))
		synctest.Wait()
		r.copy(r.load(0, 0, 0, page))
		e := r.record()
		r.wantFlying(0, 0)
		time.Sleep(patience)
		r.wantFlying(0)
		close(gate)
		if err := e.Wait(t.Context()); !errors.Is(err, stream.ErrTimeout) || time.Since(t0) != patience {
			t.Errorf("after %v: %v", time.Since(t0), err)
		}
	})
}

// TestStuckDevice: it is abandoned, whatever is queued for it fails at once, the
// other device goes on, and when it comes to its senses it is used again.
func TestStuckDevice(t *testing.T) {
	o := stream.Options{MaxRead: page, Staging: 4 * page, Timeout: patience}
	held(t, 2, o, func(t *testing.T, r *rig) {
		r.devs[0].deaf, r.devs[1].hold = true, false
		want := r.fill(8)
		t0 := time.Now()
		var pieces []nvlink.Copy
		for i := range int64(20) {
			pieces = append(pieces, r.load(0, 2*i*page, i*page, page))
			pieces = append(pieces, r.load(1, 2*i*page, (20+i)*page, page))
			copy(want[(20+i)*page:], r.devs[1].bytes(2*i*page, page))
		}
		r.copy(pieces...)
		e := r.record()
		r.copy(r.store(0, 100*page, 0, page))
		stuck := r.record()
		r.copy(r.load(1, 0, 50*page, page))
		copy(want[50*page:], r.devs[1].bytes(0, page))
		other := r.record()
		if err := e.Wait(t.Context()); !errors.Is(err, stream.ErrAbandoned) {
			t.Errorf("event: %v", err)
		}
		if err := stuck.Wait(t.Context()); !errors.Is(err, stream.ErrAbandoned) {
			t.Errorf("event of the next batch: %v", err)
		}
		r.must(other.Wait(t.Context()))
		if d := time.Since(t0); d != patience*5/4 {
			t.Errorf("the other device's batch took %v", d)
		}
		// What was abandoned lands now, and must change nothing.
		before := r.host.Bytes()[:20*page]
		r.equal("host", before, want[:20*page])
		if err := r.ar[0].Close(); !errors.Is(err, nvlink.ErrBusy) {
			t.Errorf("closing an arena with abandoned I/O: %v", err)
		}
		n := r.devs[0].landAll()
		synctest.Wait()
		r.equal("host", r.host.Bytes(), want)
		if st := r.s.Stats(); st.Abandoned != int64(n) || st.Errors != 21 || n == 0 || n > 4 {
			t.Errorf("%d I/Os were stuck, %+v", n, st)
		}
		r.copy(r.load(0, 0, 0, page))
		again := r.record()
		r.wantFlying(0, 0)
		r.devs[0].landAll()
		r.must(again.Wait(t.Context()))
		r.equal("host", r.host.Bytes()[:page], r.devs[0].bytes(0, page))
	})
}

// TestCloseLeavesWhatIsStuck: and its buffers come back with it.
func TestCloseLeavesWhatIsStuck(t *testing.T) {
	held(t, 1, stream.Options{Timeout: patience}, func(t *testing.T, r *rig) {
		r.devs[0].deaf = true
		r.copy(r.store(0, 0, 0, page))
		if err := r.s.Close(); !errors.Is(err, stream.ErrAbandoned) {
			t.Errorf("Close: %v", err)
		}
		if r.mem.used() != page {
			t.Errorf("%d bytes of buffers are out, want %d", r.mem.used(), page)
		}
		r.devs[0].landAll()
		r.mem.empty()
	})
}

// TestStuckWithoutStaging: the stream's own buffer is stuck too.
func TestStuckWithoutStaging(t *testing.T) {
	held(t, 2, stream.Options{MaxRead: page, Timeout: patience}, func(t *testing.T, r *rig) {
		r.mem.left = 0
		r.devs[0].deaf, r.devs[1].hold = true, false
		r.copy(r.load(0, 0, 0, page))
		r.copy(r.load(1, 0, page, 3*page))
		if err := r.sync(); !errors.Is(err, stream.ErrAbandoned) {
			t.Errorf("event: %v", err)
		}
		r.equal("the other device", r.host.Bytes()[page:][:3*page], r.devs[1].bytes(0, 3*page))
	})
}

// TestSlow is told once for each I/O, before and without a timeout.
func TestSlow(t *testing.T) {
	for _, timeout := range []time.Duration{0, patience, patience / 8} {
		var told []time.Duration
		o := stream.Options{Timeout: timeout, SlowAfter: patience / 4,
			Slow: func(dev string, waited time.Duration) {
				if dev != "d0" {
					t.Errorf("device %q is slow", dev)
				}
				told = append(told, waited)
			}}
		held(t, 2, o, func(t *testing.T, r *rig) {
			r.copy(r.load(0, 0, 0, page), r.load(1, 0, page, page))
			e := r.record()
			synctest.Wait()
			r.devs[1].landAll()
			time.Sleep(patience / 2)
			r.devs[0].landAll()
			err := e.Wait(t.Context())
			if late := timeout == patience/8; errors.Is(err, stream.ErrTimeout) != late || late != (len(told) == 0) {
				t.Errorf("timeout %v: told %v, event %v", timeout, told, err)
			}
			if len(told) > 0 && (len(told) != 1 || told[0] != patience/4) {
				t.Errorf("told after %v", told)
			}
			time.Sleep(time.Second)
		})
	}
}

// TestGiveUp: reads that are waited for fail soon, those that were not submitted yet
// at once; writes and what comes later go on.
func TestGiveUp(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		o := stream.Options{MaxRead: page, Staging: 4 * page, Timeout: time.Hour}
		held(t, 2, o, func(t *testing.T, r *rig) {
			r.devs[0].deaf, r.devs[1].hold = deaf, false
			want := r.fill(8)
			t0 := time.Now()
			var pieces []nvlink.Copy
			for i := range int64(20) {
				pieces = append(pieces, r.load(0, 2*i*page, i*page, page))
			}
			r.copy(pieces...)
			e := r.record()
			r.copy(r.store(1, 100*page, 50*page, page))
			wrote := r.record()
			synctest.Wait()
			r.s.GiveUp()
			r.copy(r.load(1, 0, 40*page, page))
			copy(want[40*page:], r.devs[1].bytes(0, page))
			later := r.record()
			if err := e.Wait(t.Context()); !errors.Is(err, stream.ErrLate) {
				t.Errorf("event: %v", err)
			}
			r.must(wrote.Wait(t.Context()))
			r.must(later.Wait(t.Context()))
			if d := time.Since(t0); d > patience {
				t.Errorf("it took %v", d)
			}
			r.copy(r.load(0, 0, 0, page))
			again := r.record()
			if deaf {
				if err := again.Wait(t.Context()); !errors.Is(err, stream.ErrLate) {
					t.Errorf("a device that keeps what was given up: %v", err)
				}
			}
			synctest.Wait()
			r.devs[0].landAll()
			synctest.Wait()
			if deaf {
				r.equal("host", r.host.Bytes(), want)
			} else {
				r.must(again.Wait(t.Context()))
			}
			for _, err := range r.errs {
				if !errors.Is(err, stream.ErrLate) {
					t.Errorf("reported: %v", err)
				}
			}
		})
	}
}

// TestPause: I/O of a process that stood still for longer than a device may take is
// abandoned all the same.
func TestPause(t *testing.T) {
	pause := func(string, time.Duration) { time.Sleep(2 * patience) }
	held(t, 1, stream.Options{Timeout: patience, SlowAfter: patience / 2, Slow: pause}, func(t *testing.T, r *rig) {
		r.devs[0].deaf = true
		r.copy(r.load(0, 0, 0, page))
		if err := r.sync(); !errors.Is(err, stream.ErrAbandoned) {
			t.Errorf("event: %v", err)
		}
		r.devs[0].landAll()
	})
}
