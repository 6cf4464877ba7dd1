package store

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store/simdev"
)

// TestEveryFaultOfTheLogFailsTheStore lets each write and sync of a history
// fail once, by itself.
func TestEveryFaultOfTheLogFailsTheStore(t *testing.T) {
	ctx := context.Background()
	for at := 0; ; at++ {
		dev := formatted(t, small())
		o := small()
		var failures atomic.Int32
		o.OnFail = func(err error) {
			var fe *FailedError
			if !errors.As(err, &fe) || !errors.Is(err, device.ErrIO) {
				t.Errorf("OnFail got %v", err)
			}
			failures.Add(1)
		}
		s, _, err := Open(ctx, dev, o)
		if err != nil {
			t.Fatal(err)
		}
		// Data is written in between and does not count.
		steps := 0
		dev.Fault(func(op simdev.Op) error {
			if op.Kind == "read" || op.Kind == "write" && op.Off >= s.Geometry().Base {
				return nil
			}
			steps++
			if steps == at+1 {
				return device.ErrIO
			}
			return nil
		})
		acked, failed := uint64(0), error(nil)
		for n := uint64(1); n <= 30 && failed == nil; n++ {
			store(t, dev, s, n)
			if failed = s.Flush(ctx); failed == nil {
				acked = n
			}
		}
		if failed == nil {
			s.Close(ctx)
			if at < 60 {
				t.Fatalf("only %d steps: the history makes no checkpoint", at)
			}
			break
		}
		judgeFailed(t, s, failed)
		if failures.Load() != 1 {
			t.Fatalf("OnFail was called %d times", failures.Load())
		}
		dev.Fault(nil)
		dev = dev.Crash(simdev.Random, rand.New(rand.NewPCG(uint64(at), 1)))
		s, r := open(t, dev, small())
		if uint64(r.Entries) < acked {
			t.Fatalf("fault at %d: %d blocks acknowledged, %+v", at, acked, r)
		}
		if rep := checked(t, s, true); len(rep.Bad) > 0 {
			t.Fatalf("fault at %d: %+v", at, rep.Bad)
		}
		s.Close(ctx)
	}
}

// judgeFailed wants a store to be of no more use, and to say so at once.
func judgeFailed(t *testing.T, s *Store, failed error) {
	t.Helper()
	ctx := context.Background()
	var fe *FailedError
	if !errors.As(failed, &fe) || fe.Device != "sim" {
		t.Fatalf("Flush failed with %v", failed)
	}
	if got := s.Alloc(nil, 1); len(got) > 0 {
		t.Error("a failed store gives out slots")
	}
	e, _ := block(s.Geometry(), 39, 77)
	if _, err := s.Commit(&e); !errors.As(err, &fe) {
		t.Errorf("Commit to a failed store: %v", err)
	}
	if err := s.Flush(ctx); !errors.As(err, &fe) {
		t.Errorf("Flush of a failed store: %v", err)
	}
	if s.Stats().Failed == nil {
		t.Error("Stats does not say that the store has failed")
	}
	s.Free([]Slot{0}) // memory goes on
	if err := s.Close(ctx); !errors.As(err, &fe) {
		t.Errorf("Close of a failed store: %v", err)
	}
	if err := s.Close(ctx); err != nil && !errors.As(err, &fe) {
		t.Errorf("second Close: %v", err)
	}
}

// deaf is a device that does not answer writes.
type deaf struct {
	*simdev.Device
	off atomic.Bool
}

func (d *deaf) Submit(ios []*device.IO) error {
	if d.off.Load() {
		return nil
	}
	return d.Device.Submit(ios)
}

func TestADeviceThatNeverAnswersFailsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		dev := &deaf{Device: formatted(t, small())}
		o := small()
		o.IOTimeout = time.Minute
		s, _, err := Open(ctx, dev, o)
		if err != nil {
			t.Fatal(err)
		}
		store(t, dev, s, 1)
		dev.off.Store(true)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := s.Flush(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Flush with a context of one second: %v", err)
		}
		began := time.Now()
		var fe *FailedError
		if err := s.Flush(ctx); !errors.As(err, &fe) {
			t.Errorf("Flush: %v", err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it took %v", took)
		}
		s.Close(ctx)
	})
}

func TestCloseGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		dev := &deaf{Device: formatted(t, small())}
		s, _, err := Open(ctx, dev, small())
		if err != nil {
			t.Fatal(err)
		}
		store(t, dev, s, 1)
		dev.off.Store(true)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := s.Close(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
		if err := s.Flush(ctx); err == nil {
			t.Error("Flush of a closed store says that all is durable")
		}
		e, _ := block(s.Geometry(), 1, 2)
		if _, err := s.Commit(&e); !errors.Is(err, ErrClosed) {
			t.Errorf("Commit: %v", err)
		}
	})
}

// TestRotInTheLogLosesOnlyWhatItHits changes one byte anywhere in the log.
func TestRotInTheLogLosesOnlyWhatItHits(t *testing.T) {
	ctx := context.Background()
	clean := formatted(t, small())
	s, _ := open(t, clean, small())
	for n := uint64(1); n <= 12; n++ {
		store(t, clean, s, n)
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	l := s.layout
	for i := 0; i < 12*l.page/13; i += less {
		dev := clean.Crash(simdev.DropAll, nil)
		off := l.area[0] + int64(i*13)
		var b [1]byte
		dev.Peek(off, b[:])
		b[0] ^= 1 << (i % 8)
		dev.Poke(off, b[:])
		s, r, err := Open(ctx, dev, small())
		if err != nil {
			t.Fatal(err)
		}
		hit := (i * 13) % l.page
		used := pageHeader + l.entryBytes()
		switch {
		case hit >= used && (r.Entries != 12 || r.Torn+r.Holes != 0),
			hit >= pageHeader && hit < used && (r.Entries != 11 || r.Torn != 1),
			// The last page's header is as good as the end of the log.
			hit < pageHeader && (r.Entries != 11 || r.Holes != 1 && i*13/l.page != 11):
			t.Fatalf("rot at byte %d of page %d: %+v", hit, i*13/l.page, r)
		}
		if len(s.Alloc(nil, 1)) != 1 {
			t.Fatal("no slot")
		}
		// What is left goes to a sound area with the next change.
		store(t, dev, s, 50)
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if i%50 == 0 {
			again, r2 := open(t, dev, small())
			checked(t, again, true)
			if r2.Entries != r.Entries+1 || r2.Holes+r2.Torn != 0 {
				t.Fatalf("after the repair: %+v, before %+v", r2, r)
			}
		}
	}
}

func TestUnreadablePagesOfTheLogAreHoles(t *testing.T) {
	ctx := context.Background()
	dev := formatted(t, small())
	s, _ := open(t, dev, small())
	for n := uint64(1); n <= 12; n++ {
		store(t, dev, s, n)
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	l := s.layout
	bad := l.area[0] + 5*int64(l.page)
	dev.Fault(func(op simdev.Op) error {
		if op.Kind == "read" && op.Off <= bad && bad < op.Off+int64(op.Len) {
			return device.ErrIO
		}
		return nil
	})
	s, r := open(t, dev, small())
	if r.Entries != 11 || r.Holes != 1 || r.Pages != 11 {
		t.Errorf("%+v", r)
	}
	store(t, dev, s, 50)
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, r := open(t, dev, small()); r.Entries != 12 || r.Holes != 0 {
		t.Errorf("after the repair: %+v", r)
	}
	dev.Fault(func(op simdev.Op) error {
		if op.Kind == "read" && op.Off >= headerBytes {
			return device.ErrGone
		}
		return nil
	})
	if _, _, err := Open(ctx, dev, small()); !errors.Is(err, device.ErrGone) {
		t.Errorf("Open of a device that is gone: %v", err)
	}
}

func TestDeepCheckNamesBadData(t *testing.T) {
	dev := formatted(t, small())
	s, _ := open(t, dev, small())
	for n := uint64(1); n <= 9; n++ {
		store(t, dev, s, n)
	}
	g := s.Geometry()
	dev.Poke(s.Off(2, 1)+int64(g.LayerBytes)-1, []byte{99})
	dev.Poke(s.Off(3, 1)+int64(g.LayerBytes), []byte{99}) // padding
	unread := s.Off(8, 0)
	dev.Fault(func(op simdev.Op) error {
		if op.Kind == "read" && op.Off <= unread && unread < op.Off+int64(op.Len) {
			return device.ErrIO
		}
		return nil
	})
	r := checked(t, s, true)
	if r.Verified != 7 || len(r.Bad) != 2 {
		t.Fatalf("%+v", r)
	}
	if b := r.Bad[0]; b.Slot != 2 || b.Layer != 1 || b.Err != nil {
		t.Errorf("%+v", b)
	}
	if b := r.Bad[1]; b.Slot != 8 || b.Layer != 0 || !errors.Is(b.Err, device.ErrIO) {
		t.Errorf("%+v", b)
	}
	if r := checked(t, s, false); r.Verified != 0 || len(r.Bad) != 0 {
		t.Errorf("a shallow check read data: %+v", r)
	}
}
