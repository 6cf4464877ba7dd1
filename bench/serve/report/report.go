// Package report holds what a replay of a trace measured, works out percentiles,
// rates and ratios from it, and writes tables, JSON and plots.
//
// Every percentile is exact: it is one of the measured values, taken from all of
// them. Latencies count from when a request was due, not from when it was sent:
// a server that stalls cannot hide it by stalling its clients.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kvlend/kvlend/internal/trace"
)

// CodeOK is the Sample.Code of a whole answer.
const CodeOK = "ok"

// Sample is one request. Times are since the start of the load.
type Sample struct {
	Session string `json:"session"`
	Turn    int    `json:"turn"`
	// Due is when the trace wants the request. Ready is when the generator could
	// send it: Due, or the end of the answer before if that was later. Sent is
	// when it did; Sent-Ready is the generator's own fault.
	Due   time.Duration `json:"due_ns"`
	Ready time.Duration `json:"ready_ns"`
	Sent  time.Duration `json:"sent_ns"` // the first time, if it was repeated
	First time.Duration `json:"first_ns"`
	End   time.Duration `json:"end_ns"`
	// Code is CodeOK, or the error's.
	Code    string `json:"code"`
	Retries int    `json:"retries"`
	Prompt  int    `json:"prompt_tokens"`
	Output  int    `json:"output_tokens"` // that came
	Cached  int    `json:"cached_tokens"`
	Receipt *Tiers `json:"receipt,omitempty"`
}

// TTFT is the time from when the request was due to its first token.
func (s Sample) TTFT() time.Duration { return s.First - s.Due }

// Tiers is a receipt: prompt tokens by where their KV came from, and the
// arbiter's expectations.
type Tiers struct {
	Local       float64 `json:"local"`
	Borrowed    float64 `json:"borrowed"`
	Host        float64 `json:"host"`
	Pool        float64 `json:"pool"`
	Declined    float64 `json:"declined"` // cached, and computed all the same
	PredictedMS float64 `json:"predicted_ms"`
	RecomputeMS float64 `json:"recompute_ms"`
	QueueMS     float64 `json:"queue_ms"`
	PrefillMS   float64 `json:"prefill_ms"`
	Preemptions float64 `json:"preemptions"`
}

func (t *Tiers) add(o *Tiers) {
	t.Local += o.Local
	t.Borrowed += o.Borrowed
	t.Host += o.Host
	t.Pool += o.Pool
	t.Declined += o.Declined
	t.PredictedMS += o.PredictedMS
	t.RecomputeMS += o.RecomputeMS
	t.QueueMS += o.QueueMS
	t.PrefillMS += o.PrefillMS
	t.Preemptions += o.Preemptions
}

// Result is a whole run.
type Result struct {
	Trace string     `json:"trace"`
	Size  trace.Size `json:"size"`
	Cut   trace.Cut  `json:"cut"`
	Model string     `json:"model"`
	Seed  uint64     `json:"seed"`
	// Prompts says of every model with a load what its prompts are made of.
	Prompts map[string]string `json:"prompts"`
	Timing  string            `json:"timing"` // when turns are due
	Configs []Config          `json:"configs"`
	Ratios  []Ratio           `json:"ratios,omitempty"`
	Checks  Checks            `json:"checks"`
	Notes   []string          `json:"notes"`
	// Problems fail the run.
	Problems []string `json:"problems,omitempty"`
}

// Config is one configuration's part, for one model.
type Config struct {
	Name  string `json:"name"`
	Model string `json:"model"`
	// Emulated says that links are paced; Links are they.
	Emulated bool     `json:"emulated_links"`
	Links    []string `json:"links,omitempty"`
	// LinkTimes is how many times as fast the links are as its file says, where
	// several speeds are compared; 0 where not.
	LinkTimes float64 `json:"link_times,omitempty"`
	Rounds    []Round `json:"rounds"`
	// All is over the samples of all rounds.
	All Summary `json:"all"`
}

// Round is one replay.
type Round struct {
	Summary
	Samples []Sample `json:"-"`
}

// Checks is the account of the answers' comparison.
type Checks struct {
	Answers  int `json:"answers"`  // whole ones
	Checked  int `json:"checked"`  // that came with their tokens
	Distinct int `json:"distinct"` // requests among them
	// Repeated answers were to a request that had been answered before.
	Repeated  int `json:"repeated"`
	Reference int `json:"reference"` // distinct ones compared with a plain engine
	// ReferenceBy names the engine; empty: there was none.
	ReferenceBy string   `json:"reference_by,omitempty"`
	Wrong       int      `json:"wrong"`
	Problems    []string `json:"problems,omitempty"` // the first of them
}

// Add adds the account of another model's answers.
func (k *Checks) Add(o *Checks) {
	k.Answers += o.Answers
	k.Checked += o.Checked
	k.Distinct += o.Distinct
	k.Repeated += o.Repeated
	k.Reference += o.Reference
	k.Wrong += o.Wrong
	k.Problems = append(k.Problems, o.Problems...)
	if k.ReferenceBy != "" && o.ReferenceBy != "" {
		k.ReferenceBy += " and "
	}
	k.ReferenceBy += o.ReferenceBy
}

// Fill works out the summaries and ratios from the samples.
func (r *Result) Fill() {
	for i := range r.Configs {
		c := &r.Configs[i]
		var all []Sample
		var wall time.Duration
		for k := range c.Rounds {
			c.Rounds[k].Summary = Summarise(c.Rounds[k].Samples, c.Rounds[k].Wall)
			all = append(all, c.Rounds[k].Samples...)
			wall += c.Rounds[k].Wall
		}
		c.All = Summarise(all, wall)
	}
	r.Ratios = r.ratios()
}

// Err says what fails the run.
func (r *Result) Err() error {
	var errs []string
	if r.Checks.Wrong > 0 {
		errs = append(errs, fmt.Sprintf("%d wrong answers:\n  %s", r.Checks.Wrong, strings.Join(r.Checks.Problems, "\n  ")))
	}
	errs = append(errs, r.Problems...)
	for _, c := range r.Configs {
		if c.All.OK == 0 {
			errs = append(errs, fmt.Sprintf("%s answered none of %d requests (%s)", r.name(&c), c.All.Requests, counts(c.All.Errors)))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return errors.New("serve: " + strings.Join(errs, "\n"))
}

// name is a configuration's, with the model's if it is not the main one.
func (r *Result) name(c *Config) string {
	if c.Model != r.Model {
		return c.Name + ": " + c.Model
	}
	return c.Name
}

// WriteJSON writes the result for machines.
func (r *Result) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteSamples writes every sample as a line of JSON, with its configuration
// and round.
func (r *Result) WriteSamples(w io.Writer) error {
	enc := json.NewEncoder(w)
	for _, c := range r.Configs {
		for k, round := range c.Rounds {
			for i := range round.Samples {
				line := struct {
					Config string `json:"config"`
					Model  string `json:"model"`
					Round  int    `json:"round"`
					*Sample
				}{c.Name, c.Model, k + 1, &round.Samples[i]}
				if err := enc.Encode(line); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
