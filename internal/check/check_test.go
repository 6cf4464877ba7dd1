package check

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// fine is a worker "w" (index 1) with ten units, two of them with master "m"
// (index 0), one of which is on its way back, and one fenced.
func fine() []*wire.CheckReport {
	return []*wire.CheckReport{
		{
			Model: "m", Role: "master", PID: 10, Index: 0,
			Holds: []wire.Holding{{
				Worker: "w", Version: 4,
				Used: units(3, 7), Known: units(3, 7), Parting: units(4, 9),
			}},
		},
		{
			Model: "w", Role: "worker", PID: 11, Index: 1, Total: 10, Local: 7,
			Away: []wire.UnitGroup{
				{Owner: 0, State: "LENT", Units: units(3, 7)},
				{Owner: 0, State: "RECLAIMING", Units: units(4, 9)},
				{Owner: 0, State: "FENCED", Units: units(5, 3)},
			},
			Versions: []wire.OwnerVersion{{Owner: 0, Version: 4}},
		},
	}
}

// units makes a list from unit, epoch, unit, epoch and so on.
func units(pairs ...uint64) []wire.UnitEpoch {
	var out []wire.UnitEpoch
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, wire.UnitEpoch{Unit: uint32(pairs[i]), Epoch: pairs[i+1]})
	}
	return out
}

// cases break one invariant each.
var cases = []struct {
	name      string
	spoil     func(m, w *wire.CheckReport)
	invariant string
	text      string
}{
	{"a unit that is in use is at home", func(_, w *wire.CheckReport) { w.Away, w.Local = w.Away[1:], 8 },
		OneOwner, "m uses unit 3 of w at epoch 7, which is at home"},
	{"a unit in use is another's", func(_, w *wire.CheckReport) { w.Away[0].Owner = 2 }, OneOwner, "of owner 2"},
	{"a unit was granted anew and is still in use", func(m, w *wire.CheckReport) {
		w.Away[0].Units = units(3, 8)
		m.Holds[0].Parting = units(4, 9, 3, 8)
	}, OneOwner, "m uses unit 3 of w at epoch 7, which is LENT at epoch 8"},
	{"the worker lists a unit twice", func(_, w *wire.CheckReport) { w.Away[2].Units, w.Total = units(5, 3, 3, 7), 11 }, OneOwner, "unit 3 is of owner 0 and of owner 0"},
	{"a replica's epoch is newer", func(m, _ *wire.CheckReport) {
		m.Holds[0].Used, m.Holds[0].Known = units(3, 8), units(3, 7, 3, 8)
	}, Replica, "at epoch 8, its owner is at epoch 7"},
	{"a replica's version is newer", func(m, _ *wire.CheckReport) { m.Holds[0].Version = 5 }, Replica, "shows version 5"},
	{"units are missing", func(_, w *wire.CheckReport) { w.Local = 6 }, Sum, "6 units at home and 3 away are not 10"},
	{"a lent unit is known to nobody", func(m, _ *wire.CheckReport) { m.Holds[0].Parting = nil }, Sum, "unit 4 of w at epoch 9 is RECLAIMING to m, which does not know it"},
	{"a unit is known and not used", func(m, _ *wire.CheckReport) { m.Holds[0].Used = nil }, Sum, "has unit 3 of w at epoch 7 and does not use it"},
	{"a unit is used and not known", func(m, _ *wire.CheckReport) {
		m.Holds[0].Known, m.Holds[0].Parting = nil, units(4, 9, 3, 7)
	}, Books, "which was not granted or is given back"},
}

func TestCompareFindsEachContradiction(t *testing.T) {
	if got := Compare(fine()); len(got) != 0 {
		t.Fatalf("nothing is wrong, found %v", got)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := fine()
			c.spoil(r[0], r[1])
			got := Compare(r)
			for _, f := range got {
				if f.Invariant == c.invariant && strings.Contains(f.Text, c.text) {
					return
				}
			}
			t.Fatalf("found %v, want %s: %s", got, c.invariant, c.text)
		})
	}
	t.Run("two masters use one unit", func(t *testing.T) {
		r := append(fine(), &wire.CheckReport{Model: "n", Index: 2, Holds: []wire.Holding{{Worker: "w", Used: units(3, 7), Known: units(3, 7)}}})
		got := Compare(r)
		if len(got) < 2 || !strings.Contains(got[len(got)-1].Text, "used by m and by n") {
			t.Fatalf("found %v", got)
		}
	})
	t.Run("a fenced unit in use awaits its end", func(t *testing.T) {
		r := fine()
		r[0].Holds[0].Used, r[0].Holds[0].Known = units(3, 7, 5, 2), units(3, 7, 5, 2)
		if got := Compare(r); len(got) != 0 {
			t.Fatalf("found %v", got)
		}
	})
}

// rounds answers with one set of reports after the other, and the last again
// and again.
func rounds(sets ...[]*wire.CheckReport) func(context.Context) ([]*wire.CheckReport, error) {
	i := -1
	return func(context.Context) ([]*wire.CheckReport, error) {
		i = min(i+1, len(sets)-1)
		return sets[i], nil
	}
}

func spoilt(c int) []*wire.CheckReport {
	r := fine()
	cases[c].spoil(r[0], r[1])
	return r
}

func live(t *testing.T, ask func(context.Context) ([]*wire.CheckReport, error)) (r *Result, took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var err error
		if r, err = Live(t.Context(), ask, Options{}); err != nil {
			t.Fatal(err)
		}
		took = time.Since(began)
	})
	return r, took
}

func TestASuspicionCountsOnlyWhenItStays(t *testing.T) {
	if r, took := live(t, rounds(fine())); !r.OK || r.Rounds != 1 || took != 0 || r.Units != 10 || r.Processes != 2 {
		t.Errorf("fine: %+v after %v", r, took)
	}
	if r, _ := live(t, rounds(spoilt(0), fine())); !r.OK || r.Rounds != 2 {
		t.Errorf("a suspicion that passes: %+v", r)
	}
	// Something is suspicious in every round, but never the same twice.
	if r, _ := live(t, rounds(spoilt(0), spoilt(6), spoilt(7))); !r.OK || r.Rounds != 2 {
		t.Errorf("changing suspicions: %+v", r)
	}
	r, took := live(t, rounds(spoilt(6)))
	if r.OK || r.Rounds != 5 || took < 1500*time.Millisecond || !r.Invariants[0].OK || r.Invariants[1].OK || len(r.Invariants[1].Findings) != 1 {
		t.Errorf("a suspicion that stays: %+v after %v", r, took)
	}
}

func TestANewProcessStartsTheRoundsAnew(t *testing.T) {
	restarted := spoilt(6)
	restarted[1].PID = 99
	r, _ := live(t, rounds(spoilt(6), spoilt(6), restarted, restarted, fine()))
	if !r.OK || r.Rounds != 5 {
		t.Errorf("a process restarted meanwhile: %+v", r)
	}
}

func TestWhatAProcessFindsInItselfCountsAtOnce(t *testing.T) {
	set := fine()
	Add(set[1], Floor, []error{errors.New("two\nlines")})
	Add(set[1], "of a newer release", []error{errors.New("x")})
	r, took := live(t, rounds(set))
	if r.OK || took != 0 || r.Invariants[4].OK || r.Invariants[4].Findings[0] != "w: two; lines" || r.Invariants[5].OK {
		t.Errorf("%+v after %v", r, took)
	}
	grown := fine()
	grown[1].Total, grown[1].Local = 11, 8
	r, _ = live(t, rounds(spoilt(0), grown))
	if r.OK || r.Invariants[1].Findings[0] != "w has 11 units and had 10" {
		t.Errorf("units that appeared: %+v", r)
	}
}

func TestLiveSaysWhenItCannotCheck(t *testing.T) {
	gone := errors.New("nobody answers")
	if _, err := Live(t.Context(), func(context.Context) ([]*wire.CheckReport, error) { return nil, gone }, Options{}); !errors.Is(err, gone) {
		t.Error(err)
	}
	if _, err := Live(t.Context(), rounds([]*wire.CheckReport{}), Options{}); err == nil {
		t.Error("no reports at all are not a healthy system")
	}
	clipped := fine()
	clipped[1].Clipped = true
	if _, err := Live(t.Context(), rounds(clipped), Options{}); err == nil {
		t.Error("a report that is not whole was taken for the truth")
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := Live(ctx, rounds(spoilt(0)), Options{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestReportsAreBounded(t *testing.T) {
	r := &wire.CheckReport{ID: 1}
	Add(r, Books, make([]error, 0))
	many := make([]error, wire.MaxFindings+1)
	for i := range many {
		many[i] = errors.New(strings.Repeat("x", 2*wire.MaxText))
	}
	Add(r, Books, many)
	if len(Fit(r, make([]wire.UnitEpoch, wire.MaxCheckUnits+1))) != wire.MaxCheckUnits || !r.Clipped || r.Validate() != nil {
		t.Errorf("%d findings, clipped %t: %v", len(r.Findings), r.Clipped, r.Validate())
	}
}
