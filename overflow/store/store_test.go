package store

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWhatIsFlushedIsThereAfterReopening(t *testing.T) {
	ctx := context.Background()
	dev := formatted(t, small())
	s, r := open(t, dev, small())
	if r.Entries != 0 || r.Pages != 0 {
		t.Fatalf("an empty store recovers %+v", r)
	}
	for n := uint64(1); n <= 20; n++ {
		store(t, dev, s, n)
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	s.Free([]Slot{3})
	slot := store(t, dev, s, 100)
	if slot != 3 {
		t.Errorf("block went to slot %d, not to the one that was freed", slot)
	}
	s.Free([]Slot{7})
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}

	s, r = open(t, dev, small())
	if r.Entries != 19 || r.Superseded != 2 || r.Tombstones != 1 || r.Torn+r.Holes+r.Dropped != 0 {
		t.Errorf("recovered %+v", r)
	}
	rep := checked(t, s, true)
	if rep.Verified != 19 || len(rep.Bad) != 0 || rep.Live != 19 || rep.Free != 21 {
		t.Errorf("check: %+v", rep)
	}
	for n := uint64(1); n <= 20; n++ {
		want, _ := block(s.Geometry(), Slot(n-1), n)
		got, ok := s.Lookup(want.Key)
		if n == 4 || n == 8 {
			if ok {
				t.Errorf("block %d was freed and is there", n)
			}
			continue
		}
		if d := cmp.Diff(want, got); !ok || d != "" {
			t.Errorf("block %d (%v): %s", n, ok, d)
		}
	}
}
