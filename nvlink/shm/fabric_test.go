package shm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/fabrictest"
	"github.com/kvlend/kvlend/nvlink/topology"
)

func TestMain(m *testing.M) {
	if fabrictest.Main(processes) {
		return
	}
	goleak.VerifyTestMain(m)
}

var processes = fabrictest.Processes{
	Export: func(t testing.TB, a nvlink.Arena) ([]*os.File, string) {
		return []*os.File{a.(*Arena).File()}, "3"
	},
	Open: func(handle string, size int64) (nvlink.Fabric, nvlink.Arena, nvlink.Arena, error) {
		var fd int
		if _, err := fmt.Sscan(handle, &fd); err != nil {
			return nil, nil, nil, err
		}
		f, err := New(Config{})
		if err != nil {
			return nil, nil, nil, err
		}
		shared, err := Open(fd, "shared", "gpu1", size)
		if err != nil {
			return nil, nil, nil, err
		}
		own, err := Create("own", "gpu0", size)
		return f, shared, own, err
	},
}

func harness(cfg func(testing.TB) Config) fabrictest.Harness {
	return fabrictest.Harness{
		Devices: [2]string{"gpu0", "gpu1"},
		New: func(t testing.TB) nvlink.Fabric {
			f, err := New(cfg(t))
			if err != nil {
				t.Fatal(err)
			}
			return f
		},
		NewArena: func(t testing.TB, _ nvlink.Fabric, name, device string, size int64) nvlink.Arena {
			a, err := Create(name, device, size)
			if err != nil {
				t.Fatal(err)
			}
			return a
		},
	}
}

func mesh(t testing.TB, bytesPerSec float64, latency time.Duration) *topology.Topology {
	t.Helper()
	top, err := topology.FullMesh([]string{"gpu0", "gpu1", "gpu2"}, bytesPerSec, latency)
	if err != nil {
		t.Fatal(err)
	}
	return top
}

func TestBehaviour(t *testing.T) {
	plain := harness(func(testing.TB) Config { return Config{} })
	fabrictest.Run(t, plain)
	t.Run("Processes", func(t *testing.T) { fabrictest.RunProcesses(t, plain, processes) })
}

func TestBehaviourWithWorkers(t *testing.T) {
	fabrictest.Run(t, harness(func(testing.TB) Config { return Config{Workers: 4} }))
}

func TestBehaviourPaced(t *testing.T) {
	fabrictest.Run(t, harness(func(t testing.TB) Config {
		return Config{Topology: mesh(t, 20e9, 3*time.Microsecond), Pace: true}
	}))
}

func TestConfigRefusals(t *testing.T) {
	for want, cfg := range map[string]Config{
		"Pace needs a Topology": {Pace: true},
		"Workers is -1":         {Workers: -1},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v): %v, want %q", cfg, err, want)
		}
	}
	f, err := New(Config{Topology: mesh(t, 1e9, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.NewStream("gpu9", "s"); err == nil || !strings.Contains(err.Error(), `"gpu9"`) {
		t.Errorf("stream of an unknown device: %v", err)
	}
	if f.Emulated() || f.Kind() != "shm" {
		t.Error("an unpaced fabric says that it is emulated")
	}
}

func TestNoLinkNoCopy(t *testing.T) {
	top, err := topology.New([]string{"gpu0", "gpu1"}, []topology.Link{{From: "gpu1", To: "gpu0", BytesPerSec: 1e9}})
	if err != nil {
		t.Fatal(err)
	}
	s := newTestStream(t, Config{Topology: top})
	a, b := newTestArena(t, "a", "gpu0", 64), newTestArena(t, "b", "gpu1", 64)
	list := func(dst, src *Arena) []nvlink.Copy {
		return []nvlink.Copy{{Dst: nvlink.Span{Arena: dst, Len: 8}, Src: nvlink.Span{Arena: src, Off: 16, Len: 8}}}
	}
	for _, ok := range [][]nvlink.Copy{list(a, b), list(a, a), list(b, b)} {
		if err := s.CopyBatch(ok); err != nil {
			t.Error(err)
		}
	}
	err = s.CopyBatch(list(b, a))
	if !errors.Is(err, nvlink.ErrBadSpan) || !strings.Contains(err.Error(), `no link from device "gpu0" to "gpu1"`) {
		t.Errorf("copy against the link: %v", err)
	}
	if err := wait(t, s); err != nil {
		t.Fatal(err)
	}
}

// paced runs f in fake time on a fabric of 1 MB/s links (1 us a byte) with 5 ms latency.
func paced(t *testing.T, f func(t *testing.T, fab *Fabric, arenas [3]*Arena)) {
	synctest.Test(t, func(t *testing.T) {
		fab, err := New(Config{Topology: mesh(t, 1e6, 5*time.Millisecond), Pace: true, Clock: TimerClock{}})
		if err != nil {
			t.Fatal(err)
		}
		if !fab.Emulated() {
			t.Error("a paced fabric says that it is real")
		}
		var arenas [3]*Arena
		for i := range arenas {
			arenas[i] = newTestArena(t, fmt.Sprint("a", i), fmt.Sprint("gpu", i), 1<<20)
		}
		f(t, fab, arenas)
		if err := fab.Close(); err != nil {
			t.Error(err)
		}
	})
}

func bytesOf(dst, src *Arena, n int64) nvlink.Copy {
	return nvlink.Copy{Dst: nvlink.Span{Arena: dst, Len: n}, Src: nvlink.Span{Arena: src, Off: 1 << 19, Len: n}}
}

func open(t *testing.T, f *Fabric, name string) nvlink.Stream {
	t.Helper()
	s, err := f.NewStream("gpu0", name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// took waits for all that s has queued and returns the time since t0.
func took(t *testing.T, s nvlink.Stream, t0 time.Time) time.Duration {
	t.Helper()
	if err := wait(t, s); err != nil {
		t.Fatal(err)
	}
	return time.Since(t0)
}

func TestPacingTakesLatencyAndBandwidth(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		list func(a [3]*Arena) []nvlink.Copy
		want time.Duration
	}{
		{"one piece", func(a [3]*Arena) []nvlink.Copy { return []nvlink.Copy{bytesOf(a[0], a[1], 10000)} }, 15 * ms},
		{"within a device", func(a [3]*Arena) []nvlink.Copy { return []nvlink.Copy{bytesOf(a[0], a[0], 10000)} }, 0},
		{"a list pays latency once", func(a [3]*Arena) []nvlink.Copy {
			x, y := bytesOf(a[0], a[1], 10000), bytesOf(a[0], a[1], 20000)
			y.Dst.Off = 50000
			return []nvlink.Copy{x, y}
		}, 35 * ms},
		{"two links carry at once", func(a [3]*Arena) []nvlink.Copy {
			x, y := bytesOf(a[0], a[1], 10000), bytesOf(a[0], a[2], 20000)
			y.Dst.Off = 50000
			return []nvlink.Copy{x, y}
		}, 25 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			paced(t, func(t *testing.T, f *Fabric, a [3]*Arena) {
				s, t0 := open(t, f, "s"), time.Now()
				if err := s.CopyBatch(c.list(a)); err != nil {
					t.Fatal(err)
				}
				if got := took(t, s, t0); got != c.want {
					t.Errorf("took %v, want %v", got, c.want)
				}
				// Idle time is not saved up.
				time.Sleep(time.Hour)
				t0 = time.Now()
				if err := s.CopyBatch(c.list(a)); err != nil {
					t.Fatal(err)
				}
				if got := took(t, s, t0); got != c.want {
					t.Errorf("took %v after a pause, want %v", got, c.want)
				}
			})
		})
	}
}

func TestPacedStreamsShareALink(t *testing.T) {
	paced(t, func(t *testing.T, f *Fabric, a [3]*Arena) {
		s1, s2, s3 := open(t, f, "one"), open(t, f, "two"), open(t, f, "back")
		t0 := time.Now()
		var arrived [3]time.Duration
		for i, c := range []struct {
			s        nvlink.Stream
			dst, src *Arena
		}{{s1, a[0], a[1]}, {s2, a[0], a[1]}, {s3, a[1], a[0]}} {
			piece := bytesOf(c.dst, c.src, 10000)
			if c.s == s2 {
				piece.Dst.Off = 20000
			}
			if err := c.s.CopyBatch([]nvlink.Copy{piece}); err != nil {
				t.Fatal(err)
			}
			if err := c.s.Call(func() error { arrived[i] = time.Since(t0); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range []nvlink.Stream{s1, s2, s3} {
			if err := wait(t, s); err != nil {
				t.Fatal(err)
			}
		}
		// Which of the two goes first is open.
		slices.Sort(arrived[:2])
		if want := [3]time.Duration{15 * time.Millisecond, 25 * time.Millisecond, 15 * time.Millisecond}; arrived != want {
			t.Errorf("two batches on one link and one back arrived after %v, want %v", arrived, want)
		}
	})
}

// TestPacedWaitCounts: a batch that waited for an event starts when the event
// happened, not when it was enqueued.
func TestPacedWaitCounts(t *testing.T) {
	paced(t, func(t *testing.T, f *Fabric, a [3]*Arena) {
		s1, s2 := open(t, f, "one"), open(t, f, "two")
		t0 := time.Now()
		if err := s1.Call(func() error { time.Sleep(100 * time.Millisecond); return nil }); err != nil {
			t.Fatal(err)
		}
		e, err := s1.Record()
		if err != nil {
			t.Fatal(err)
		}
		// Stream two first copies something, so that its next batch is queued
		// before that one has arrived.
		if err := s2.CopyBatch([]nvlink.Copy{bytesOf(a[0], a[2], 10000)}); err != nil {
			t.Fatal(err)
		}
		for _, s := range []nvlink.Stream{s1, s2} {
			if err := s.WaitEvent(e); err != nil {
				t.Fatal(err)
			}
		}
		if err := s2.CopyBatch([]nvlink.Copy{bytesOf(a[0], a[1], 10000)}); err != nil {
			t.Fatal(err)
		}
		if got := took(t, s2, t0); got != 115*time.Millisecond {
			t.Errorf("took %v, want 115ms", got)
		}
		if err := s1.CopyBatch([]nvlink.Copy{bytesOf(a[1], a[2], 10000)}); err != nil {
			t.Fatal(err)
		}
		if got := took(t, s1, t0); got != 130*time.Millisecond {
			t.Errorf("took %v, want 130ms", got)
		}
	})
}

// TestPreciseClockIsNeverEarly also bounds lateness, loosely: machines under
// load are late without a fault of ours.
func TestPreciseClockIsNeverEarly(t *testing.T) {
	for _, d := range []time.Duration{-time.Second, 0, 10 * time.Microsecond, 200 * time.Microsecond, 3 * time.Millisecond} {
		best := time.Hour
		for range 20 {
			until := time.Now().Add(d)
			preciseClock{}.SleepUntil(until)
			late := time.Since(until)
			if late < 0 {
				t.Fatalf("%v: woke %v early", d, -late)
			}
			best = min(best, late)
		}
		if d > 0 && best > time.Millisecond {
			t.Errorf("%v: at best %v late", d, best)
		}
	}
}
