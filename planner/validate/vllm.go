package validate

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

//go:embed logs/*.jsonl.gz
var logs embed.FS

// Request is one line of a vLLM request log. Times are in seconds; arrival is
// by the wall clock, the others by the engine's monotonic one.
type Request struct {
	ID         string  `json:"request_id"`
	Input      int     `json:"input_toks"`
	Output     int     `json:"output_toks"`
	Arrival    float64 `json:"arrival_time"`
	Queued     float64 `json:"queued_ts"`
	Scheduled  float64 `json:"scheduled_ts"`
	FirstToken float64 `json:"first_token_ts"`
	LastToken  float64 `json:"last_token_ts"`
}

// ParseLog reads a request log, one JSON object in a line, and returns the
// requests by arrival, with all times relative to the first request's: it found
// the engine idle, so that its arrival and its queueing are one moment.
func ParseLog(r io.Reader) ([]Request, error) {
	var out []Request
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for line := 1; in.Scan(); line++ {
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue
		}
		var q Request
		dec := json.NewDecoder(bytes.NewReader(in.Bytes()))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&q); err != nil {
			return nil, fmt.Errorf("request log: line %d: %w", line, err)
		}
		switch {
		case q.Input < 1 || q.Output < 1 || q.Input > 1<<24 || q.Output > 1<<24:
			return nil, fmt.Errorf("request log: line %d: %d input and %d output tokens, want 1 to %d of each", line, q.Input, q.Output, 1<<24)
		case !(q.Queued <= q.Scheduled && q.Scheduled <= q.FirstToken && q.FirstToken <= q.LastToken):
			return nil, fmt.Errorf("request log: line %d: times are not in the order queued_ts, scheduled_ts, first_token_ts, last_token_ts", line)
		}
		out = append(out, q)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("request log: %w", err)
	}
	if len(out) == 0 {
		return nil, errors.New("request log: no requests")
	}
	slices.SortStableFunc(out, func(a, b Request) int {
		switch {
		case a.Arrival < b.Arrival:
			return -1
		case a.Arrival > b.Arrival:
			return 1
		}
		return 0
	})
	wall, engine := out[0].Arrival, out[0].Queued
	for i := range out {
		q := &out[i]
		q.Arrival -= wall
		q.Queued -= engine
		q.Scheduled -= engine
		q.FirstToken -= engine
		q.LastToken -= engine
	}
	return out, nil
}

func readLog(name string) ([]Request, error) {
	f, err := logs.Open("logs/" + name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	out, err := ParseLog(z)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return out, nil
}

// Latency is what a client sees of one request.
type Latency struct {
	TTFT float64 // seconds from arrival to the first token
	TPOT float64 // seconds per further token; 0 with a single one
}

// measured are the latencies that a log shows.
func measured(log []Request) []Latency {
	out := make([]Latency, len(log))
	for i, q := range log {
		out[i] = latency(q.Arrival, q.FirstToken, q.LastToken, q.Output)
	}
	return out
}

func latency(arrival, first, last float64, output int) Latency {
	l := Latency{TTFT: first - arrival}
	if output > 1 {
		l.TPOT = (last - first) / float64(output-1)
	}
	return l
}

// atOnce is how many requests of a log run at the same time, at most.
func atOnce(log []Request) int {
	type event struct {
		at float64
		by int
	}
	var events []event
	for _, q := range log {
		events = append(events, event{q.Scheduled, 1}, event{q.LastToken, -1})
	}
	slices.SortFunc(events, func(a, b event) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return a.by - b.by // who leaves makes room first
	})
	now, most := 0, 0
	for _, e := range events {
		now += e.by
		most = max(most, now)
	}
	return most
}
