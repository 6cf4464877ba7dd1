package disk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/overflow/placement"
)

// PoolOptions say what Pool measures. Zero fields have the defaults named.
type PoolOptions struct {
	Devices []Spec
	Counts  []int // of devices read together; 1, 2, 4, 8 as far as there are
	// Layer is the bytes of one layer, read as a run on each device; 32 MiB, a
	// layer of 8K tokens of Qwen3-8B.
	Layer  int64
	Ahead  int           // layers on their way at once; 2
	Rounds int           // 3
	Each   time.Duration // about how long a measurement takes; 3 s

	Progress func(string)
}

func (o PoolOptions) withDefaults() (PoolOptions, error) {
	if len(o.Counts) == 0 {
		for _, n := range []int{1, 2, 4, 8} {
			if n <= len(o.Devices) {
				o.Counts = append(o.Counts, n)
			}
		}
		if n := len(o.Devices); n > 0 && o.Counts[len(o.Counts)-1] != min(n, 8) {
			o.Counts = append(o.Counts, n)
		}
	}
	if o.Layer == 0 {
		o.Layer = 32 << 20
	}
	if o.Ahead == 0 {
		o.Ahead = 2
	}
	if o.Rounds == 0 {
		o.Rounds = 3
	}
	if o.Each == 0 {
		o.Each = 3 * time.Second
	}
	if o.Progress == nil {
		o.Progress = nothing
	}
	switch {
	case len(o.Devices) == 0:
		return o, errors.New("no devices to read")
	case o.Layer < layerUnit || o.Layer%layerUnit != 0 || o.Layer > 1<<30:
		return o, fmt.Errorf("a layer of %d bytes; want a multiple of %d, at most 1 GiB", o.Layer, layerUnit)
	case o.Ahead < 1 || o.Ahead > 64:
		return o, fmt.Errorf("%d layers ahead; want 1 to 64", o.Ahead)
	case o.Rounds < 1 || o.Rounds > 1000:
		return o, fmt.Errorf("rounds is %d; want 1 to 1000", o.Rounds)
	case o.Each < 200*time.Millisecond || o.Each > time.Minute:
		return o, fmt.Errorf("each measurement takes %v; want 200ms to 1m", o.Each)
	}
	for _, n := range o.Counts {
		if n < 1 || n > len(o.Devices) {
			return o, fmt.Errorf("%d devices at once; want 1 to %d, those given", n, len(o.Devices))
		}
	}
	return o, nil
}

// layerUnit is a layer block of Qwen3-8B: 16 tokens, K and V, 8 heads of 128,
// two bytes.
const layerUnit = 64 << 10

// pieceBytes bounds one read, if the device's own bound is not lower.
const pieceBytes = 256 << 10

// PoolResult is what Pool measured.
type PoolResult struct {
	Machine  Machine    `json:"machine"`
	Emulated bool       `json:"emulated"` // some of the devices
	Layer    int64      `json:"layer_bytes"`
	Ahead    int        `json:"layers_ahead"`
	Rounds   int        `json:"rounds"`
	Devices  []PoolDisk `json:"devices"`
	Sums     []PoolSum  `json:"aggregate"`
	Shares   *PoolRace  `json:"shares,omitempty"` // with two devices and more
}

// PoolDisk is one device by itself.
type PoolDisk struct {
	Spec
	Kind        string  `json:"kind"`
	Degraded    string  `json:"degraded,omitempty"`
	BytesPerSec float64 `json:"bytes_per_second"` // alone, median
}

// PoolSum is the first Devices together, layers spread evenly.
type PoolSum struct {
	Devices     int     `json:"devices"`
	BytesPerSec float64 `json:"bytes_per_second"`
	// OfAlone is the share of the sum of what each reads alone in the same
	// round, OfLimits of the sum of their limits (0: not all are emulated).
	OfAlone  float64 `json:"share_of_sum_alone"`
	OfLimits float64 `json:"share_of_sum_of_limits,omitempty"`
	CPUPerGB float64 `json:"cpu_seconds_per_gb"`
}

// PoolRace compares equal shares with shares by bandwidth over all devices, for
// the same bytes.
type PoolRace struct {
	Uniform float64 `json:"uniform_bytes_per_second"`
	Aware   float64 `json:"bandwidth_aware_bytes_per_second"`
	// Ratio is the time of equal shares over that of shares by bandwidth, as
	// measured and as the shares predict: the slowest device's.
	Ratio     float64 `json:"time_ratio"`
	Predicted float64 `json:"time_ratio_predicted"`
	OfAlone   float64 `json:"aware_share_of_sum_alone"`
}

// Pool measures several devices together: the share of their sum that layer
// reads over all of them reach, and what shares by bandwidth gain where they
// are unequal.
func Pool(ctx context.Context, opt PoolOptions) (res *PoolResult, err error) {
	opt, err = opt.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("bench disk pool: %w", err)
	}
	// A layer's runs are rounded to whole pieces of memory each.
	s, err := openSet(opt.Devices, false, int64(opt.Ahead)*(opt.Layer+layerUnit), 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	res = &PoolResult{Machine: machine(), Emulated: emulated(opt.Devices), Layer: opt.Layer, Ahead: opt.Ahead, Rounds: opt.Rounds}
	p := &poolRun{opt: opt, s: s}
	for round := range opt.Rounds {
		if err := p.round(ctx, round); err != nil {
			return nil, err
		}
	}
	for i, d := range opt.Devices {
		info := s.devs[i].Info()
		res.Devices = append(res.Devices, PoolDisk{d, string(info.Kind), info.Degraded, median(p.alone[i])})
	}
	for i, n := range opt.Counts {
		sum := PoolSum{Devices: n, BytesPerSec: median(p.together[i]), OfAlone: median(p.ofAlone[i]), CPUPerGB: median(p.cpu[i])}
		if limits := sumLimits(opt.Devices[:n]); limits > 0 {
			sum.OfLimits = sum.BytesPerSec / limits
		}
		res.Sums = append(res.Sums, sum)
	}
	if len(opt.Devices) > 1 {
		res.Shares = &PoolRace{Uniform: median(p.uniform), Aware: median(p.aware), Ratio: median(p.ratio),
			Predicted: median(p.predicted), OfAlone: median(p.awareOfAlone)}
	}
	return res, nil
}

// sumLimits is 0 unless every device has one.
func sumLimits(specs []Spec) (sum float64) {
	for _, d := range specs {
		if d.Limit == 0 {
			return 0
		}
		sum += d.Limit
	}
	return sum
}

// poolRun holds the measurements of the rounds.
type poolRun struct {
	opt PoolOptions
	s   *set

	alone                  [][]float64 // by device
	together, ofAlone, cpu [][]float64 // by count
	uniform, aware         []float64
	ratio, predicted       []float64
	awareOfAlone           []float64
}

func (p *poolRun) round(ctx context.Context, round int) error {
	o := p.opt
	say := func(what string) { o.Progress(fmt.Sprintf("round %d of %d: %s", round+1, o.Rounds, what)) }
	if p.alone == nil {
		p.alone = make([][]float64, len(o.Devices))
		p.together, p.ofAlone, p.cpu = make([][]float64, len(o.Counts)), make([][]float64, len(o.Counts)), make([][]float64, len(o.Counts))
	}
	alone := make([]float64, len(o.Devices))
	for i := range o.Devices {
		say("alone: " + o.Devices[i].Path)
		rates := make([]float64, i+1)
		rates[i] = p.guess(i)
		bw, _, err := p.measure(ctx, placement.Uniform, rates, rates[i])
		if err != nil {
			return err
		}
		alone[i] = bw
		p.alone[i] = append(p.alone[i], bw)
	}
	for i, n := range o.Counts {
		say(fmt.Sprintf("%d together", n))
		bw, cpu, err := p.measure(ctx, placement.Uniform, alone[:n], float64(n)*slices.Min(alone[:n]))
		if err != nil {
			return err
		}
		p.together[i] = append(p.together[i], bw)
		p.ofAlone[i] = append(p.ofAlone[i], bw/total(alone[:n]))
		p.cpu[i] = append(p.cpu[i], cpu)
	}
	if len(o.Devices) < 2 {
		return nil
	}
	return p.race(ctx, alone, say)
}

// race reads with equal shares and with shares by what each device reads alone.
func (p *poolRun) race(ctx context.Context, alone []float64, say func(string)) error {
	n := len(alone)
	sum, slowest := total(alone), float64(n)*slices.Min(alone)
	say("equal shares")
	uniform, _, err := p.measure(ctx, placement.Uniform, alone, slowest)
	if err != nil {
		return err
	}
	say("shares by bandwidth")
	aware, _, err := p.measure(ctx, placement.Bandwidth, alone, sum)
	if err != nil {
		return err
	}
	p.uniform, p.aware = append(p.uniform, uniform), append(p.aware, aware)
	p.ratio = append(p.ratio, aware/uniform)
	p.predicted = append(p.predicted, sum/slowest)
	p.awareOfAlone = append(p.awareOfAlone, aware/sum)
	return nil
}

// measure reads layers from the devices with a rate above 0, placed by a policy,
// for about opt.Each at the bandwidth expected. It returns the real one, in bytes
// per second, and the CPU time per 1e9 bytes. A fifth more is read before, which empties the credit that an
// emulated device has after a rest.
func (p *poolRun) measure(ctx context.Context, policy string, rates []float64, expected float64) (bytesPerSec, cpuPerGB float64, err error) {
	count := max(4, int(p.opt.Each.Seconds()*expected/float64(p.opt.Layer)))
	warm := count/5 + 1
	units, err := share(policy, int(p.opt.Layer/layerUnit), rates)
	if err != nil {
		return 0, 0, err
	}
	plan, err := spread(count+warm, layerUnit, p.s.maxIO(pieceBytes), units, 0, p.s.sizes())
	if err != nil {
		return 0, 0, err
	}
	r, err := newLayerReader(p.s.devs, plan, p.opt.Ahead, p.s.mem)
	if err != nil {
		return 0, 0, err
	}
	before, err := cpuTime()
	if err != nil {
		return 0, 0, err
	}
	if _, err := r.run(ctx); err != nil {
		return 0, 0, err
	}
	after, err := cpuTime()
	if err != nil {
		return 0, 0, err
	}
	took := r.ended[len(plan)-1].Sub(r.ended[warm-1]).Seconds()
	return float64(plan[warm:].bytes()) / took, (after - before).Seconds() / float64(plan.bytes()) * 1e9, nil
}

// guess is what device i is expected to read.
func (p *poolRun) guess(i int) float64 {
	if old := p.alone[i]; len(old) > 0 {
		return old[len(old)-1]
	}
	if d := p.opt.Devices[i]; d.Limit > 0 {
		return d.Limit
	}
	return 500e6
}

func total(x []float64) (sum float64) {
	for _, v := range x {
		sum += v
	}
	return sum
}
