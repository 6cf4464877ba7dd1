package timeline

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// Process is one model's part of a trace.
type Process struct {
	Name string
	PID  int
	Recording
}

// event is one entry of the Chrome trace-event format ("Trace Event Format",
// Google, 2016). Times are microseconds; fractions keep the nanoseconds.
type event struct {
	Name string         `json:"name"`
	Ph   string         `json:"ph"`
	Cat  string         `json:"cat,omitempty"`
	TS   float64        `json:"ts"`
	Dur  *float64       `json:"dur,omitempty"`
	PID  int            `json:"pid"`
	TID  int            `json:"tid"`
	Args map[string]any `json:"args,omitempty"`
}

// WriteChrome writes a trace that Perfetto (ui.perfetto.dev) and
// chrome://tracing open. Time begins where the first process began to record.
func WriteChrome(w io.Writer, procs []Process) error {
	var zero time.Time
	for i, p := range procs {
		if i == 0 || p.From.Before(zero) {
			zero = p.From
		}
	}
	out := bufio.NewWriter(w)
	sep := "\n"
	put := func(e event) error {
		b, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("trace: %w", err)
		}
		out.WriteString(sep)
		sep = ",\n"
		_, err = out.Write(b)
		return err
	}
	out.WriteString(`{"displayTimeUnit":"ms","traceEvents":[`)
	for _, p := range procs {
		if err := writeProcess(put, p, zero); err != nil {
			return err
		}
	}
	out.WriteString("\n]}\n")
	return out.Flush()
}

func writeProcess(put func(event) error, p Process, zero time.Time) error {
	if err := put(event{Name: "process_name", Ph: "M", PID: p.PID, Args: map[string]any{"name": p.Name}}); err != nil {
		return err
	}
	tids := map[string]int{}
	for i, track := range tracks(p.Spans) {
		tids[track] = i + 1
		for key, value := range map[string]any{"name": track, "sort_index": i + 1} {
			e := event{Name: "thread_" + key, Ph: "M", PID: p.PID, TID: i + 1, Args: map[string]any{key: value}}
			if err := put(e); err != nil {
				return err
			}
		}
	}
	for _, s := range p.Spans {
		dur := micros(s.End.Sub(s.Start))
		e := event{Name: s.Name, Ph: "X", Cat: s.Category, TS: micros(s.Start.Sub(zero)), Dur: &dur, PID: p.PID, TID: tids[s.Track]}
		e.Args = args(s)
		if err := put(e); err != nil {
			return err
		}
	}
	return nil
}

func args(s Span) map[string]any {
	out := map[string]any{}
	if s.Layer != NoLayer {
		out["layer"] = s.Layer
	}
	if s.ID != 0 {
		out["id"] = s.ID
	}
	switch {
	case s.Category == Step:
		out["tokens"] = s.Bytes
	case s.Bytes != 0:
		out["bytes"] = s.Bytes
	}
	return out
}

// tracks lists the tracks of spans: steps and the engine first, then the
// streams by name.
func tracks(spans []Span) []string {
	var out []string
	seen := map[string]bool{}
	for i := range spans {
		if t := spans[i].Track; !seen[t] {
			seen[t] = true
			out = append(out, t)
		}
	}
	rank := func(t string) string {
		if i := slices.Index([]string{stepTrack, engineTrack}, t); i >= 0 {
			return fmt.Sprint("\x00", i)
		}
		return t
	}
	slices.SortFunc(out, func(a, b string) int {
		if ra, rb := rank(a), rank(b); ra < rb {
			return -1
		}
		return 1
	})
	return out
}

func micros(d time.Duration) float64 { return math.Round(float64(d)) / 1e3 }
