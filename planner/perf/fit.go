package perf

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Sample is one measured step.
type Sample struct {
	Batch    []Seq
	Duration time.Duration
}

// Residuals says how well a fit describes its samples.
type Residuals struct {
	Samples int
	// Relative errors of the fitted model, |predicted/measured - 1|.
	Mean, P50, P90, Max float64
	Bias                float64 // mean of predicted/measured - 1
	// Terms are the parameters, all of them, in the order of Calibration.
	Terms []Term
}

// Term is what the samples say about one parameter.
type Term struct {
	Name  string  // as in Calibration's JSON
	Value float64 // a share, or seconds
	// Error is the standard error relative to the value. 0 where not Determined.
	Error      float64
	Determined bool
	Note       string // why not, or what to mind; may be ""
}

// Undetermined are the terms that the samples say nothing about.
func (r Residuals) Undetermined() []Term {
	return slices.DeleteFunc(slices.Clone(r.Terms), func(t Term) bool { return t.Determined })
}

// The parameters that are fitted, as columns of the problem. Costs per layer
// are not among them: with one model's samples they cannot be told from costs
// per step.
const (
	colStep = iota
	colSeq
	colToken
	colLinear // these four are reciprocals of shares
	colAttention
	colWeights
	colKV
	columns
)

const (
	minSamples = 8
	maxRounds  = 40
	// clipped bounds how much one sample's relative error counts, in units of
	// the median error: an interrupted step does not bend the fit.
	clipped = 3
	// tie is by how much arithmetic must outlast reading to be what binds. Decode
	// does both in proportion, and rounding must not divide its steps in two.
	tie = 1 + 1e-9
	// better is how much less a fit must miss by than one that came before: with
	// less bound by arithmetic in its starting point, or without a cost per token.
	better = 0.99
	// weak is the relative standard error from which on a term is called
	// uncertain.
	weak = 0.5
)

// row is a sample: the seconds that each part takes at the hardware's peaks.
type row struct {
	y                        float64
	seqs, tokens             float64
	linear, read             float64 // all layers
	attention, kv            float64
	headLinear, headRead     float64
	weight                   float64
	linearC, attnC, headComp bool // bound by arithmetic
	serial                   bool // by both
}

// Fit finds the calibration that describes measured steps best: non-negative
// least squares of relative errors, with outliers clipped. Which bound of the
// roofline holds for a sample follows from the parameters and the parameters
// from that, so both are found in turn, from several starting points. Efficiencies
// stay at or below 1. It needs at least 8 samples, and refuses samples that make
// no sense. What the samples cannot determine has a value that they do not
// contradict, and a Term that says so.
func Fit(samples []Sample, s Shape, g GPU) (Calibration, Residuals, error) {
	if err := checkGPU(g); err != nil {
		return Calibration{}, Residuals{}, err
	}
	rows, err := newRows(samples, s, g)
	if err != nil {
		return Calibration{}, Residuals{}, err
	}
	f := solve(rows, 1)
	c := Calibration{
		Linear: f.share(colLinear), Attention: f.share(colAttention), Weights: f.share(colWeights), KV: f.share(colKV),
		Step: seconds(f.x[colStep]), Seq: seconds(f.x[colSeq]), Token: seconds(f.x[colToken]), Serial: f.rows[0].serial,
		Source: fmt.Sprintf("%d measured steps", len(samples)),
	}
	return c, f.residuals(), c.Validate()
}

// FitMachine is Fit for a machine whose peaks nobody knows: it finds these too,
// as the most that the samples show. The GPU's other fields stay empty.
func FitMachine(name string, samples []Sample, s Shape) (GPU, Calibration, Residuals, error) {
	nominal := GPU{Name: name, FLOPS: 1e12, MemoryBandwidth: 1e11}
	rows, err := newRows(samples, s, nominal)
	if err != nil {
		return GPU{}, Calibration{}, Residuals{}, err
	}
	f := solve(rows, 0)
	peak := f.peak(colLinear, colAttention)
	rate := f.peak(colWeights, colKV)
	g := GPU{Name: name, FLOPS: nominal.FLOPS * peak, MemoryBandwidth: nominal.MemoryBandwidth * rate}
	c := Calibration{
		Linear: f.share(colLinear) / peak, Attention: f.share(colAttention) / peak,
		Weights: f.share(colWeights) / rate, KV: f.share(colKV) / rate,
		Step: seconds(f.x[colStep]), Seq: seconds(f.x[colSeq]), Token: seconds(f.x[colToken]), Serial: f.rows[0].serial,
		Source: fmt.Sprintf("%d measured steps on %s", len(samples), name),
	}
	r := f.residuals()
	for i := range r.Terms {
		switch r.Terms[i].Name {
		case "linear", "attention":
			r.Terms[i].Value /= peak
		case "weights", "kv":
			r.Terms[i].Value /= rate
		}
	}
	return g, c, r, errors.Join(checkGPU(g), c.Validate())
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }

func newRows(samples []Sample, s Shape, g GPU) ([]row, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if len(samples) < minSamples {
		return nil, fmt.Errorf("fit: %d samples, want at least %d", len(samples), minSamples)
	}
	rows := make([]row, len(samples))
	for i, m := range samples {
		for j, q := range m.Batch {
			if q.Start < 0 || q.New < 1 || q.Start > 1<<40 || q.New > 1<<40 {
				return nil, fmt.Errorf("fit: samples[%d].Batch[%d] is %d new tokens at position %d, want at least 1 at 0 or later", i, j, q.New, q.Start)
			}
		}
		if len(m.Batch) == 0 || m.Duration <= 0 || m.Duration > time.Hour {
			return nil, fmt.Errorf("fit: samples[%d] has %d sequences and takes %s, want at least one and a duration in (0, 1h]", i, len(m.Batch), m.Duration)
		}
		w := Sum(m.Batch)
		layers := float64(s.Layers)
		rows[i] = row{
			y: m.Duration.Seconds(), seqs: float64(w.Seqs), tokens: float64(w.Tokens), weight: 1,
			linear:     layers * float64(w.Tokens) * s.LayerFLOPs() / g.FLOPS,
			read:       layers * s.LayerWeightBytes(w.Tokens) / g.MemoryBandwidth,
			attention:  layers * float64(w.Pairs) * s.PairFLOPs() / g.FLOPS,
			kv:         layers * float64(w.Keys) * s.KeyBytes() / g.MemoryBandwidth,
			headLinear: float64(w.Seqs) * s.HeadFLOPs() / g.FLOPS,
			headRead:   s.HeadBytes() / g.MemoryBandwidth,
		}
	}
	return rows, nil
}

// regime decides by the parameters which bounds hold; it reports a change.
func (r *row) regime(x *[columns]float64) bool {
	if r.serial {
		return false
	}
	l := r.linear*x[colLinear] > tie*r.read*x[colWeights]
	h := r.headLinear*x[colLinear] > tie*r.headRead*x[colWeights]
	a := r.attention*x[colAttention] > tie*r.kv*x[colKV]
	changed := l != r.linearC || h != r.headComp || a != r.attnC
	r.linearC, r.headComp, r.attnC = l, h, a
	return changed
}

// features are the columns of the sample under its regime.
func (r *row) features() (f [columns]float64) {
	f[colStep], f[colSeq], f[colToken] = 1, r.seqs, r.tokens
	if r.serial {
		f[colLinear], f[colWeights] = r.linear+r.headLinear, r.read+r.headRead
		f[colAttention], f[colKV] = r.attention, r.kv
		return f
	}
	if r.linearC {
		f[colLinear] += r.linear
	} else {
		f[colWeights] += r.read
	}
	if r.headComp {
		f[colLinear] += r.headLinear
	} else {
		f[colWeights] += r.headRead
	}
	if r.attnC {
		f[colAttention] = r.attention
	} else {
		f[colKV] = r.kv
	}
	return f
}

// predict is the model itself, whatever the regime.
func (r *row) predict(x *[columns]float64) float64 {
	if r.serial {
		sum := 0.0
		for c, v := range r.features() {
			sum += v * x[c]
		}
		return sum
	}
	return x[colStep] + r.seqs*x[colSeq] + r.tokens*x[colToken] +
		max(r.linear*x[colLinear], r.read*x[colWeights]) +
		max(r.headLinear*x[colLinear], r.headRead*x[colWeights]) +
		max(r.attention*x[colAttention], r.kv*x[colKV])
}

// fitted is a solution.
type fitted struct {
	rows    []row
	x       [columns]float64
	known   [columns]bool // has a column of its own in the problem
	err     [columns]float64
	atBound [columns]bool
	low     float64 // least reciprocal of a share
	loss    float64
}

// solve fits a roofline, and the sum of both bounds, and takes what describes the
// samples better. They have equally many parameters; the roofline has the benefit
// of the doubt.
func solve(rows []row, low float64) fitted {
	roof := search(rows, low)
	sum := slices.Clone(rows)
	for i := range sum {
		sum[i].serial = true
	}
	best := fitted{loss: math.Inf(1)}
	for _, tokens := range []bool{false, true} {
		f := descend(sum, [columns]float64{colLinear: 1, colWeights: 1, colAttention: 1, colKV: 1}, low, tokens)
		if f.loss < better*best.loss {
			best = f
		}
	}
	if best.loss < doubt*roof.loss {
		best.fill()
		return best
	}
	return roof
}

// doubt is how much better a sum must be.
const doubt = 0.9

// search fits from a grid of starting points: where arithmetic begins to bind
// instead of memory, for linear operators and for attention.
//
// A cost per token and the arithmetic of linear operators explain much the same.
// Arithmetic carries over to other models, so it is asked first.
func search(rows []row, low float64) fitted {
	balances := []float64{1e-6, 1.0 / 16, 1, 16, 1e6}
	best := fitted{loss: math.Inf(1)}
	for _, tokens := range []bool{false, true} {
		for _, linear := range balances {
			for _, attn := range balances {
				x := [columns]float64{colLinear: linear, colWeights: 1, colAttention: attn, colKV: 1}
				if f := descend(slices.Clone(rows), x, low, tokens); f.loss < better*best.loss {
					best = f
				}
			}
		}
	}
	best.fill()
	return best
}

// descend alternates between regimes and parameters until nothing changes, and
// keeps the best parameters that it met.
func descend(rows []row, x [columns]float64, low float64, tokens bool) fitted {
	best := fitted{loss: math.Inf(1)}
	for i := range rows {
		rows[i].regime(&x)
	}
	for round := range maxRounds {
		f := leastSquares(rows, low, tokens)
		f.keepUnbound(x)
		f.loss = reweigh(rows, &f.x)
		if f.loss < best.loss {
			best = f
			best.rows = slices.Clone(rows)
		}
		changed := false
		for i := range rows {
			changed = rows[i].regime(&f.x) || changed
		}
		x = f.x
		if !changed && round > 3 { // a few rounds for the weights to settle
			break
		}
	}
	return best
}

// keepUnbound gives a bound that held in no sample its default or, where that
// would hold in some of them or there is none, the slowest value that does not.
func (f *fitted) keepUnbound(old [columns]float64) {
	x := &f.x
	for _, p := range [][2]int{{colLinear, colWeights}, {colAttention, colKV}} {
		for k, c := range p {
			o := p[1-k]
			if f.known[c] {
				continue
			}
			if !f.known[o] {
				x[c] = max(old[c], f.low)
				continue
			}
			x[c] = math.Inf(1)
			for i := range f.rows {
				r := &f.rows[i]
				x[c] = min(x[c], r.atMost(c, x[o]))
			}
			if f.low > 0 {
				x[c] = min(x[c], guess(c))
			}
			x[c] = max(x[c], f.low)
		}
	}
}

// guess is the reciprocal of the default share.
func guess(c int) float64 {
	d := DefaultCalibration()
	switch c {
	case colLinear:
		return 1 / d.Linear
	case colAttention:
		return 1 / d.Attention
	case colWeights:
		return 1 / d.Weights
	default:
		return 1 / d.KV
	}
}

// atMost is the largest parameter of column c with which the other bound, with
// the parameter other, still holds in this sample.
func (r *row) atMost(c int, other float64) float64 {
	if r.serial {
		return 0 // any cost would be noticed
	}
	switch c {
	case colLinear:
		return other * min(r.read/r.linear, r.headRead/r.headLinear)
	case colWeights:
		return other * min(r.linear/r.read, r.headLinear/r.headRead)
	case colAttention:
		return other * r.kv / r.attention
	default:
		return other * r.attention / r.kv
	}
}

// reweigh sets each sample's weight from its error, so that far ones count
// linearly (Huber), and returns the mean clipped error.
func reweigh(rows []row, x *[columns]float64) float64 {
	errs := make([]float64, len(rows))
	for i := range rows {
		errs[i] = math.Abs(rows[i].predict(x)/rows[i].y - 1)
	}
	sorted := slices.Sorted(slices.Values(errs))
	limit := max(clipped*sorted[len(sorted)/2], 1e-6)
	loss := 0.0
	for i, e := range errs {
		rows[i].weight = min(1, limit/max(e, 1e-12))
		loss += min(e, 1)
	}
	return loss / float64(len(rows))
}

// leastSquares solves for the parameters under the samples' regimes. Errors are
// relative ones. Since the problem is convex, the best solution within bounds is
// the unconstrained one over the columns that are not at theirs; there are few
// enough subsets of columns to try all.
func leastSquares(rows []row, low float64, tokens bool) fitted {
	f := fitted{low: low, rows: rows}
	var n normal
	lows := [columns]float64{colLinear: low, colAttention: low, colWeights: low, colKV: low}
	for i := range rows {
		r := &rows[i]
		x := r.features()
		y := r.y
		for c := range x {
			y -= lows[c] * x[c]
		}
		n.add(x, y, r.weight/(r.y*r.y))
	}
	n.scale()
	f.known = n.independent()
	f.known[colToken] = f.known[colToken] && tokens
	best := math.Inf(1)
	for subset := range 1 << columns {
		x, ok := n.over(subset, &f.known)
		if !ok {
			continue
		}
		if e := n.error(&x); e < best-1e-12*n.yy {
			best = e
			f.x = x
			for c := range columns {
				f.atBound[c] = f.known[c] && subset&(1<<c) == 0
			}
		}
	}
	n.errors(&f, max(best, 0)/max(1, float64(len(rows)-columns)))
	for c := range f.x {
		f.x[c] = f.x[c]/n.size[c] + lows[c]
		f.err[c] /= n.size[c]
	}
	return f
}

// share is the efficiency whose reciprocal a column holds.
func (f *fitted) share(c int) float64 {
	if f.x[c] <= 0 {
		return 1 / leastTime
	}
	return 1 / f.x[c]
}

// peak is the larger of two shares. A cost that the fit found to be nothing, or
// that no sample shows, must not make the other share of such a peak vanish.
func (f *fitted) peak(a, b int) float64 {
	for _, p := range [][2]int{{a, b}, {b, a}} {
		if c, o := p[0], p[1]; !f.known[c] && f.known[o] && f.x[c] <= leastTime {
			f.x[c] = f.x[o]
		}
	}
	low, high := min(f.share(a), f.share(b)), max(f.share(a), f.share(b))
	if most := low / (2 * leastShare); high > most {
		high = most
		for _, c := range []int{a, b} {
			f.x[c] = max(f.x[c], 1/high)
		}
	}
	return high
}

// leastTime stands for a cost that the fit found to be nothing: a thousandth of
// the nominal one.
const leastTime = 1e-3

// fill bounds what the samples left free.
func (f *fitted) fill() {
	for c := colLinear; c < columns; c++ {
		f.x[c] = min(max(f.x[c], f.low, leastTime), 1/leastShare)
	}
}

func (f *fitted) residuals() Residuals {
	r := Residuals{Samples: len(f.rows)}
	errs := make([]float64, len(f.rows))
	for i := range f.rows {
		e := f.rows[i].predict(&f.x)/f.rows[i].y - 1
		r.Bias += e / float64(len(errs))
		errs[i] = math.Abs(e)
		r.Mean += errs[i] / float64(len(errs))
	}
	slices.Sort(errs)
	at := func(q float64) float64 { return errs[int(math.Ceil(q*float64(len(errs))))-1] }
	r.P50, r.P90, r.Max = at(0.5), at(0.9), at(1)
	for _, t := range []struct {
		name string
		col  int
	}{
		{"linear", colLinear}, {"attention", colAttention}, {"weights", colWeights}, {"kv", colKV},
		{"step_ns", colStep}, {"layer_ns", -1}, {"seq_ns", colSeq}, {"token_ns", colToken},
	} {
		r.Terms = append(r.Terms, f.term(t.name, t.col))
	}
	return r
}

// why names what samples would have to show for a column to be determined.
var why = [columns]string{
	colStep:      "steps of different sizes",
	colSeq:       "numbers of sequences that vary independently of tokens",
	colToken:     "numbers of tokens that vary independently of the arithmetic in linear operators",
	colLinear:    "steps of many tokens, bound by arithmetic",
	colAttention: "long prefills, whose attention is bound by arithmetic",
	colWeights:   "steps of few tokens, bound by reading weights",
	colKV:        "decode over contexts of different lengths, bound by reading KV",
}

func (f *fitted) term(name string, c int) Term {
	if c < 0 {
		return Term{Name: name, Note: "costs per layer cannot be told from costs per step with one model's samples: all are in step_ns"}
	}
	t := Term{Name: name, Value: f.x[c], Error: f.err[c] / f.x[c]}
	if c >= colLinear {
		t.Value = f.share(c)
	}
	switch {
	case !f.known[c]:
		t.Error = 0
		t.Note = "not determined: wants " + why[c]
	case f.atBound[c]:
		t.Determined, t.Error = true, 0
		t.Note = "at its bound: the samples show no such cost"
	case t.Error > weak:
		t.Note = fmt.Sprintf("uncertain, +-%.0f %%: wants %s", 100*t.Error, why[c])
	default:
		t.Determined = true
	}
	if !f.known[c] && c >= colLinear {
		t.Note += "; its value is a guess that no sample contradicts"
	}
	return t
}
