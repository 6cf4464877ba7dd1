package sim

import (
	"encoding/json"
	"time"

	"github.com/kvlend/kvlend/internal/quantile"
	"github.com/kvlend/kvlend/scheduler"
)

// Answers is the account of one load's requests. Its size does not depend on how
// many there are.
type Answers struct {
	Model    string            `json:"model"`
	Answered int               `json:"answered"`
	Unsent   int               `json:"unsent,omitempty"` // turns that were due too late
	Refused  map[string]int    `json:"refused,omitempty"`
	Reasons  map[string]string `json:"reasons,omitempty"` // the first of each kind
	Prompt   int64             `json:"prompt_tokens"`
	Output   int64             `json:"output_tokens"`
	Tiers    Tiers             `json:"tiers"` // of the prompts' tokens
	Preempts int               `json:"preemptions"`
	End      time.Duration     `json:"end_ns"` // of the last answer
	First    Distribution      `json:"ttft_first_turns"`
	Later    Distribution      `json:"ttft_later_turns"`
	All      Distribution      `json:"ttft"`
	Token    Distribution      `json:"time_per_token"` // after the first, mean of a request
	Whole    Distribution      `json:"whole_answer"`
	Queue    Distribution      `json:"queue"`
	Worse    int               `json:"slower_than_recompute"` // predicted, by the arbiter's own account
	Waiting  Series            `json:"unanswered"`            // requests that were sent and not yet answered
}

// Tiers counts prompt tokens by where their KV came from.
type Tiers struct {
	Computed int64 `json:"computed"`
	Local    int64 `json:"local"`
	Borrowed int64 `json:"borrowed"`
	Host     int64 `json:"host"`
	Pool     int64 `json:"pool"`
	// Declined, a part of Computed, was cached.
	Declined int64 `json:"declined"`
}

// Distribution of durations, in seconds.
type Distribution struct{ quantile.Sketch }

// MarshalJSON writes count, mean and percentiles, in seconds.
func (d *Distribution) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Count uint64  `json:"count"`
		Mean  float64 `json:"mean_s"`
		P50   float64 `json:"p50_s"`
		P90   float64 `json:"p90_s"`
		P99   float64 `json:"p99_s"`
		Max   float64 `json:"max_s"`
	}{d.Count(), d.Mean(), d.Quantile(0.5), d.Quantile(0.9), d.Quantile(0.99), d.Max()})
}

// NewAnswers is an empty account.
func NewAnswers(model string) *Answers {
	return &Answers{Model: model, Refused: map[string]int{}, Reasons: map[string]string{}}
}

// Merge adds another account, of other requests. Waiting stays as it is.
func (a *Answers) Merge(o *Answers) {
	a.Answered += o.Answered
	a.Unsent += o.Unsent
	for code, n := range o.Refused {
		a.Refused[code] += n
		if a.Reasons[code] == "" {
			a.Reasons[code] = o.Reasons[code]
		}
	}
	a.Prompt += o.Prompt
	a.Output += o.Output
	a.Preempts += o.Preempts
	a.Worse += o.Worse
	a.End = max(a.End, o.End)
	t, u := &a.Tiers, &o.Tiers
	t.Computed += u.Computed
	t.Local += u.Local
	t.Borrowed += u.Borrowed
	t.Host += u.Host
	t.Pool += u.Pool
	t.Declined += u.Declined
	for _, d := range [][2]*Distribution{{&a.First, &o.First}, {&a.Later, &o.Later}, {&a.All, &o.All}, {&a.Token, &o.Token}, {&a.Whole, &o.Whole}, {&a.Queue, &o.Queue}} {
		d[0].Merge(&d[1].Sketch)
	}
}

// refuse counts a request that was not answered, and keeps the first reason of
// each kind.
func (a *Answers) refuse(code string, err error) {
	if a.Refused[code]++; a.Refused[code] == 1 {
		a.Reasons[code] = err.Error()
	}
}

// add counts an answer.
func (a *Answers) add(turn int, due, first, end time.Duration, prompt, output int, u *scheduler.Usage) {
	a.Answered++
	a.Prompt += int64(prompt)
	a.Output += int64(output)
	a.Preempts += u.Preemptions
	a.End = max(a.End, end)
	r := &u.Receipt
	t := &a.Tiers
	t.Local += int64(r.Local)
	t.Borrowed += int64(r.Borrowed)
	t.Host += int64(r.Host)
	t.Pool += int64(r.Pool)
	t.Declined += int64(r.Declined)
	t.Computed += int64(prompt - r.Local - r.Borrowed - r.Host - r.Pool)
	if r.RecomputeMS > 0 && r.PredictedMS > r.RecomputeMS {
		a.Worse++
	}
	ttft := (first - due).Seconds()
	a.All.Add(ttft)
	if turn == 0 {
		a.First.Add(ttft)
	} else {
		a.Later.Add(ttft)
	}
	a.Whole.Add((end - due).Seconds())
	a.Queue.Add(u.QueueMS / 1e3)
	if output > 1 {
		a.Token.Add((end - first).Seconds() / float64(output-1))
	}
}
