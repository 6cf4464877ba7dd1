package validate

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvlend/kvlend/planner/facts"
	"github.com/kvlend/kvlend/planner/perf"
)

// deployment is one of the logs: what ran where, and how it was set up.
type deployment struct {
	name   string
	log    []Request
	seen   []Latency
	shape  perf.Shape
	gpu    perf.GPU
	server Server
}

// rtxPRO6000 is not in the table of GPUs: the maker's figures, dense bf16 with
// fp32 accumulation.
var rtxPRO6000 = perf.GPU{Name: "RTX PRO 6000 Blackwell", Memory: 96e9, MemoryBandwidth: 1.792e12, FLOPS: 503.8e12, PCIe: "Gen5 x16", PCIeBandwidth: 63e9}

// What is alike in all three deployments: the budget of tokens in a step, which
// is vLLM's default and fits the groups of prompts that finish together, and the
// size of a block.
const (
	vllmMaxTokens = 2048
	vllmBlock     = 16
	vllmMaxSeqs   = 256
	plentyKV      = 1 << 22 // tokens: no request of the log waits for memory
)

func deployments() ([]deployment, error) {
	var out []deployment
	for _, d := range []struct{ name, log, model string }{
		{"Llama-3.1-8B, RTX PRO 6000", "vllm_requests_RTXPRO6000_Llama-3.1-8B.jsonl.gz", "Llama-3.1-8B"},
		{"Qwen3-30B-A3B, RTX PRO 6000", "vllm_requests_RTXPRO6000_Qwen3-30B-A3B-Instruct-2507.jsonl.gz", "Qwen3-30B-A3B"},
		{"Llama-3.1-8B, RTX 4090", "vllm_requests_RTX4090_Llama-3.1-8B.jsonl.gz", "Llama-3.1-8B"},
	} {
		log, err := readLog(d.log)
		if err != nil {
			return nil, err
		}
		model, err := facts.LookupModel(d.model)
		if err != nil {
			return nil, err
		}
		out = append(out, deployment{
			name: d.name, log: log, seen: measured(log), shape: perf.FromModel(model, 2, 2), gpu: rtxPRO6000,
			server: Server{MaxSeqs: atOnce(log), MaxTokens: vllmMaxTokens, KVTokens: plentyKV, Block: vllmBlock},
		})
	}
	ada, err := facts.LookupGPU("RTX4090")
	if err != nil {
		return nil, err
	}
	last := &out[len(out)-1]
	last.gpu = ada
	// Here memory is what limits, and new requests join a step late: theirs is
	// the first token not of the next step but of the one after it.
	last.server.MaxSeqs, last.server.KVTokens, last.server.Ahead = vllmMaxSeqs, kvHeld(last.log), true
	return out, nil
}

// kvHeld is how many tokens of KV the running requests of a log hold while others
// wait: the median over the moments at which one was scheduled. Requests that
// lost theirs for a while count too, since a log does not say so.
func kvHeld(log []Request) int {
	var held []float64
	for _, now := range log {
		if now.Scheduled-now.Queued < 1 {
			continue
		}
		sum := 0.0
		for _, q := range log {
			if q.Scheduled > now.Scheduled || q.LastToken <= now.Scheduled {
				continue
			}
			sum += float64(q.Input)
			if now.Scheduled > q.FirstToken {
				sum += float64(q.Output) * (now.Scheduled - q.FirstToken) / (q.LastToken - q.FirstToken)
			}
		}
		held = append(held, sum)
	}
	if len(held) == 0 {
		return plentyKV
	}
	slices.Sort(held)
	return int(held[len(held)/2])
}

// Quantiles are those of both latencies, in seconds.
type Quantiles struct {
	TTFT50 float64 `json:"ttft_p50"`
	TTFT99 float64 `json:"ttft_p99"`
	TPOT50 float64 `json:"tpot_p50"`
	TPOT99 float64 `json:"tpot_p99"`
}

// LogRow compares one log with what a calibration says of it.
type LogRow struct {
	Log       string    `json:"log"`
	Kind      string    `json:"kind"` // "fitted", "held out" or "predicted"
	Requests  int       `json:"requests"`
	Measured  Quantiles `json:"measured"`
	Modelled  Quantiles `json:"modelled"`
	Preempted int       `json:"preempted"` // by the model
	// MedianTTFT and MedianTPOT are the median relative errors of single requests.
	MedianTTFT float64 `json:"median_error_ttft"`
	MedianTPOT float64 `json:"median_error_tpot"`
}

// LogFit is a calibration with one log and what it says of all of them.
type LogFit struct {
	From        string           `json:"from"`
	Calibration perf.Calibration `json:"calibration"`
	Rows        []LogRow         `json:"rows"`
}

// VLLM is the comparison with vLLM's request logs.
type VLLM struct {
	Servers     []string `json:"servers"` // how each deployment was set up
	Fits        []LogFit `json:"fits"`
	Assumptions []string `json:"assumptions"`
	// MixtureRead is what the mixture's weights that a step reads would have to
	// be, as a share of what the model says, for the first fit to meet its
	// median time per token. An explanation found afterwards, no prediction.
	MixtureRead float64 `json:"mixture_read"`
}

var vllmAssumptions = []string{
	"Four parameters for all of a log: one efficiency of arithmetic, one of memory, an overhead per step and one per sequence and step. They minimise the mean |log(modelled/measured)| of TTFT and time per token over the log's requests (Nelder-Mead, one start).",
	"Of a log, only arrivals and lengths go into the replay. Read off the logs as an operator would know it: the largest number of requests at once; for the RTX 4090 the KV capacity (median tokens held while requests wait) and that steps are put together one ahead.",
	"Weights and KV of 2 bytes; 2,048 tokens a step; blocks of 16; no prefix is shared. Peaks: RTX PRO 6000 503.8 TFLOP/s and 1,792 GB/s (maker), RTX 4090 165 and 1,008.",
	"Experts are chosen evenly and independently, so a large batch reads nearly all of them.",
	"TTFT counts from the client's arrival; its clock is aligned with the engine's at the first request.",
}

// calibrate finds the four parameters for the first n requests of a deployment.
func (d *deployment) calibrate(n int) (perf.Calibration, error) {
	x := minimise(func(x []float64) float64 { return d.loss(calibration(x), n) },
		[]float64{0.7, 0.8, 4, 20}, []float64{-0.2, -0.2, 4, 20}, 200)
	c := calibration(x)
	c.Source = fmt.Sprintf("%d requests of %s", n, d.name)
	return c, c.Validate()
}

// calibration makes one of two efficiencies, milliseconds a step and
// microseconds a sequence.
func calibration(x []float64) perf.Calibration {
	return perf.Calibration{
		Linear: x[0], Attention: x[0], Weights: x[1], KV: x[1],
		Step: time.Duration(x[2] * 1e6), Seq: time.Duration(x[3] * 1e3),
	}
}

// loss is infinite for what is no calibration.
func (d *deployment) loss(c perf.Calibration, n int) float64 {
	out, _, err := d.replay(c)
	if err != nil {
		return math.Inf(1)
	}
	sum := 0.0
	for i, m := range d.seen[:n] {
		sum += math.Abs(math.Log(out[i].TTFT / m.TTFT))
		if m.TPOT > 0 {
			sum += math.Abs(math.Log(out[i].TPOT / m.TPOT))
		}
	}
	return sum / float64(n)
}

func (d *deployment) replay(c perf.Calibration) ([]Latency, int, error) {
	e, err := perf.NewEngine(d.shape, d.gpu, c)
	if err != nil {
		return nil, 0, err
	}
	return Replay(d.log, d.server, e)
}

// row compares the requests from index on.
func (d *deployment) row(kind string, c perf.Calibration, from int) (LogRow, error) {
	out, preempted, err := d.replay(c)
	if err != nil {
		return LogRow{}, fmt.Errorf("%s: %w", d.name, err)
	}
	r := LogRow{
		Log: d.name, Kind: kind, Requests: len(d.log) - from, Preempted: preempted,
		Measured: quantiles(d.seen[from:]), Modelled: quantiles(out[from:]),
	}
	var ttft, tpot []float64
	for i := from; i < len(out); i++ {
		ttft = append(ttft, math.Abs(out[i].TTFT/d.seen[i].TTFT-1))
		if d.seen[i].TPOT > 0 {
			tpot = append(tpot, math.Abs(out[i].TPOT/d.seen[i].TPOT-1))
		}
	}
	r.MedianTTFT, r.MedianTPOT = rank(ttft, 0.5), rank(tpot, 0.5)
	return r, nil
}

func quantiles(all []Latency) Quantiles {
	var ttft, tpot []float64
	for _, l := range all {
		ttft = append(ttft, l.TTFT)
		if l.TPOT > 0 {
			tpot = append(tpot, l.TPOT)
		}
	}
	return Quantiles{TTFT50: rank(ttft, 0.5), TTFT99: rank(ttft, 0.99), TPOT50: rank(tpot, 0.5), TPOT99: rank(tpot, 0.99)}
}

// rank is the nearest-rank quantile; it sorts. NaN without values.
func rank(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	return v[max(0, int(math.Ceil(q*float64(len(v))))-1)]
}

// CheckVLLM calibrates with each log and predicts the others.
func CheckVLLM() (*VLLM, error) {
	all, err := deployments()
	if err != nil {
		return nil, err
	}
	out := &VLLM{Assumptions: vllmAssumptions}
	for i := range all {
		d := &all[i]
		kv := "any"
		if d.server.KVTokens < plentyKV {
			kv = fmt.Sprint(d.server.KVTokens)
		}
		out.Servers = append(out.Servers, fmt.Sprintf("%s: %d requests, at most %d at once, %s tokens of KV, steps put together ahead: %t", d.name, len(d.log), d.server.MaxSeqs, kv, d.server.Ahead))
		f, err := fit(all, i)
		if err != nil {
			return nil, err
		}
		out.Fits = append(out.Fits, f)
	}
	out.MixtureRead, err = all[1].explain(out.Fits[0].Calibration)
	return out, err
}

// fit calibrates with log i, and with its first half to predict the second.
func fit(all []deployment, i int) (LogFit, error) {
	d := &all[i]
	half, err := d.calibrate(len(d.log) / 2)
	if err != nil {
		return LogFit{}, fmt.Errorf("%s, first half: %w", d.name, err)
	}
	f := LogFit{From: d.name}
	if f.Calibration, err = d.calibrate(len(d.log)); err != nil {
		return LogFit{}, fmt.Errorf("%s: %w", d.name, err)
	}
	add := func(d *deployment, kind string, c perf.Calibration, from int) {
		r, e := d.row(kind, c, from)
		if e != nil && err == nil {
			err = e
		}
		f.Rows = append(f.Rows, r)
	}
	add(d, "fitted", f.Calibration, 0)
	add(d, "held out", half, len(d.log)/2)
	for j := range all {
		if j != i {
			add(&all[j], "predicted", f.Calibration, 0)
		}
	}
	return f, err
}

// explain finds by which factor the weights that are read would have to shrink
// for a calibration to meet the log's median time per token.
func (d *deployment) explain(c perf.Calibration) (float64, error) {
	want := quantiles(d.seen).TPOT50
	low, high := 0.25, 1.0
	whole := d.shape.WeightBytes
	for range 24 {
		mid := (low + high) / 2
		d.shape.WeightBytes = whole * mid
		out, _, err := d.replay(c)
		d.shape.WeightBytes = whole
		if err != nil {
			return 0, err
		}
		if quantiles(out).TPOT50 > want {
			high = mid
		} else {
			low = mid
		}
	}
	return high, nil
}
