// Package overlap measures how much of the time that borrowed KV travels is
// hidden behind computation: the real engine and the real layer stream cache
// over an emulated link, against what the pipeline allows at best.
//
// # The link
//
// It is paced, so that its speed against the engine's is what an accelerator
// has. SwiftCache's Fig. 1 gives 75 ms to load 5K tokens of history over PCIe
// and 27 ms to compute 256 new ones; its NVLink is 400:32 times faster. Those
// ratios are kept: the engine's own time for that pass sets the bandwidth.
//
// # What is compared
//
// Every pass notes what each layer computed for and how long it waited. The
// bound replays the pass with these times and the link's nominal speed (see
// bound.go): what it must wait at least. The share hidden is the part of the
// loads that did not stall the pass, over the part that need not have. Cases
// are interleaved, medians over the rounds are reported, and every pass's
// logits must be bit-equal to those over local KV. A pass during which threads
// were runnable without a core is measured again.
//
// The engine computes on one thread: an emulated link copies with a core of
// the host, which a real one does not.
package overlap

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/engine"
)

// The ways in which history can come.
const (
	OneBuffer  = "1 buffer"
	TwoBuffers = "2 buffers"
	Promoted   = "promoted"
	Mixed      = "mixed" // half streamed with two buffers, half promoted
)

// Link is an emulated link.
type Link struct {
	Name string `json:"name"`
	// Speed is relative to NVLink.
	Speed float64 `json:"speed"`
	// BytesPerSec is what that comes to on this machine.
	BytesPerSec float64 `json:"bytes_per_second"`
}

// SwiftCache Fig. 1: loading figTokens of history over PCIe takes figLoad times
// as long as computing figNew tokens. Its NVLink is overPCIe times faster.
const (
	figTokens = 5120
	figNew    = 256
	figLoad   = 75.0 / 27.0
	overPCIe  = 400.0 / 32.0
	latency   = 10 * time.Microsecond
)

// Options say what to measure. Zero fields have the defaults named.
type Options struct {
	Model    *engine.Config // random weights; Shape
	History  []int          // tokens, whole blocks of 16; 1024, 2048, 4096
	New      []int          // tokens; 16, 64, 256
	Links    []Link         // NVLink and PCIe
	Rounds   int            // 3
	Tries    int            // a pass that had to wait for a core is repeated, so often at most in all; 5
	Progress func(string)   // may be nil
}

// Shape is Qwen3-0.6B, a quarter as wide, with 12 layers.
func Shape() *engine.Config {
	return &engine.Config{Name: "qwen3-reduced", Arch: engine.ArchQwen3, Layers: 12, Hidden: 512, Heads: 8, KVHeads: 4,
		HeadDim: 64, FFN: 1536, Vocab: 4096, MaxContext: 40960, NormEps: 1e-6, QKNorm: true, TiedEmbed: true,
		Rope: engine.RopeConfig{Theta: 1e6}}
}

// Result is a run of the benchmark.
type Result struct {
	Emulated bool    `json:"emulated"` // always: the links are
	Model    string  `json:"model"`
	Layers   int     `json:"layers"`
	KVToken  int64   `json:"kv_bytes_per_token"`
	Rounds   int     `json:"rounds"`
	Compute  float64 `json:"compute_seconds"` // 256 tokens behind 5120 local ones: what sets the links
	Links    []Link  `json:"links"`
	Cells    []*Cell `json:"cells"`
	// Again counts passes that were measured again because the process had
	// to wait for a core, Disturbed those that are kept all the same.
	Again     int     `json:"again"`
	Disturbed int     `json:"disturbed"`
	Seconds   float64 `json:"seconds"`
}

// Cell is one case: its medians.
type Cell struct {
	Link    string `json:"link"`
	History int    `json:"history"`
	New     int    `json:"new"`
	Way     string `json:"way"`
	// Queued: the loads began while the request queued, for as long as those
	// of the first layer take.
	Queued bool `json:"queued"`

	Step    float64 `json:"step_seconds"`  // with stalls
	Load    float64 `json:"load_seconds"`  // all loads on an idle link
	Stall   float64 `json:"stall_seconds"` // measured
	Bound   float64 `json:"bound_seconds"` // the least
	Hidden  float64 `json:"hidden"`        // share of what can be hidden; 1 where nothing can
	Compute float64 `json:"slowdown"`      // computing beside the copies over computing alone

	runs []run
}

// run is one pass of a cell.
type run struct{ step, load, stall, bound, compute, waited float64 }

// disturbance is the share of a pass that its threads may wait for a core.
const disturbance = 0.005

// calm measures until a pass had its cores, and keeps the best of all tries.
func (r *Result) calm(tries int, measure func() (run, error), c *Cell) error {
	got, again, err := calmest(tries, measure, func(r run) float64 { return r.waited / r.step })
	if err != nil {
		return err
	}
	r.Again += again
	if got.waited/got.step > disturbance {
		r.Disturbed++
	}
	c.runs = append(c.runs, got)
	return nil
}

// calmest measures until one had to wait for a core for no more than disturbance
// of its time, at most tries times, and returns the best and how many were
// measured again.
func calmest[T any](tries int, measure func() (T, error), waited func(T) float64) (best T, again int, err error) {
	for again = range tries {
		got, err := measure()
		if err != nil {
			return got, again, err
		}
		if again == 0 || waited(got) < waited(best) {
			best = got
		}
		if waited(best) <= disturbance {
			break
		}
	}
	return best, again, nil
}

func (o *Options) defaults() error {
	if o.Model == nil {
		o.Model = Shape()
	}
	if o.History == nil {
		o.History = []int{1024, 2048, 4096}
	}
	if o.New == nil {
		o.New = []int{16, 64, 256}
	}
	if o.Links == nil {
		o.Links = []Link{{Name: "NVLink", Speed: 1}, {Name: "PCIe", Speed: 1 / overPCIe}}
	}
	o.Rounds, o.Tries = cmp.Or(o.Rounds, 3), cmp.Or(o.Tries, 5)
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	switch {
	case o.Rounds < 1 || o.Tries < 1:
		return fmt.Errorf("overlap: Rounds is %d and Tries %d, want at least 1", o.Rounds, o.Tries)
	case len(o.History) == 0 || slices.Min(o.History) < blockTokens || slices.ContainsFunc(o.History, func(h int) bool { return h%blockTokens != 0 }):
		return fmt.Errorf("overlap: History is %v, want multiples of %d", o.History, blockTokens)
	case len(o.New) == 0 || slices.Min(o.New) < 1:
		return fmt.Errorf("overlap: New is %v, want lengths above 0", o.New)
	case slices.ContainsFunc(o.Links, func(l Link) bool { return l.Speed <= 0 }):
		return fmt.Errorf("overlap: Links are %v, want speeds above 0", o.Links)
	}
	return nil
}

// Run measures.
func Run(ctx context.Context, opt Options) (*Result, error) {
	if err := opt.defaults(); err != nil {
		return nil, err
	}
	began := time.Now()
	opt.Progress("building " + opt.Model.Name)
	w, err := newWorld(&opt)
	if err != nil {
		return nil, err
	}
	defer w.close()
	res := &Result{Emulated: true, Model: opt.Model.Name, Layers: w.layers, KVToken: w.kvToken(), Rounds: opt.Rounds}
	if res.Compute, res.Links, err = w.scale(ctx, opt.Links); err != nil {
		return nil, err
	}
	res.Cells = cells(&opt)
	for round := range opt.Rounds {
		for i, c := range res.Cells {
			opt.Progress(fmt.Sprintf("round %d of %d: case %d of %d", round+1, opt.Rounds, i+1, len(res.Cells)))
			if err := res.calm(opt.Tries, func() (run, error) { return w.measure(ctx, c) }, c); err != nil {
				return nil, fmt.Errorf("overlap: %s, %d tokens behind %d, %s: %w", c.Link, c.New, c.History, c.Way, err)
			}
		}
	}
	for _, c := range res.Cells {
		c.finish()
	}
	res.Seconds = time.Since(began).Seconds()
	return res, nil
}

// scale opens the links at the speeds that this machine's engine gives them. It
// returns those, and the time of the pass that sets them.
func (w *world) scale(ctx context.Context, links []Link) (compute float64, scaled []Link, err error) {
	if compute, err = w.calibrate(ctx); err != nil {
		return 0, nil, err
	}
	perfect := float64(w.kvToken()) * figTokens / (figLoad / overPCIe * compute)
	for _, l := range links {
		l.BytesPerSec = l.Speed * perfect
		scaled = append(scaled, l)
	}
	return compute, scaled, w.openLinks(scaled)
}

// kvToken is how many bytes of KV a token has.
func (w *world) kvToken() int64 { return w.layerBytes * int64(w.layers) / blockTokens }

func cells(opt *Options) []*Cell {
	var out []*Cell
	for _, l := range opt.Links {
		for _, h := range opt.History {
			for _, n := range opt.New {
				for _, way := range []string{OneBuffer, TwoBuffers, Promoted, Mixed} {
					for _, queued := range []bool{false, true} {
						out = append(out, &Cell{Link: l.Name, History: h, New: n, Way: way, Queued: queued})
					}
				}
			}
		}
	}
	return out
}

// finish takes the medians.
func (c *Cell) finish() {
	median := func(f func(run) float64) float64 {
		var list []float64
		for _, r := range c.runs {
			list = append(list, f(r))
		}
		slices.Sort(list)
		return list[len(list)/2]
	}
	c.Step = median(func(r run) float64 { return r.step })
	c.Load = median(func(r run) float64 { return r.load })
	c.Stall = median(func(r run) float64 { return r.stall })
	c.Bound = median(func(r run) float64 { return r.bound })
	c.Compute = median(func(r run) float64 { return r.compute })
	c.Hidden = median(func(r run) float64 {
		if r.load-r.bound <= 0 {
			return 1
		}
		return (r.load - r.stall) / (r.load - r.bound)
	})
}
