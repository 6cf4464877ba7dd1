package store

import (
	"context"
	"testing"

	"github.com/kvlend/kvlend/overflow/store/simdev"
	"github.com/kvlend/kvlend/prefix"
)

// pageAt copies a page of an area.
func pageAt(dev *simdev.Device, l *layout, area, index int) []byte {
	b := make([]byte, l.page)
	dev.Peek(l.area[area]+int64(index*l.page), b)
	return b
}

func flushed(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// TestAPageOfAnEarlierLifeIsNotTheNextPage puts behind the end of a log a page
// that a life before the last one could have left there.
func TestAPageOfAnEarlierLifeIsNotTheNextPage(t *testing.T) {
	dev := formatted(t, small())
	s, _ := open(t, dev, small())
	l := s.layout
	var stale []byte
	for n := uint64(1); n <= 3; n++ {
		store(t, dev, s, n)
		flushed(t, s)
		if n == 1 {
			s.Close(context.Background())
			// A life that is lost: its pages 1 and 2.
			other := dev.Crash(simdev.DropAll, nil)
			s, _ = open(t, other, small())
			for n := uint64(20); n < 25; n++ {
				store(t, other, s, n)
				flushed(t, s)
			}
			stale = pageAt(other, &l, 0, 3)
			dev = other.Crash(simdev.DropAll, nil)
			for i := 1; i <= 5; i++ {
				dev.Poke(l.area[0]+int64(i*l.page), make([]byte, l.page))
			}
			s, _ = open(t, dev, small())
		}
	}
	s.Close(context.Background())
	dev.Poke(l.area[0]+int64(3*l.page), stale)
	s, r := open(t, dev, small())
	if r.Entries != 3 || r.Pages != 3 || r.Holes != 0 {
		t.Errorf("%+v", r)
	}
	checked(t, s, true)
}

// TestAPageOfTheAreasEarlierUseIsAHole puts a page back that lay in the same
// place before the area was written anew.
func TestAPageOfTheAreasEarlierUseIsAHole(t *testing.T) {
	ctx := context.Background()
	dev := formatted(t, small())
	s, _ := open(t, dev, small())
	l := s.layout
	store(t, dev, s, 1)
	flushed(t, s)
	stale := pageAt(dev, &l, 0, 0)
	for range 2 {
		s.logMu.Lock()
		_, err := s.checkpoint(ctx, nil)
		s.logMu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	store(t, dev, s, 2)
	s.Close(ctx)
	dev.Poke(l.area[0], stale)
	if _, r := open(t, dev, small()); r.Entries != 1 || r.Holes != 1 || r.Pages != 1 {
		t.Errorf("%+v", r)
	}
}

func TestPagesOfAnotherStoreDoNotCount(t *testing.T) {
	ctx := context.Background()
	dev := formatted(t, small())
	s, _ := open(t, dev, small())
	for n := uint64(1); n <= 3; n++ {
		store(t, dev, s, n)
		flushed(t, s)
	}
	s.Close(ctx)
	o := small()
	o.Force, o.UUID = true, [16]byte{} // a random one
	if err := Format(ctx, dev, o); err != nil {
		t.Fatal(err)
	}
	s, r := open(t, dev, small())
	if r.Entries != 0 || r.Pages != 0 {
		t.Errorf("an empty store recovers %+v", r)
	}
	store(t, dev, s, 50)
	s.Close(ctx)
	if s, r = open(t, dev, small()); r.Entries != 1 || r.Pages != 1 || s.Info().UUID == [16]byte{1} {
		t.Errorf("%+v", r)
	}
}

func TestAPageInTheWrongPlaceDoesNotCount(t *testing.T) {
	dev := formatted(t, small())
	s, _ := open(t, dev, small())
	store(t, dev, s, 1)
	flushed(t, s)
	s.Free([]Slot{0})
	flushed(t, s)
	s.Close(context.Background())
	l := s.layout
	dev.Poke(l.area[0]+int64(2*l.page), pageAt(dev, &l, 0, 0))
	if _, r := open(t, dev, small()); r.Entries != 0 || r.Pages != 2 {
		t.Errorf("%+v", r)
	}
}

// TestOfTwoSlotsWithOneKeyTheLaterCounts loses the tombstone of the first.
func TestOfTwoSlotsWithOneKeyTheLaterCounts(t *testing.T) {
	ctx := context.Background()
	for _, first := range []Slot{0, 1} {
		dev := formatted(t, small())
		s, _ := open(t, dev, small())
		s.Alloc(nil, 2)
		put := func(slot Slot, tag uint64) {
			e, data := block(s.Geometry(), slot, tag)
			e.Key = prefix.Key{Hi: 9}
			if err := transfer(dev, s, true, slot, data); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Commit(&e); err != nil {
				t.Fatal(err)
			}
			flushed(t, s)
		}
		put(first, 5)
		s.Free([]Slot{first})
		flushed(t, s)
		put(1-first, 6)
		s.Close(ctx)
		l := s.layout
		dev.Poke(l.area[0]+int64(l.page), make([]byte, 8))
		s, r := open(t, dev, small())
		e, ok := s.Lookup(prefix.Key{Hi: 9})
		if !ok || e.Tag != 6 || e.Slot != 1-first || r.Entries != 1 || r.Superseded != 1 || r.Holes != 1 {
			t.Errorf("first in slot %d: %+v, %v, %+v", first, e, ok, r)
		}
		checked(t, s, true)
		// The loser does not come back when the winner goes.
		s.Free([]Slot{e.Slot})
		s.Close(ctx)
		if _, r := open(t, dev, small()); r.Entries != 0 {
			t.Errorf("first in slot %d: %+v", first, r)
		}
	}
}

// TestWhatComesDuringAFlushIsNotYetDurable commits while the log is synced.
func TestWhatComesDuringAFlushIsNotYetDurable(t *testing.T) {
	dev := formatted(t, small())
	s, _ := open(t, dev, small())
	store(t, dev, s, 1)
	flushed(t, s)
	slots := s.Alloc(nil, 1)
	late, _ := block(s.Geometry(), slots[0], 3)
	store(t, dev, s, 2)
	syncs := 0
	dev.Fault(func(op simdev.Op) error {
		if op.Kind == "sync" {
			if syncs++; syncs == 2 {
				_, err := s.Commit(&late)
				return err
			}
		}
		return nil
	})
	flushed(t, s)
	if d, st := s.Durable(), s.Stats(); d != 2 || st.Lag != 1 || syncs != 2 {
		t.Errorf("%d are durable, %+v after %d syncs", d, st, syncs)
	}
	flushed(t, s)
	if d := s.Durable(); d != 3 {
		t.Errorf("%d are durable", d)
	}
}
