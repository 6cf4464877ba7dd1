package coordinator

import (
	"testing"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

// TestConfirmPastSparesThePresent: a worker that was restarted finds two units
// fenced. One is with the borrower's present process, which has not returned
// it; the end of the process before frees only the other, although the fence of
// the present one has the lower number.
func TestConfirmPastSparesThePresent(t *testing.T) {
	const owner = 3
	units, _ := newUnits(t, 8, 0, nil)
	grants, err := units.Grant(owner, 2, 2, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range grants {
		if _, err := units.Fence(owner, e); err != nil {
			t.Fatal(err)
		}
	}
	l := NewLender(0, LenderOptions{Units: units})
	l.Up(0, owner)
	present := wire.UnitEpoch(grants[0])
	if err := l.Receive(0, owner, &wire.Sync{Ask: true, ID: 1, Units: []wire.UnitEpoch{present}}); err != nil {
		t.Fatal(err)
	}
	l.ConfirmPast(0, owner)
	if n := units.CountOf(owner, elastic.Fenced); n != 1 {
		t.Fatalf("%d units are fenced, want the one of the present process", n)
	}
	row, err := units.Unit(int(present.Unit))
	if err != nil || row.State != elastic.Fenced {
		t.Fatalf("unit %d of the present process is %+v, %v", present.Unit, row, err)
	}
	if err := l.Check(); len(err) > 0 {
		t.Fatal(err)
	}
	l.ConfirmFence(0, owner, l.fences)
	if n := units.CountOf(owner, elastic.Fenced); n != 0 {
		t.Fatalf("%d units are still fenced", n)
	}
}
