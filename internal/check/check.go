// Package check verifies the invariants of lending (docs: "check") on a live
// system. Each model process checks itself, under its own locks; what only
// several processes together can show is compared here, from snapshots.
//
// # Findings that concern two processes
//
// The processes' reports are not of one moment: a unit may change hands between
// them, and messages are under way. So such a finding is only a suspicion. It
// counts when it stands, word for word (the same unit, the same epochs), in
// every one of several rounds of reports that span more than the time in which
// the protocol repeats what was lost. A system that is fine has no suspicion
// left after one or two rounds, however busy it is; epochs never come back, so
// what comes and goes cannot look like something that stays.
package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// The invariants, as wire.Finding names them.
const (
	OneOwner = "one-owner"
	Sum      = "sum"
	OneTable = "one-table"
	Replica  = "replica"
	Floor    = "floor"
	Books    = "books"
)

// titles says what each invariant promises, in the order in which they are shown.
var titles = [...]struct{ id, title string }{
	{OneOwner, "each unit has exactly one owner"},
	{Sum, "no unit appears or disappears"},
	{OneTable, "no block is in the tables of two sequences"},
	{Replica, "a replica is never newer than its owner"},
	{Floor, "nothing lent lies below a worker's floor"},
	{Books, "books, counters and unit tables agree"},
}

// Invariant is one invariant and what was found against it.
type Invariant struct {
	ID       string   `json:"id"`
	Title    string   `json:"title"`
	OK       bool     `json:"ok"`
	Findings []string `json:"findings,omitempty"`
}

// Result is the outcome of a check.
type Result struct {
	OK         bool        `json:"ok"`
	Rounds     int         `json:"rounds"` // of reports that were compared
	Processes  int         `json:"processes"`
	Units      int         `json:"units"` // of all workers
	Invariants []Invariant `json:"invariants"`
}

// Options of Live. Zero values mean the defaults.
type Options struct {
	// Rounds is how many reports in a row must show a suspicion; default 5.
	Rounds int
	// Every is the pause between rounds; default 400ms, so that five rounds
	// span more than the second after which the protocol repeats itself.
	Every time.Duration
}

// Live checks a system. ask gets a report of every model process. An error
// means that the system could not be checked: a process does not answer, or
// the processes change faster than they can be compared.
func Live(ctx context.Context, ask func(context.Context) ([]*wire.CheckReport, error), opt Options) (*Result, error) {
	if opt.Rounds <= 0 {
		opt.Rounds = 5
	}
	if opt.Every <= 0 {
		opt.Every = 400 * time.Millisecond
	}
	var found, suspected []wire.Finding
	var last []*wire.CheckReport
	asked, inRow := 0, 0
	for {
		reports, err := ask(ctx)
		if err != nil {
			return nil, err
		}
		asked++
		if err := whole(reports); err != nil {
			return nil, err
		}
		found = append(found, inside(reports)...)
		if inRow == 0 || !sameProcesses(last, reports) {
			suspected, inRow = Compare(reports), 1
		} else {
			found = append(found, changedTotals(last, reports)...)
			suspected = both(suspected, Compare(reports))
			inRow++
		}
		last = reports
		if len(suspected) == 0 || inRow >= opt.Rounds {
			return result(append(found, suspected...), asked, reports), nil
		}
		select {
		case <-time.After(opt.Every):
		case <-ctx.Done():
			return nil, fmt.Errorf("no result after %d rounds: %w", asked, ctx.Err())
		}
	}
}

// whole refuses reports that do not tell everything.
func whole(reports []*wire.CheckReport) error {
	if len(reports) == 0 {
		return errors.New("no model process reported")
	}
	for _, r := range reports {
		if r.Clipped && len(r.Findings) == 0 {
			return fmt.Errorf("%s has more units than a report holds (%d)", r.Model, wire.MaxCheckUnits)
		}
	}
	return nil
}

// inside collects what the processes found in themselves.
func inside(reports []*wire.CheckReport) []wire.Finding {
	var out []wire.Finding
	for _, r := range reports {
		for _, f := range r.Findings {
			out = append(out, wire.Finding{Invariant: f.Invariant, Text: r.Model + ": " + f.Text})
		}
	}
	return out
}

func sameProcesses(a, b []*wire.CheckReport) bool {
	return slices.EqualFunc(a, b, func(x, y *wire.CheckReport) bool { return x.Model == y.Model && x.PID == y.PID })
}

// both keeps what is in a and in b.
func both(a, b []wire.Finding) []wire.Finding {
	return slices.DeleteFunc(a, func(f wire.Finding) bool { return !slices.Contains(b, f) })
}

func result(found []wire.Finding, rounds int, reports []*wire.CheckReport) *Result {
	r := &Result{OK: true, Rounds: rounds, Processes: len(reports)}
	for _, p := range reports {
		r.Units += p.Total
	}
	for _, t := range titles {
		r.Invariants = append(r.Invariants, Invariant{ID: t.id, Title: t.title, OK: true})
	}
	seen := map[wire.Finding]bool{}
	for _, f := range found {
		if seen[f] {
			continue
		}
		seen[f] = true
		i := slices.IndexFunc(r.Invariants, func(v Invariant) bool { return v.ID == f.Invariant })
		if i < 0 { // of a newer process
			i = slices.IndexFunc(r.Invariants, func(v Invariant) bool { return v.ID == Books })
		}
		v := &r.Invariants[i]
		v.OK, r.OK = false, false
		v.Findings = append(v.Findings, f.Text)
	}
	return r
}

// Add puts what a checker found into a report, as far as there is room.
func Add(r *wire.CheckReport, invariant string, errs []error) {
	for _, err := range errs {
		if len(r.Findings) == wire.MaxFindings {
			r.Clipped = true
			return
		}
		text := strings.ReplaceAll(err.Error(), "\n", "; ")
		r.Findings = append(r.Findings, wire.Finding{Invariant: invariant, Text: wire.Clip(text, wire.MaxText)})
	}
}

// Fit bounds a list of units to what a report holds.
func Fit(r *wire.CheckReport, units []wire.UnitEpoch) []wire.UnitEpoch {
	if len(units) > wire.MaxCheckUnits {
		r.Clipped = true
		return units[:wire.MaxCheckUnits]
	}
	return units
}
