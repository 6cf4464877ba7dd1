package faultfabric

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/fabrictest"
	"github.com/kvlend/kvlend/nvlink/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func wrapped(t testing.TB, cfg Config) *Fabric {
	t.Helper()
	f, err := shm.New(shm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return Wrap(f, cfg)
}

// TestDelaysKeepTheBehaviour: late is not wrong.
func TestDelaysKeepTheBehaviour(t *testing.T) {
	fabrictest.Run(t, fabrictest.Harness{
		Devices: [2]string{"gpu0", "gpu1"},
		New:     func(t testing.TB) nvlink.Fabric { return wrapped(t, Config{Seed: 1, MaxDelay: 20 * time.Microsecond}) },
		NewArena: func(t testing.TB, _ nvlink.Fabric, name, device string, size int64) nvlink.Arena {
			a, err := shm.Create(name, device, size)
			if err != nil {
				t.Fatal(err)
			}
			return a
		},
	})
}

// copies runs n batches of 8 one-byte pieces and returns which failed and how
// many bytes of each arrived.
func copies(t *testing.T, f *Fabric, n int) (failed []int, arrived []int) {
	t.Helper()
	src, err := shm.Create("src", "gpu0", 64)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := shm.Create("dst", "gpu0", 64)
	if err != nil {
		t.Fatal(err)
	}
	copy(src.Bytes(), bytes.Repeat([]byte{1}, 64))
	s, err := f.NewStream("gpu0", "s")
	if err != nil {
		t.Fatal(err)
	}
	for k := range n {
		clear(dst.Bytes())
		var list []nvlink.Copy
		for i := int64(0); i < 8; i++ {
			list = append(list, nvlink.Copy{Dst: nvlink.Span{Arena: dst, Off: 8 * i, Len: 1}, Src: nvlink.Span{Arena: src, Off: i, Len: 1}})
		}
		if err := s.CopyBatch(list); err != nil {
			t.Fatal(err)
		}
		e, err := s.Record()
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Wait(context.Background()); errors.Is(err, ErrInjected) {
			failed = append(failed, k+1)
		} else if err != nil {
			t.Fatal(err)
		}
		arrived = append(arrived, bytes.Count(dst.Bytes(), []byte{1}))
	}
	for _, c := range []interface{ Close() error }{f, src, dst} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	return failed, arrived
}

func TestNthCopyFails(t *testing.T) {
	f := wrapped(t, Config{Seed: 2, FailCopy: 3})
	failed, arrived := copies(t, f, 5)
	if !slices.Equal(failed, []int{3}) || f.Copies() != 5 {
		t.Fatalf("copies %v of %d failed", failed, f.Copies())
	}
	for k, n := range arrived {
		if k != 2 && n != 8 {
			t.Errorf("copy %d moved %d of 8 pieces", k+1, n)
		}
	}
}

func TestSeedDecides(t *testing.T) {
	run := func(seed uint64) ([]int, []int) {
		return copies(t, wrapped(t, Config{Seed: seed, FailRate: 0.3}), 60)
	}
	f1, a1 := run(7)
	f2, a2 := run(7)
	f3, _ := run(8)
	if len(f1) == 0 || len(f1) == 60 || !slices.Equal(f1, f2) || !slices.Equal(a1, a2) || slices.Equal(f1, f3) {
		t.Fatalf("seed 7: %v and %v; seed 8: %v", f1, f2, f3)
	}
}

func TestHoldAndRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := wrapped(t, Config{})
		held, err := f.NewStream("gpu0", "held")
		if err != nil {
			t.Fatal(err)
		}
		other, err := f.NewStream("gpu0", "other")
		if err != nil {
			t.Fatal(err)
		}
		f.Hold("held")
		f.Hold("held")
		var events []nvlink.Event
		for _, s := range []nvlink.Stream{held, other} {
			if err := s.CopyBatch(nil); err != nil {
				t.Fatal(err)
			}
			e, err := s.Record()
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, e)
		}
		synctest.Wait()
		<-events[1].Done()
		select {
		case <-events[0].Done():
			t.Fatal("a held stream went on")
		default:
		}
		f.Release("held")
		f.Release("held")
		<-events[0].Done()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}
