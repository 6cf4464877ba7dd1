//go:build cuda && cgo

package cuda

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

func TestCrossoverIsMeasured(t *testing.T) {
	f := newTestFabric(t, Config{})
	if got := f.Info().Devices[0]; got.Crossover != 0 || got.How != "" {
		t.Errorf("before the first stream: %d, %q", got.Crossover, got.How)
	}
	mustStream(t, f, "gpu0")
	if got := f.Info().Devices[0]; got.Crossover < 16<<10 || got.How != "measured" {
		t.Errorf("%d, %q", got.Crossover, got.How)
	}
	set := newTestFabric(t, Config{Crossover: 12345})
	mustStream(t, set, "gpu0")
	if got := set.Info().Devices[0]; got.Crossover != 12345 || got.How != "set" {
		t.Errorf("%d, %q", got.Crossover, got.How)
	}
}

func TestCrossoverIsAssumedOnAFullDevice(t *testing.T) {
	needFake(t)
	t.Setenv("KVLEND_FAKE_MEMORY", "1000000")
	f := newTestFabric(t, Config{})
	mustStream(t, f, "gpu0")
	if got := f.Info().Devices[0]; got.Crossover != assumedCrossover || !strings.Contains(got.How, "OUT_OF_MEMORY") {
		t.Errorf("%d, %q", got.Crossover, got.How)
	}
}

// notices collects what a fabric tells.
type notices struct {
	mu   sync.Mutex
	said []string
}

func (n *notices) add(s string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.said = append(n.said, s)
}

// TestDetoursAreReported: by Paths at once where the driver says it, after the
// first copy where it breaks its word; by Notice once.
func TestDetoursAreReported(t *testing.T) {
	needFake(t)
	for _, c := range []struct{ name, key, value, why string }{
		{"no peer access", "KVLEND_FAKE_NO_PEER", "0-1", "cuDeviceCanAccessPeer"},
		{"access refused", "KVLEND_FAKE_FAIL", "cuCtxEnablePeerAccess:1:217,cuCtxEnablePeerAccess:2:217", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(c.key, c.value)
			var told notices
			f := newTestFabric(t, Config{Memory: IPC, Crossover: 4 << 10, Notice: told.add})
			a, b := mustArena(t, f, "a", "gpu0", 1<<20), mustArena(t, f, "b", "gpu1", 1<<20)
			want := fill(t, b, 1)
			s := mustStream(t, f, "gpu0")
			for range 3 {
				must(t, s.CopyBatch([]nvlink.Copy{piece(a, 0, b, 0, 1<<20)}))
				must(t, wait(s))
			}
			if !bytes.Equal(contents(t, a), want) {
				t.Error("bytes differ")
			}
			if len(told.said) != 1 || !strings.Contains(told.said[0], "from gpu1 to gpu0") || !strings.Contains(told.said[0], c.why) {
				t.Errorf("notices: %q", told.said)
			}
			for _, p := range f.Paths() {
				want := Staged
				if p.From == p.To {
					want = Local
				}
				if p.Kind != want || (p.Kind == Staged) != strings.Contains(p.Why, c.why) {
					t.Errorf("%+v, want %s", p, want)
				}
			}
		})
	}
}

func TestNoDetourIsReportedWithPeers(t *testing.T) {
	needFake(t)
	var told notices
	f := newTestFabric(t, Config{Crossover: 4 << 10, Notice: told.add})
	a, b := mustArena(t, f, "a", "gpu0", 1<<20), mustArena(t, f, "b", "gpu1", 1<<20)
	s := mustStream(t, f, "gpu0")
	must(t, s.CopyBatch([]nvlink.Copy{piece(a, 0, b, 0, 1<<20), piece(b, 7, b, 1<<19, 99)}))
	must(t, wait(s))
	if len(told.said) != 0 {
		t.Errorf("notices: %q", told.said)
	}
	for _, p := range f.Paths() {
		if p.Kind == Staged || p.Why != "" {
			t.Errorf("%+v", p)
		}
	}
}

// TestRefusedBatchesAreIssuedSingly: and that is said.
func TestRefusedBatchesAreIssuedSingly(t *testing.T) {
	needFake(t)
	t.Setenv("KVLEND_FAKE_FAIL", "cuMemcpyBatchAsync:2:801")
	var told notices
	f := newTestFabric(t, Config{Crossover: 1, Notice: told.add})
	a, b := mustArena(t, f, "a", "gpu0", 1<<12), mustArena(t, f, "b", "gpu1", 1<<12)
	want := fill(t, b, 1)
	s := mustStream(t, f, "gpu0")
	var pieces []nvlink.Copy
	for off := int64(0); off < 1<<12; off += 256 {
		pieces = append([]nvlink.Copy{piece(a, off, b, off, 256)}, pieces...)
	}
	for i := range 3 {
		must(t, s.CopyBatch(pieces))
		must(t, wait(s))
		if why := f.Info().Batchless; (why != "") != (i >= 1) {
			t.Errorf("after batch %d: %q", i+1, why)
		}
	}
	if !bytes.Equal(contents(t, a), want) {
		t.Error("bytes differ")
	}
	if len(told.said) != 1 || !strings.Contains(told.said[0], "cuMemcpyBatchAsync") {
		t.Errorf("notices: %q", told.said)
	}
}

// TestEventsKnowWhenTheirBatchRan: without what the stream waited for before.
func TestEventsKnowWhenTheirBatchRan(t *testing.T) {
	f := newTestFabric(t, Config{Crossover: 64 << 10})
	a, b := mustArena(t, f, "a", "gpu0", 8<<20), mustArena(t, f, "b", "gpu0", 8<<20)
	s, other := mustStream(t, f, "gpu0"), mustStream(t, f, "gpu0")
	gate := make(chan struct{})
	must(t, other.Call(func() error { <-gate; return nil }))
	first, err := other.Record()
	must(t, err)
	began := time.Now()
	must(t, s.WaitEvent(first))
	must(t, s.CopyBatch([]nvlink.Copy{piece(a, 0, b, 0, 8<<20)}))
	second, err := s.Record()
	must(t, err)
	empty, err := s.Record()
	must(t, err)
	if from, to := second.(nvlink.Timed).Ran(); !from.IsZero() || !to.IsZero() {
		t.Error("an event that has not happened knows its time")
	}
	opened := time.Now()
	close(gate)
	must(t, empty.Wait(t.Context()))
	over := time.Now()
	from, to := second.(nvlink.Timed).Ran()
	if from.Before(opened.Add(-time.Millisecond)) || to.Before(from) || to.After(over) {
		t.Errorf("the copy ran from %v to %v; the gate opened at %v, all was over at %v", from.Sub(began), to.Sub(began), opened.Sub(began), over.Sub(began))
	}
	if from, to := empty.(nvlink.Timed).Ran(); !from.IsZero() || !to.IsZero() {
		t.Errorf("nothing ran from %v to %v", from, to)
	}
	if from, to := first.(nvlink.Timed).Ran(); from.IsZero() || to.Before(opened) {
		t.Errorf("the call ran from %v to %v", from, to)
	}
}

// TestManyBatchesWithoutAnEvent: what they hold is given back all the same.
func TestManyBatchesWithoutAnEvent(t *testing.T) {
	f := newTestFabric(t, Config{Crossover: 64 << 10})
	a := mustArena(t, f, "a", "gpu0", 4096)
	s := mustStream(t, f, "gpu0")
	for i := range int64(2000) {
		must(t, s.CopyBatch([]nvlink.Copy{piece(a, 2048+i%1000, a, i%1000, 8)}))
		must(t, s.CopyBatch(nil))
	}
	must(t, wait(s))
	s.home.mu.Lock()
	n := len(s.home.lists)
	s.home.mu.Unlock()
	if most := (pointsAhead + 3) * pendingMost; n > most {
		t.Errorf("%d lists were made, want at most %d", n, most)
	}
	if a.refs.Load() != 0 {
		t.Error("the arena is still held")
	}
}

func TestSteadyStateAllocatesNothingPerPiece(t *testing.T) {
	f := newTestFabric(t, Config{Crossover: 64 << 10})
	src, dst := mustArena(t, f, "src", "gpu0", 1<<20), mustArena(t, f, "dst", "gpu0", 1<<20)
	s := mustStream(t, f, "gpu0")
	var pieces []nvlink.Copy
	for i := int64(0); i < 4096; i++ {
		pieces = append(pieces, piece(dst, i*256, src, i*1021%4096*256, 256))
	}
	got := testing.AllocsPerRun(20, func() {
		must(t, s.CopyBatch(pieces))
		must(t, wait(s))
	})
	if got > 40 {
		t.Errorf("%v allocations per batch of %d pieces", got, len(pieces))
	}
}

func TestStreamRefusals(t *testing.T) {
	f := newTestFabric(t, Config{})
	if _, err := f.NewStream("xpu", "s"); err == nil || !strings.Contains(err.Error(), `"xpu"`) || !strings.Contains(err.Error(), "gpu0") {
		t.Errorf("a stream of an unknown device: %v", err)
	}
	s := mustStream(t, f, "gpu0")
	a := mustArena(t, f, "a", "gpu0", 64)
	must(t, s.Close())
	if err := s.WipeBatch([]nvlink.Span{span(a, 0, 8)}); !errors.Is(err, nvlink.ErrClosed) {
		t.Errorf("WipeBatch on a closed stream: %v", err)
	}
	if err := s.HashBatch([]nvlink.Span{span(a, 0, 80)}, []uint64{0}, []uint64{0}); !errors.Is(err, nvlink.ErrBadSpan) {
		t.Errorf("HashBatch outside the arena: %v", err)
	}
	if a.refs.Load() != 0 {
		t.Error("a refused batch holds its arena")
	}
}
