package chaos

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
)

// Result is what a run saw.
type Result struct {
	Seed     uint64        `json:"seed"`
	Duration time.Duration `json:"duration_ns"`
	Elapsed  time.Duration `json:"elapsed_ns"` // of load and faults
	Fabric   string        `json:"fabric"`
	GPUs     int           `json:"gpus"` // of the fabric cuda
	Emulated bool          `json:"emulated"`
	// Interrupted: what is checked at the end was not.
	Interrupted bool `json:"interrupted,omitempty"`

	Faults   map[string]map[string]int `json:"faults"` // by victim and kind
	Skipped  int                       `json:"faults_skipped"`
	Outcomes map[string]int            `json:"outcomes"`
	Wrong    int                       `json:"wrong"`
	// Borrowed and Redone count right answers out of borrowed memory, and
	// those that had to be computed again in part.
	Borrowed int `json:"borrowed"`
	// Pool counts right answers that began with tokens from disks, where the
	// master has some (Overflow).
	Overflow bool `json:"overflow,omitempty"`
	Pool     int  `json:"pool,omitempty"`
	Redone   int  `json:"redone"`
	// Recovery is the time from the end of a fault to the end of the next
	// right answer of its victim, where no other fault hit it meanwhile.
	Recovery map[string]Recovery `json:"recovery"`
	// Outage is the longest time without an answer, by model.
	Outage map[string]time.Duration `json:"longest_outage_ns"`
	// Fenced is the longest time that any unit of a worker stayed fenced.
	Fenced   map[string]time.Duration `json:"longest_fenced_ns"`
	Notes    []string                 `json:"notes"`
	Problems []string                 `json:"problems"`
	// Timeline is every fault and recovery; Log is what the processes wrote to
	// standard error until the supervisor was killed.
	Timeline []string `json:"timeline"`
	Log      string   `json:"log,omitempty"`
}

// Recovery is the distribution of a victim's times to recover.
type Recovery struct {
	N   int           `json:"n"`
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	Max time.Duration `json:"max_ns"`
}

// Err says what the system did not withstand, with the seed to try it again.
func (r *Result) Err() error {
	if len(r.Problems) == 0 {
		return nil
	}
	more := map[bool]string{true: " --overflow"}[r.Overflow]
	if r.Fabric == "cuda" {
		more += fmt.Sprintf(" --fabric cuda --gpus %d", r.GPUs)
	}
	return fmt.Errorf("chaos: the system failed (--seed %d --duration %v%s):\n  %s", r.Seed, r.Duration, more, strings.Join(r.Problems, "\n  "))
}

// fill takes everything that was counted.
func (r *run) fill(res *Result) {
	w, b := r.watch, r.books
	w.mu.Lock()
	defer w.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	res.Faults, res.Skipped, res.Outage, res.Notes = w.faults, w.skipped, w.outage, w.notes
	res.Timeline, res.Log = w.timeline, r.log
	res.Outcomes, res.Recovery, res.Fenced = map[string]int{}, map[string]Recovery{}, map[string]time.Duration{}
	for o, n := range b.outcomes {
		res.Outcomes[string(o)] = n
	}
	res.Wrong, res.Borrowed, res.Redone, res.Problems = b.outcomes[wrong], b.borrowed, b.redone, b.problems
	res.Pool = b.pool
	for name, v := range w.state {
		res.Recovery[name] = recovery(v.took)
	}
	for name, f := range w.fenced {
		res.Fenced[name] = f.longest
	}
}

func recovery(took []time.Duration) Recovery {
	if len(took) == 0 {
		return Recovery{}
	}
	slices.Sort(took)
	at := func(q int) time.Duration { return took[(len(took)*q+99)/100-1] }
	return Recovery{N: len(took), P50: at(50), P99: at(99), Max: took[len(took)-1]}
}

// WriteJSON writes the result for machines.
func (r *Result) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteTable writes the result for people.
func (r *Result) WriteTable(w io.Writer) error {
	var b strings.Builder
	on := ""
	if r.Fabric == "cuda" {
		on = fmt.Sprintf(", KV on %d GPU(s)%s", r.GPUs, map[bool]string{true: " EMULATED by the fake driver"}[r.Emulated])
	}
	fmt.Fprintf(&b, "seed %d, %v under attack%s\n\n%s\n\n%s\n\n%s\n", r.Seed, r.Elapsed.Round(time.Second), on,
		r.faultTable(), r.outcomeTable(), r.modelTable())
	fmt.Fprintf(&b, "\n%d right answers came out of borrowed memory, %d were computed again in part\n", r.Borrowed, r.Redone)
	if r.Overflow {
		fmt.Fprintf(&b, "%d right answers began with tokens from the disks\n", r.Pool)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "%s\n", n)
	}
	if len(r.Problems) == 0 {
		verdict := "no wrong answer, no lost unit, nothing hung, nothing left behind\n"
		if r.Interrupted {
			verdict = "no wrong answer until the interruption; lost units, and what was left behind, were not looked for\n"
		}
		b.WriteString(verdict)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func newTable(header ...any) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = 0 // as written
	t.AppendHeader(table.Row(header))
	return t
}

func round(d time.Duration) string { return d.Round(time.Millisecond).String() }

func (r *Result) faultTable() string {
	header := []any{"victim"}
	for _, k := range kinds {
		header = append(header, k)
	}
	t := newTable(append(header, "clean recoveries", "P50", "P99", "max")...)
	for _, v := range victims {
		row := table.Row{v}
		for _, k := range kinds {
			row = append(row, r.Faults[v][k])
		}
		rec := r.Recovery[v]
		t.AppendRow(append(row, rec.N, round(rec.P50), round(rec.P99), round(rec.Max)))
	}
	return t.Render()
}

func (r *Result) outcomeTable() string {
	t := newTable("requests", "number")
	for _, o := range slices.Sorted(maps.Keys(r.Outcomes)) {
		t.AppendRow(table.Row{o, r.Outcomes[o]})
	}
	t.AppendRow(table.Row{"wrong answers", r.Wrong})
	return t.Render()
}

func (r *Result) modelTable() string {
	t := newTable("model", "longest outage", "longest fenced")
	for _, m := range models {
		fenced := "-"
		if d, ok := r.Fenced[m]; ok {
			fenced = round(d)
		}
		t.AppendRow(table.Row{m, round(r.Outage[m]), fenced})
	}
	return t.Render()
}
