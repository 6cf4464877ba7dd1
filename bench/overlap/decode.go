package overlap

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/engine"
)

// Where a batch's history lies, beside OneBuffer and TwoBuffers: all of it is
// streamed in every step.
const (
	Resident     = "resident"        // all in the master's own memory
	MixedAlways  = "mixed, no turns" // half of the sequences each, all in every step
	MixedInTurns = "mixed, in turns" // the scheduler lets streamed ones sit out steps
)

// DecodeOptions say what to measure. Zero fields have the defaults named.
type DecodeOptions struct {
	Model    *engine.Config // random weights; Shape
	History  []int          // tokens of each sequence, whole blocks of 16; 256, 1024, 2048
	Batch    []int          // sequences; 1, 2, 4, 8
	Tokens   int            // of each sequence in a measurement, at least; 16
	Links    []Link         // NVLink
	Rounds   int            // 3
	Tries    int            // a measurement that had to wait for a core is repeated, so often at most in all; 3
	Progress func(string)   // may be nil
}

// DecodeResult is a run of the decode experiment.
type DecodeResult struct {
	Emulated bool          `json:"emulated"` // always: the links are
	Model    string        `json:"model"`
	Layers   int           `json:"layers"`
	KVToken  int64         `json:"kv_bytes_per_token"`
	Rounds   int           `json:"rounds"`
	Tokens   int           `json:"tokens"`
	Compute  float64       `json:"compute_seconds"` // 256 tokens behind 5120 local ones: what sets the links
	Links    []Link        `json:"links"`
	Cells    []*DecodeCell `json:"cells"`
	// Again counts measurements that were repeated because the process had to
	// wait for a core, Disturbed those that are kept all the same.
	Again     int     `json:"again"`
	Disturbed int     `json:"disturbed"`
	Seconds   float64 `json:"seconds"`
}

// DecodeCell is one case: its medians over the rounds. Times are in seconds.
type DecodeCell struct {
	Link    string `json:"link,omitempty"` // none where nothing is streamed
	History int    `json:"history"`
	Batch   int    `json:"batch"`
	Way     string `json:"way"`

	// Stream is how long a step's loads take on an idle link, Step what a step
	// takes; means over the steps, which turns make unequal.
	Stream float64 `json:"stream_seconds"`
	Step   float64 `json:"step_seconds"`
	// Bound is the greater of Stream and a step of the resident batch of the
	// same size. 0 in turns, whose steps are not of that size.
	Bound float64 `json:"bound_seconds"`
	// Least is what the pipeline allows: each step's computing and the stalls
	// that it cannot hide (see bound.go).
	Least float64 `json:"least_seconds"`
	// AtHome and Streamed are the times per output token of the sequences of
	// either kind; 0: there are none. The ratios are to those of the resident
	// batch of the same size.
	AtHome        float64 `json:"at_home_seconds"`
	AtHomeRatio   float64 `json:"at_home_ratio"`
	Streamed      float64 `json:"streamed_seconds"`
	StreamedRatio float64 `json:"streamed_ratio"`
	// Rate is the tokens per second of the whole batch.
	Rate float64 `json:"tokens_per_second"`

	runs []decodeRun
}

// streaming is how many of the cell's sequences are streamed.
func (c *DecodeCell) streaming() int {
	switch c.Way {
	case Resident:
		return 0
	case MixedAlways, MixedInTurns:
		return c.Batch / 2
	}
	return c.Batch
}

func (c *DecodeCell) buffers() int {
	if c.Way == OneBuffer {
		return 1
	}
	return 2
}

// decodeRun is one measurement of a cell.
type decodeRun struct {
	stream, step, least    float64
	atHome, streamed, rate float64
	resident               float64 // per token of the resident batch, of the same round
	took, waited           float64 // the whole measurement, and its threads for a core
}

func (o *DecodeOptions) defaults() error {
	if o.Model == nil {
		o.Model = Shape()
	}
	if o.History == nil {
		o.History = []int{256, 1024, 2048}
	}
	if o.Batch == nil {
		o.Batch = []int{1, 2, 4, 8}
	}
	if o.Links == nil {
		o.Links = []Link{{Name: "NVLink", Speed: 1}}
	}
	o.Rounds, o.Tries, o.Tokens = cmp.Or(o.Rounds, 3), cmp.Or(o.Tries, 3), cmp.Or(o.Tokens, 16)
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	switch {
	case o.Rounds < 1 || o.Tries < 1 || o.Tokens < 1:
		return fmt.Errorf("overlap: Rounds is %d, Tries %d and Tokens %d, want at least 1", o.Rounds, o.Tries, o.Tokens)
	case len(o.History) == 0 || slices.Min(o.History) < blockTokens || slices.ContainsFunc(o.History, func(h int) bool { return h%blockTokens != 0 }):
		return fmt.Errorf("overlap: History is %v, want multiples of %d", o.History, blockTokens)
	case len(o.Batch) == 0 || slices.Min(o.Batch) < 1:
		return fmt.Errorf("overlap: Batch is %v, want sizes above 0", o.Batch)
	case slices.ContainsFunc(o.Links, func(l Link) bool { return l.Speed <= 0 }):
		return fmt.Errorf("overlap: Links are %v, want speeds above 0", o.Links)
	}
	return nil
}

// room is how many new tokens each sequence has memory for: those at home draw
// several while a streamed one draws one.
func (o *DecodeOptions) room() int {
	return (16*(o.Tokens+warmTokens) + blockTokens - 1) / blockTokens * blockTokens
}

// RunDecode measures the time per output token of batches whose history is
// resident, streamed in every step, or mixed, through the real scheduler.
func RunDecode(ctx context.Context, opt DecodeOptions) (*DecodeResult, error) {
	if err := opt.defaults(); err != nil {
		return nil, err
	}
	began := time.Now()
	opt.Progress("building " + opt.Model.Name)
	most := slices.Max(opt.Batch)
	w, err := newWorld(&Options{Model: opt.Model, History: []int{most * slices.Max(opt.History)}, New: []int{most * opt.room()}})
	if err != nil {
		return nil, err
	}
	defer w.close()
	res := &DecodeResult{Emulated: true, Model: opt.Model.Name, Layers: w.layers, KVToken: w.kvToken(), Rounds: opt.Rounds, Tokens: opt.Tokens}
	if res.Compute, res.Links, err = w.scale(ctx, opt.Links); err != nil {
		return nil, err
	}
	res.Cells = decodeCells(&opt)
	d := &decoder{world: w, opt: &opt, expected: map[[2]int][]uint64{}}
	for round := range opt.Rounds {
		resident := 0.0
		for i, c := range res.Cells {
			opt.Progress(fmt.Sprintf("round %d of %d: case %d of %d", round+1, opt.Rounds, i+1, len(res.Cells)))
			got, again, err := calmest(opt.Tries, func() (decodeRun, error) { return d.measure(ctx, c) },
				func(r decodeRun) float64 { return r.waited / r.took })
			if err != nil {
				return nil, fmt.Errorf("overlap: %d sequences behind %d tokens, %s: %w", c.Batch, c.History, c.Way, err)
			}
			res.Again += again
			if got.waited/got.took > disturbance {
				res.Disturbed++
			}
			if c.Way == Resident { // first of its history and batch
				resident = got.atHome
			}
			got.resident = resident
			c.runs = append(c.runs, got)
		}
	}
	for _, c := range res.Cells {
		c.finish()
	}
	res.Seconds = time.Since(began).Seconds()
	return res, nil
}

// decodeCells lists the cases; those of a history and batch follow their
// resident one.
func decodeCells(opt *DecodeOptions) []*DecodeCell {
	var out []*DecodeCell
	for _, h := range opt.History {
		for _, n := range opt.Batch {
			out = append(out, &DecodeCell{History: h, Batch: n, Way: Resident})
			for _, l := range opt.Links {
				ways := []string{OneBuffer, TwoBuffers}
				if n > 1 {
					ways = append(ways, MixedAlways, MixedInTurns)
				}
				for _, way := range ways {
					out = append(out, &DecodeCell{Link: l.Name, History: h, Batch: n, Way: way})
				}
			}
		}
	}
	return out
}

// finish takes the medians.
func (c *DecodeCell) finish() {
	median := func(f func(decodeRun) float64) float64 {
		var list []float64
		for _, r := range c.runs {
			list = append(list, f(r))
		}
		slices.Sort(list)
		return list[len(list)/2]
	}
	c.Stream = median(func(r decodeRun) float64 { return r.stream })
	c.Step = median(func(r decodeRun) float64 { return r.step })
	c.Least = median(func(r decodeRun) float64 { return r.least })
	c.AtHome = median(func(r decodeRun) float64 { return r.atHome })
	c.AtHomeRatio = median(func(r decodeRun) float64 { return r.atHome / r.resident })
	c.Streamed = median(func(r decodeRun) float64 { return r.streamed })
	c.StreamedRatio = median(func(r decodeRun) float64 { return r.streamed / r.resident })
	c.Rate = median(func(r decodeRun) float64 { return r.rate })
	if c.Way != MixedInTurns {
		c.Bound = median(func(r decodeRun) float64 { return max(r.resident, r.stream) })
	}
}
