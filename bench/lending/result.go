package lending

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jedib0t/go-pretty/v6/table"
)

// Result is what a run measured.
type Result struct {
	Units  int    `json:"units"` // that change hands at a time
	Rounds int    `json:"rounds"`
	Fabric string `json:"fabric"`
	// Emulated: the fabric's links or its driver are.
	Emulated bool  `json:"emulated"`
	Rows     []Row `json:"rows"`
}

// Row is one operation with one number of units held of each lender.
type Row struct {
	Held      int           `json:"held"`
	Operation string        `json:"operation"`
	N         int64         `json:"n"`
	P50       time.Duration `json:"p50_ns"`
	P90       time.Duration `json:"p90_ns"`
	P99       time.Duration `json:"p99_ns"`
	Max       time.Duration `json:"max_ns"`
	// Trips50 and Trips99 are P50 and P99 in round trips: those of the same
	// percentile in the same run.
	Trips50 float64 `json:"p50_round_trips"`
	Trips99 float64 `json:"p99_round_trips"`
}

func (r *Result) add(held int, s samples) {
	trip := s[roundTrip]
	for _, op := range operations {
		h := s[op]
		if h == nil {
			continue
		}
		at := func(h *hdrhistogram.Histogram, q float64) time.Duration { return time.Duration(h.ValueAtQuantile(q)) }
		r.Rows = append(r.Rows, Row{
			Held: held, Operation: op, N: h.TotalCount(),
			P50: at(h, 50), P90: at(h, 90), P99: at(h, 99), Max: time.Duration(h.Max()),
			Trips50: float64(at(h, 50)) / float64(at(trip, 50)), Trips99: float64(at(h, 99)) / float64(at(trip, 99)),
		})
	}
}

// row finds a row; nil if it was not measured.
func (r *Result) row(held int, op string) *Row {
	for i := range r.Rows {
		if r.Rows[i].Held == held && r.Rows[i].Operation == op {
			return &r.Rows[i]
		}
	}
	return nil
}

// Growth is how much more an operation's P50 takes with the most units held
// than with the fewest.
func (r *Result) Growth(op string) float64 {
	few, many := r.row(r.Rows[0].Held, op), r.row(r.Rows[len(r.Rows)-1].Held, op)
	if few == nil || many == nil {
		return 0
	}
	return float64(many.P50) / float64(few.P50)
}

// WriteJSON writes the result for machines.
func (r *Result) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteTable writes the result for people.
func (r *Result) WriteTable(w io.Writer) error {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = 0 // as written
	t.AppendHeader(table.Row{"units held", "operation", "n", "P50", "P90", "P99", "max", "P50 in round trips", "P99 in round trips"})
	last := 0
	for _, x := range r.Rows {
		if last != 0 && last != x.Held {
			t.AppendSeparator()
		}
		last = x.Held
		t.AppendRow(table.Row{x.Held, x.Operation, x.N, us(x.P50), us(x.P90), us(x.P99), us(x.Max),
			fmt.Sprintf("%.1f", x.Trips50), fmt.Sprintf("%.1f", x.Trips99)})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "fabric %s%s; %d units change hands at a time; units held are those of each of two lenders\n\n%s\n\n",
		r.Fabric, map[bool]string{true: ", EMULATED by the fake driver"}[r.Emulated], r.Units, t.Render())
	r.writeAims(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func us(d time.Duration) string { return d.Round(time.Microsecond).String() }

// writeAims compares with what the project aims at.
func (r *Result) writeAims(b *strings.Builder) {
	say := func(ok bool, format string, args ...any) {
		word := "met   "
		if !ok {
			word = "MISSED"
		}
		fmt.Fprintf(b, "%s  %s\n", word, fmt.Sprintf(format, args...))
	}
	seen := 0
	for _, x := range r.Rows {
		if x.Held == seen {
			continue
		}
		seen = x.Held
		g, i, u, step := r.row(seen, grant), r.row(seen, idle), r.row(seen, inUse), r.row(seen, stepTime)
		say(g.Trips99 < 3, "%d held: grant P99 is %.1f round trips (aim: less than 3)", seen, g.Trips99)
		say(i.P99 < 5*time.Millisecond, "%d held: reclaim of idle units P99 is %s (aim: less than 5ms)", seen, us(i.P99))
		say(u.P99 < step.P50+20*time.Millisecond, "%d held: reclaim of units in use P99 is %s, a step is %s (aim: less than a step and 20ms)",
			seen, us(u.P99), us(step.P50))
	}
	for _, op := range []string{grant, idle, cold, afterStep} {
		fmt.Fprintf(b, "growth of '%s' from the fewest to the most units held: P50 x%.2f\n", strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(op), "of it, ")), r.Growth(op))
	}
}
