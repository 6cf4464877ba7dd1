package validate

import (
	"context"
	"embed"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/perf"
	"github.com/kvlend/kvlend/planner/sim"
)

//go:embed testdata/sharegpt300_lengths.csv.gz
var lengths embed.FS

// Figure7Row is one master with one data set at one rate: the P99 of the time to
// the first token of turns with a history, in seconds, by system.
type Figure7Row struct {
	Master  string  `json:"master"`
	Dataset string  `json:"dataset"`
	Busy    float64 `json:"busy"` // share of the time that Sync would compute and load, if it were never idle between
	Rate    float64 `json:"rate"` // requests per second
	Turns   int     `json:"turns"`
	History int     `json:"mean_history"` // tokens

	Lending    float64 `json:"lending"`
	Overlapped float64 `json:"host_overlapped"`      // host memory, loads layer by layer while it computes
	Sync       float64 `json:"host_sync"`            // host memory, loads first
	Local      float64 `json:"local_only,omitempty"` // recomputes what does not fit; 0: not simulated
}

// GainOverlapped and GainSync are how much lower lending's P99 is, as shares of the
// other's.
func (r Figure7Row) GainOverlapped() float64 { return 1 - r.Lending/r.Overlapped }
func (r Figure7Row) GainSync() float64       { return 1 - r.Lending/r.Sync }

// Figure7 compares lending with offloading to host memory, as SwiftCache's Fig. 7
// does. It gives one P99 gain per data set and baseline, over all masters, and no
// rates.
type Figure7 struct {
	Rows        []Figure7Row    `json:"rows"`
	Paper       []Figure7Paper  `json:"paper"`
	Median      []Figure7Median `json:"median"`
	Assumptions []string        `json:"assumptions"`
}

// Figure7Paper is what the paper says: P99 gains.
type Figure7Paper struct {
	Dataset string  `json:"dataset"`
	VLLM    float64 `json:"over_vllm_lmcache"`
	SGLang  float64 `json:"over_sglang_hicache"`
}

// Figure7Median is the middle of a data set's rows, and their range.
type Figure7Median struct {
	Dataset    string     `json:"dataset"`
	Sync       [3]float64 `json:"gain_over_host_sync"` // least, median, most
	Overlapped [3]float64 `json:"gain_over_host_overlapped"`
}

// figure7Busy are the loads, as shares of the time.
var figure7Busy = [...]float64{0.2, 0.6}

var figure7Paper = []Figure7Paper{{"ShareGPT", 0.54, 0.67}, {"L-Eval", 0.58, 0.69}}

const (
	figure7Turns = 120
	// figure7Branch is how many turns a ShareGPT conversation goes on for before it
	// is taken up again after its history.
	figure7Branch = 5
	// figure7Fill is how much of what the smaller of both systems can keep the
	// conversations take.
	figure7Fill = 0.8
	figure7Host = 96e9 // bytes
	figure7Seed = 7
)

var figure7Assumptions = []string{
	"Three H20 of 96 GB: one of LWM-1M-Text, Qwen3-14B and Qwen3-32B is the master, the other two are workers that nobody asks anything and that keep a floor of one request of 40,960 tokens. Arena = memory - fp16 weights - 4 GiB. Blocks of 64 tokens, units by least common multiple, two LSC buffers, 8,192 tokens a step, 64 sequences.",
	"NVLink: 200 GB/s in each direction and 5 us (the paper's 400 GB/s count both). PCIe: 32 GiB/s, all of it the master's, 8 us, no loss to small pieces: the baselines' best case.",
	"Efficiency of arithmetic and overhead of a request as fitted to Table 1 (above), the same for all systems; 2 ms a step, 10 us a sequence; weights at 80 % and KV at 70 % of the memory bandwidth.",
	"LMCache in vLLM stands for loading first and computing then (host, sync), HiCache in SGLang for loading a layer while the one before is computed (host, overlapped). Both run kvlend's own scheduler and cache: what their software adds, or does differently, is not in the figures. What differs is the link, and that lending also streams what is in use, where a request has to wait for room with host memory (Qwen3-32B with ShareGPT at 60 %).",
	"Host memory: 96 GB. The conversations together take 80 % of what the smaller of lending and host offload can hold, so that both find all that they have seen: nobody recomputes. (The paper counts the larger capacity as a second reason for its gains.)",
	"Warm-up: every conversation's history is computed before; then every conversation goes on, exponential times after its answers, so that turns come nearly as a Poisson process, and never before the answer before. Only they count.",
	"Histories, ShareGPT: the paper says that 10 % of the sessions exceed 13K tokens and 1 % 56K, which makes a Pareto tail of 1.58; of it, 20K to 36K tokens for Qwen, and from 20K on for LWM, up to what local-only can still serve. L-Eval: a Pareto tail of 1.83 from 20K on, whose mean is Table 1's 43,958 tokens before the same bounds cut it, and at most 195K. Equal quantiles, no chance.",
	"ShareGPT: messages of 32 tokens in the median and 132 at P90 (the paper's Fig. 3a), answers with the lengths of 300 ShareGPT requests; a conversation grows by both for five turns, and is taken up again after its history. L-Eval: questions of 60 tokens in the median, answers of 100, each to the document alone.",
	"The paper gives no rates. Busy 20 % and 60 %: the rate at which a server that loads over PCIe first, computes then and answers one turn after the other would be busy for that share of the time.",
}

// figure7Models are the three models, with what their arenas and floors are.
var figure7Models = []struct{ name, arena, floor string }{
	{"LWM-1M-Text", "72.75GiB", "20GiB"},
	{"Qwen3-14B", "57.75GiB", "6400MiB"},
	{"Qwen3-32B", "24.25GiB", "10GiB"},
}

// figure7Config is the server with one of the models as the master.
func figure7Config(master string) (*configs.Config, error) {
	var b strings.Builder
	b.WriteString("version: 1\nfabric: {kind: cuda}\ndevices:\n")
	for i := range figure7Models {
		fmt.Fprintf(&b, "  - {name: gpu%d, kind: H20, memory: 96GB}\n", i)
	}
	b.WriteString("  - {name: host}\nlinks:\n")
	for i := range figure7Models {
		for k := range i {
			fmt.Fprintf(&b, "  - {from: gpu%d, to: gpu%d, bandwidth: 200GB/s, latency: 5us}\n", k, i)
		}
		fmt.Fprintf(&b, "  - {from: host, to: gpu%d, bandwidth: 32GiB/s, latency: 8us}\n", i)
	}
	b.WriteString("models:\n")
	for i, m := range figure7Models {
		role := "role: worker, floor: " + m.floor
		if m.name == master {
			role = "role: master, lsc: {buffers: 2}"
		}
		fmt.Fprintf(&b, "  - {name: %s, source: \"catalog:%s\", %s, device: gpu%d, arena: %s, kv_dtype: f16, block_tokens: 64, max_batch_tokens: 8192, max_running: 64, max_waiting: 4096}\n", m.name, m.name, role, i, m.arena)
	}
	b.WriteString("lending:\n  unit: {policy: lcm}\n  scale_down: {policy: window, window: 60s}\n")
	return configs.Parse([]byte(b.String()), "figure 7, "+master)
}

// figure7Case is a master with a data set.
type figure7Case struct {
	master, dataset string
	base            *configs.Config
	machine         sim.Machine
	histories       []int
	alone           float64 // seconds that a turn takes with loads over PCIe, by itself
}

// systems of a case, in the order of Figure7Row.
var figure7Systems = [...]string{"lending", "host-offload", "host-offload-sync", "local-only"}

// CheckFigure7 simulates all cases. s says what the GPUs and requests cost.
func CheckFigure7(ctx context.Context, s *SwiftCache) (*Figure7, error) {
	answers, err := shareGPTAnswers()
	if err != nil {
		return nil, err
	}
	out := &Figure7{Paper: figure7Paper, Assumptions: figure7Assumptions}
	var cases []*figure7Case
	var rates []float64
	for _, m := range figure7Models {
		for _, p := range figure7Paper {
			c, err := newFigure7Case(m.name, p.Dataset, s)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", m.name, p.Dataset, err)
			}
			for _, busy := range figure7Busy {
				cases, rates = append(cases, c), append(rates, busy/c.alone)
				out.Rows = append(out.Rows, Figure7Row{Master: m.name, Dataset: p.Dataset, Busy: busy, Rate: busy / c.alone, Turns: figure7Turns, History: mean(c.histories)})
			}
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, len(cases)*len(figure7Systems))
	places := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, c := range cases {
		load := c.load(rates[i], answers)
		r := &out.Rows[i]
		for k, to := range [...]*float64{&r.Lending, &r.Overlapped, &r.Sync, &r.Local} {
			if to == &r.Local && r.Busy != figure7Busy[0] {
				continue // it is hopelessly overloaded
			}
			wg.Go(func() {
				places <- struct{}{}
				defer func() { <-places }()
				*to, errs[i*len(figure7Systems)+k] = c.run(ctx, figure7Systems[k], load)
			})
		}
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			c := cases[i/len(figure7Systems)]
			return nil, fmt.Errorf("%s, %s, %s: %w", c.master, c.dataset, figure7Systems[i%len(figure7Systems)], err)
		}
	}
	out.medians()
	return out, nil
}

func (f *Figure7) medians() {
	for _, p := range f.Paper {
		var sync, overlapped []float64
		for _, r := range f.Rows {
			if r.Dataset == p.Dataset {
				sync, overlapped = append(sync, r.GainSync()), append(overlapped, r.GainOverlapped())
			}
		}
		three := func(v []float64) [3]float64 { return [3]float64{rank(v, 0), rank(v, 0.5), rank(v, 1)} }
		f.Median = append(f.Median, Figure7Median{p.Dataset, three(sync), three(overlapped)})
	}
}

func newFigure7Case(master, dataset string, s *SwiftCache) (*figure7Case, error) {
	base, err := figure7Config(master)
	if err != nil {
		return nil, err
	}
	c := &figure7Case{master: master, dataset: dataset, base: base, machine: sim.Machine{Front: sim.Front{Request: s.Overhead}}}
	cal := perf.DefaultCalibration()
	cal.Linear, cal.Attention = s.Efficiency, s.Efficiency
	c.machine.Models = map[string]sim.Calibrated{}
	for _, m := range figure7Models {
		c.machine.Models[m.name] = sim.Calibrated{Calibration: cal}
	}
	sys, err := planner.Resolve(base, configs.CatalogGeometry)
	if err != nil {
		return nil, err
	}
	m := sys.Model(master)
	token := float64(m.Geometry.TokenBytes())
	far := 0.0
	for _, l := range m.Lenders {
		far += float64(l.Units) * float64(l.Worker.Unit.Bytes)
	}
	room := figure7Fill * (float64(m.Arena) + min(far, figure7Host)) / token
	c.histories = c.draw(int(room), m.Capacity.AloneTokens)
	engine, err := sim.NewHardware(base, c.machine).Engine(m)
	if err != nil {
		return nil, err
	}
	h := mean(c.histories)
	answer := 100
	if dataset == "ShareGPT" {
		answer = 660
	}
	load := float64(h) * token / figure1PCIe
	first := engine.Step([]perf.Seq{{Start: h, New: 64}}).Total()
	next := engine.Step([]perf.Seq{{Start: h, New: 1}}).Total()
	c.alone = load + first.Seconds() + float64(answer)*next.Seconds()
	return c, nil
}

// draw makes the lengths of histories that fill room tokens: equal quantiles of a
// Pareto tail.
func (c *figure7Case) draw(room, alone int) []int {
	const least, growth = 20_000, 4000
	tail, most := 1.58, 36_000
	if c.master == "LWM-1M-Text" {
		most = alone * 3 / 4
	}
	if c.dataset == "L-Eval" {
		tail, most = 1.83, min(most, 195_000)
	}
	share := 1 - math.Pow(least/float64(most), tail)
	var out []int
	for n := 1; ; n++ {
		next, sum := make([]int, n), 0
		for i := range next {
			u := (float64(i) + 0.5) / float64(n) * share
			next[i] = int(least * math.Pow(1-u, -1/tail))
			sum += next[i] + growth
		}
		if sum > room && n > 1 {
			return out
		}
		out = next
	}
}

func mean(v []int) int {
	sum := 0
	for _, n := range v {
		sum += n
	}
	return sum / len(v)
}

// load makes the turns: first all histories, one after the other, then the turns at
// a rate.
func (c *figure7Case) load(rate float64, answers []int) *trace.Trace {
	const apart = 30 * time.Second // between histories: longer than any takes
	rng := rand.New(rand.NewPCG(figure7Seed, uint64(len(c.histories))))
	t := &trace.Trace{Name: c.dataset + "-like"}
	id := uint64(0)
	text := func(tokens int) []trace.Span {
		id++
		return []trace.Span{{ID: id, Tokens: tokens}}
	}
	for i, h := range c.histories {
		t.Sessions = append(t.Sessions, trace.Session{
			ID: strconv.Itoa(i), Start: time.Duration(i) * apart,
			Turns: []trace.Turn{{Append: text(h), Output: 1}},
		})
	}
	normal := func(median, sigma float64) int {
		return int(min(2000, max(1, math.Round(median*math.Exp(sigma*rng.NormFloat64())))))
	}
	// The rest of the time that a turn has is for thinking.
	pause := max(0.1, float64(len(c.histories))/rate-c.alone)
	for k := range figure7Turns {
		i := k % len(t.Sessions)
		s := &t.Sessions[i]
		turn := trace.Turn{Keep: trace.KeepAll, Think: time.Duration(rng.ExpFloat64() * pause * float64(time.Second))}
		if k < len(t.Sessions) {
			turn.Think += time.Duration(len(t.Sessions)-i) * apart
		}
		if c.dataset == "ShareGPT" {
			if len(s.Turns)%figure7Branch == 1 {
				turn.Keep = c.histories[i]
			}
			turn.Append, turn.Output = text(normal(32, 1.1)), answers[rng.IntN(len(answers))]
		} else {
			turn.Keep, turn.Append, turn.Output = c.histories[i], text(normal(60, 0.5)), normal(100, 0.7)
		}
		s.Turns = append(s.Turns, turn)
	}
	return t
}

// run simulates one system.
func (c *figure7Case) run(ctx context.Context, system string, load *trace.Trace) (float64, error) {
	cfg, err := configs.Baseline(system, c.base)
	if err != nil {
		return 0, err
	}
	for i := range cfg.Models {
		if h := &cfg.Models[i].Host; h.Bytes > 0 {
			h.Bytes = figure7Host
		}
	}
	sys, err := planner.Resolve(cfg, configs.CatalogGeometry)
	if err != nil {
		return 0, err
	}
	r, err := sim.Run(ctx, sim.Options{
		System: sys, Hardware: sim.NewHardware(cfg, c.machine),
		Loads: []sim.Load{{Model: c.master, Trace: load, Timing: sim.ByThink, Seed: figure7Seed}},
	})
	if err != nil {
		return 0, err
	}
	a := r.Answers[0]
	for code, n := range a.Refused {
		return 0, fmt.Errorf("%d requests were not answered (%s): %s", n, code, a.Reasons[code])
	}
	return a.Later.Quantile(0.99), nil
}

// shareGPTAnswers are the lengths of the answers of the embedded requests.
func shareGPTAnswers() ([]int, error) {
	f, err := lengths.Open("testdata/sharegpt300_lengths.csv.gz")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := trace.Read(f, "sharegpt300_lengths.csv.gz", trace.ShareGPT, 0)
	if err != nil {
		return nil, err
	}
	var out []int
	for i := range t.Sessions {
		for _, turn := range t.Sessions[i].Turns {
			out = append(out, turn.Output)
		}
	}
	return out, nil
}

// figure7Bar is how many percentage points the median gain of a data set may lie
// outside of the paper's two.
const figure7Bar = 10

// misses says where the direction, or the rough size, is another one.
func (f *Figure7) misses() []string {
	var out []string
	for _, r := range f.Rows {
		if worst := min(r.GainSync(), r.GainOverlapped()); !(worst > 0) {
			out = append(out, fmt.Sprintf("Fig. 7, %s with %s, busy %.0f %%: lending gains %+.0f %%, the bar is more than 0", r.Master, r.Dataset, 100*r.Busy, 100*worst))
		}
	}
	for i, m := range f.Median {
		low, high := min(f.Paper[i].VLLM, f.Paper[i].SGLang), max(f.Paper[i].VLLM, f.Paper[i].SGLang)
		for _, g := range []struct {
			of   string
			gain float64
		}{{"synchronous", m.Sync[1]}, {"overlapped", m.Overlapped[1]}} {
			if off := 100 * max(low-g.gain, g.gain-high); !(off <= figure7Bar) {
				out = append(out, fmt.Sprintf("Fig. 7, %s: the median gain over %s host offload is %.0f %%, %.0f points outside of the paper's %.0f to %.0f %%, the bar is %d", m.Dataset, g.of, 100*g.gain, off, 100*low, 100*high, figure7Bar))
			}
		}
	}
	return out
}

func (f *Figure7) text(b *strings.Builder) {
	b.WriteString("### SwiftCache, Fig. 7: P99 of the time to the first token after a history\n\n")
	b.WriteString("| master | lengths like | busy | requests/s | mean history | lending | host, overlapped | gain | host, sync | gain | local only |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range f.Rows {
		local := "-"
		if r.Local > 0 {
			local = fmt.Sprintf("%.3g s", r.Local)
		}
		fmt.Fprintf(b, "| %s | %s | %.0f %% | %.3f | %d | %.3f s | %.3f s | %.0f %% | %.3f s | %.0f %% | %s |\n", r.Master, r.Dataset, 100*r.Busy, r.Rate, r.History,
			r.Lending, r.Overlapped, 100*r.GainOverlapped(), r.Sync, 100*r.GainSync(), local)
	}
	b.WriteString("\n| lengths like | gain over host, overlapped: median (range) | over host, sync | in the paper: over LMCache | over HiCache |\n| --- | --- | --- | --- | --- |\n")
	for i, m := range f.Median {
		fmt.Fprintf(b, "| %s | %.0f %% (%.0f to %.0f) | %.0f %% (%.0f to %.0f) | %.0f %% | %.0f %% |\n", m.Dataset,
			100*m.Overlapped[1], 100*m.Overlapped[0], 100*m.Overlapped[2], 100*m.Sync[1], 100*m.Sync[0], 100*m.Sync[2], 100*f.Paper[i].VLLM, 100*f.Paper[i].SGLang)
	}
	b.WriteString("\n" + figure7Misses + "\n")
	list(b, f.Assumptions)
}

// figure7Misses is what the comparison does not say.
const figure7Misses = "The two ways to load span what the paper measured of its two baselines, but which is which does not follow from how they load: there the one that overlaps (HiCache) is the slower one. The range over masters and rates is wider than the difference between the baselines, and the paper gives neither rates nor figures per master in its text."
