// Package report replays one load on several configurations with package sim,
// at the same time, and says how they compare: as tables for a terminal, as JSON,
// and as a page with plots that needs nothing but itself.
//
// # The JSON
//
// A Report encodes as it is documented here, and decodes into an equal one.
// Schema counts the changes that a reader has to know of; fields may be added
// without one. Times are in seconds, sizes in bytes, shares from 0 to 1. Equal
// input gives equal output, to the byte: nothing in it depends on the machine
// that simulates, or on how long that took.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Schema of the JSON.
const Schema = 1

// Report is what one load came to on several systems.
type Report struct {
	Schema int    `json:"schema"`
	Kind   string `json:"kind"`  // always "simulated"
	Model  string `json:"model"` // that Trace asks
	Trace  Trace  `json:"trace"`
	Seed   uint64 `json:"seed"`
	Timing string `json:"timing"`
	// Duration: turns due later were not sent; 0: all were.
	Duration float64 `json:"duration_s,omitempty"`
	Machine  string  `json:"machine,omitempty"`
	// Assumptions are what the figures rest on.
	Assumptions []Assumption `json:"assumptions"`
	Warnings    []Warning    `json:"warnings"`
	// Systems in the order in which they were named. Ratios are to the first.
	Systems []System `json:"systems"`
}

// Trace is the load of Report.Model, as it was replayed.
type Trace struct {
	Name         string   `json:"name"`
	Format       string   `json:"format,omitempty"` // "" for synthetic conversations
	Sessions     int      `json:"sessions"`
	Turns        int      `json:"turns"`
	PromptTokens int      `json:"prompt_tokens"`
	OutputTokens int      `json:"output_tokens"`
	LongestTurn  int      `json:"longest_turn_tokens"`
	MaxContext   int      `json:"max_context_tokens"` // longer turns were cut
	CutSessions  int      `json:"sessions_dropped,omitempty"`
	CutTurns     int      `json:"turns_cut,omitempty"`
	Notes        []string `json:"notes,omitempty"`
}

// Assumption is one of them: of what, and what.
type Assumption struct {
	Of   string `json:"of"`
	What string `json:"what"`
}

// Warning is what a planner should know before believing or buying.
type Warning struct {
	System string `json:"system,omitempty"` // "": all
	Kind   string `json:"kind"`             // one of the Warn constants
	Text   string `json:"text"`
}

// Kinds of warnings.
const (
	WarnOverload  = "overloaded"
	WarnBusy      = "always_busy"
	WarnRefused   = "refused"
	WarnCut       = "does_not_fit"
	WarnLink      = "link_saturated"
	WarnDeclined  = "hits_declined"
	WarnSlower    = "slower_than_recompute"
	WarnUnlent    = "nothing_lent"
	WarnFenced    = "units_fenced"
	WarnGuess     = "not_calibrated"
	WarnFew       = "few_answers"
	WarnDisturbed = "workers_slowed"
	WarnWear      = "disk_wears_out"
)

// System is what happened on one configuration.
type System struct {
	Name    string   `json:"name"`
	Config  string   `json:"config"` // YAML, without secrets
	Seconds float64  `json:"seconds"`
	Loads   []Load   `json:"loads"` // that of Report.Model first
	Lent    Series   `json:"lent_bytes"`
	Control Control  `json:"control"`
	Models  []Model  `json:"models"`
	Devices []Device `json:"devices"`
	Links   []Link   `json:"links"`
	// Disks are those of overflow pools.
	Disks []Disk `json:"disks,omitempty"`
}

// Load is what one model was asked and how it answered.
type Load struct {
	Model        string    `json:"model"`
	Answered     int       `json:"answered"`
	Unsent       int       `json:"unsent,omitempty"`
	Refused      []Refusal `json:"refused,omitempty"` // by code
	PromptTokens int64     `json:"prompt_tokens"`
	OutputTokens int64     `json:"output_tokens"`
	Tiers        Tiers     `json:"tiers"`
	Preemptions  int       `json:"preemptions"`
	End          float64   `json:"end_s"` // of the last answer
	// Slower answers were predicted to come later with the cache than without.
	Slower  int    `json:"slower_than_recompute"`
	First   Dist   `json:"ttft_first_turns_s"`
	Later   Dist   `json:"ttft_later_turns_s"`
	TTFT    Dist   `json:"ttft_s"`
	Token   Dist   `json:"time_per_token_s"` // a request's mean after its first token
	Whole   Dist   `json:"whole_answer_s"`
	Queue   Dist   `json:"queue_s"`
	Waiting Series `json:"unanswered"` // requests that were sent and not yet answered
}

// Refusal counts requests that were not answered.
type Refusal struct {
	Code   string `json:"code"` // too_long, overloaded or failed
	Count  int    `json:"count"`
	Reason string `json:"first_reason"`
}

// Tiers are shares of the prompts' tokens, by where their KV came from. All but
// Declined add up to 1.
type Tiers struct {
	Computed float64 `json:"computed"`
	Local    float64 `json:"local"`
	Borrowed float64 `json:"borrowed"`
	Host     float64 `json:"host"`
	Pool     float64 `json:"pool"`
	// Declined, a part of Computed, was cached, and computing was faster.
	Declined float64 `json:"declined"`
}

// Dist is a distribution.
type Dist struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	// CDF are points of the distribution function: value, share not above it.
	CDF [][2]float64 `json:"cdf,omitempty"`
}

// Series is a quantity over time: means over slices of equal length.
type Series struct {
	Slice  float64   `json:"slice_s"`
	Values []float64 `json:"values"`
	Mean   float64   `json:"mean"`
	Most   float64   `json:"most"`
}

// Control is what the lending protocol did.
type Control struct {
	Messages  uint64  `json:"messages"`
	PerSecond float64 `json:"messages_per_s"`
	Bytes     uint64  `json:"bytes"`
	Granted   uint64  `json:"granted_units"`
	Denied    uint64  `json:"denials"`
	Reclaims  uint64  `json:"reclaims"`
	Reclaimed uint64  `json:"reclaimed_units"`
	Fenced    uint64  `json:"fenced_units"`
}

// Model is what one model's process did.
type Model struct {
	Name   string  `json:"name"`
	Role   string  `json:"role"`
	Device string  `json:"device"`
	Steps  uint64  `json:"steps"`
	Busy   float64 `json:"busy_s"`
	// Slowed is the part of Busy that others' traffic in its device's memory cost.
	Slowed  float64           `json:"slowed_s"`
	Loaded  int64             `json:"loaded_bytes"`
	Stored  int64             `json:"stored_bytes"`
	Moved   map[string]uint64 `json:"moved_blocks,omitempty"` // by where to
	Evicted uint64            `json:"evicted_sequences"`
}

// Device is what a device that computes did.
type Device struct {
	Name string  `json:"name"`
	Busy float64 `json:"busy_share"`
}

// Link is what one direction of a link carried.
type Link struct {
	From  string  `json:"from"`
	To    string  `json:"to"`
	Bytes int64   `json:"bytes"`
	Busy  float64 `json:"busy_share"`
	Rate  float64 `json:"bytes_per_s"` // while it was busy
}

// Disk is what one device of an overflow pool did.
type Disk struct {
	Name    string `json:"name"`
	Read    int64  `json:"read_bytes"`
	Written int64  `json:"written_bytes"`
	// Years until it is worn out at this rate; 0: nothing was written, or nobody
	// knows how much it can take.
	Years float64 `json:"endurance_years,omitempty"`
}

// main is the load of the model that was asked.
func (s *System) main() *Load { return &s.Loads[0] }

// ErrUnanswered: the first system answered nothing.
var ErrUnanswered = errors.New("nothing was answered")

// Err is ErrUnanswered, with the first reason, if the first system answered
// nothing that Model was asked. Others may: they are there to compare with.
func (r *Report) Err() error {
	l := r.Systems[0].main()
	if l.Answered > 0 {
		return nil
	}
	if len(l.Refused) > 0 {
		return fmt.Errorf("%s: %w: %s", r.Systems[0].Name, ErrUnanswered, l.Refused[0].Reason)
	}
	return fmt.Errorf("%s: %w: no turn was due in time", r.Systems[0].Name, ErrUnanswered)
}

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
