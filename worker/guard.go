package worker

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/scheduler"
)

const (
	// guardWindow is how many steps of a kind count.
	guardWindow = 256
	// guardLeast steps of a kind are needed on both sides of a comparison.
	guardLeast = 64
	// guardJudge is how many steps pass between two judgements.
	guardJudge = 32
	// coolDown is how long nothing is lent after lending has hurt, twice as long
	// each time it hurts again, at most maxCoolDown.
	coolDown    = 30 * time.Second
	maxCoolDown = 8 * coolDown
	// calmShare is the part of the limit below which lending goes on.
	calmShare = 0.5
)

// guard compares a worker's steps while units are lent with those while none
// are: prompts, which make up the time to the first token, apart from decoding,
// which is the time per token. What a step should take it learns from steps
// while nothing is lent, so that the two sides need not have done equal work.
// If lending slows the worker down by more than the limit, it backs off until
// the figure has come down to a part of it.
type guard struct {
	limit float64 // of the slowdown, as a share; 0: never backs off

	model *scheduler.CostModel
	kinds [2]struct{ with, without window } // by stepKind
	steps int                               // while units are lent, since the last judgement

	backoff  time.Duration // until then nothing is lent; 0: lending goes on
	long     time.Duration // of the last back-off
	why      string
	backoffs uint64
}

type stepKind int

const (
	prefillStep stepKind = iota
	decodeStep
)

func (k stepKind) String() string { return [...]string{"computing prompts", "decoding"}[k] }

// sample is a measured step.
type sample struct {
	ratio   float64 // measured over expected
	perUnit float64 // milliseconds per token of a prompt, or per step of decoding
}

// window are the last steps of one kind.
type window struct {
	samples []sample
	next    int
}

func (w *window) add(s sample) {
	if len(w.samples) < guardWindow {
		w.samples = append(w.samples, s)
		return
	}
	w.samples[w.next] = s
	w.next = (w.next + 1) % guardWindow
}

func (w *window) clear() { w.samples, w.next = w.samples[:0], 0 }

// median is that of what get picks; 0 without samples. Medians, since a step may
// be late for many reasons.
func (w *window) median(get func(sample) float64) float64 {
	if len(w.samples) == 0 {
		return 0
	}
	v := make([]float64, len(w.samples))
	for i, s := range w.samples {
		v[i] = get(s)
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func newGuard(limit float64) *guard {
	return &guard{limit: limit, model: scheduler.NewCostModel(1)}
}

// observe takes in a step.
func (g *guard) observe(now time.Duration, kind stepKind, w scheduler.Work, lent bool, took time.Duration) {
	if !lent && !g.model.Observe(w, took) {
		return
	}
	expected := g.model.Step(w)
	if expected <= 0 || took <= 0 {
		return
	}
	s := sample{ratio: float64(took) / float64(expected), perUnit: inMS(took)}
	if kind == prefillStep {
		s.perUnit /= float64(w.Tokens)
	}
	k := &g.kinds[kind]
	if !lent {
		k.without.add(s)
		return
	}
	k.with.add(s)
	if g.steps++; g.steps >= guardJudge {
		g.steps = 0
		g.judge(now)
	}
}

// slowdown is how much slower steps of a kind are while units are lent, as a
// share; false: too few were seen.
func (g *guard) slowdown(kind stepKind) (float64, bool) {
	k := &g.kinds[kind]
	if len(k.with.samples) < guardLeast || len(k.without.samples) < guardLeast {
		return 0, false
	}
	ratio := func(s sample) float64 { return s.ratio }
	with, without := k.with.median(ratio), k.without.median(ratio)
	return with/without - 1, true
}

// worst is the larger of the known slowdowns; false: none is known.
func (g *guard) worst() (kind stepKind, s float64, known bool) {
	for _, k := range [...]stepKind{prefillStep, decodeStep} {
		if v, ok := g.slowdown(k); ok && (!known || v > s) {
			kind, s, known = k, v, true
		}
	}
	return kind, s, known
}

// judge backs off if lending hurts, and lengthens a back-off that did not help.
func (g *guard) judge(now time.Duration) {
	kind, s, known := g.worst()
	switch {
	case !known || g.limit == 0:
		return
	case s <= calmShare*g.limit:
		g.long = 0
		return
	case g.backsOff(now):
		g.backoff = max(g.backoff, now+coolDown)
		return
	case s <= g.limit:
		return
	}
	g.backoffs++
	g.long = min(max(coolDown, 2*g.long), maxCoolDown)
	g.backoff = now + g.long
	g.why = fmt.Sprintf("nothing is lent for now: %s was %.0f%% slower while units were lent, the limit is %.0f%%", kind, 100*s, 100*g.limit)
	for i := range g.kinds {
		g.kinds[i].with.clear() // what counts is what comes now
	}
}

// backsOff reports whether nothing may be lent.
func (g *guard) backsOff(now time.Duration) bool {
	if now >= g.backoff {
		g.backoff = 0
	}
	return g.backoff > 0
}

// describe fills in a status.
func (g *guard) describe(now time.Duration, st *wire.Status) {
	in := wire.Interference{BackingOff: g.backsOff(now), Backoffs: g.backoffs}
	perUnit := func(s sample) float64 { return s.perUnit }
	for i, out := range [...]*wire.StepTimes{&in.Prefill, &in.Decode} {
		k := &g.kinds[i]
		out.WithSteps, out.WithoutSteps = len(k.with.samples), len(k.without.samples)
		out.WithMS, out.WithoutMS = k.with.median(perUnit), k.without.median(perUnit)
		if s, ok := g.slowdown(stepKind(i)); ok {
			out.Ratio = 1 + s
		}
	}
	st.Interference = in
	if in.BackingOff {
		st.Degraded = append(st.Degraded, wire.Clip(g.why, wire.MaxText))
	}
}
