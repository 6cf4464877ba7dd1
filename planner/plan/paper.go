package plan

import (
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/planner/facts"
)

// Fig9Schema names the form of a Fig9 as JSON.
const Fig9Schema = "kvlend.fig9/1"

// What SwiftCache section 5.3 says of Fig. 9: the range of the longest context
// over that of vLLM with chunks of 8K tokens, and over that of the baselines
// with larger activations (no chunks, chunks of 32K).
const (
	fig9Low, fig9High           = 1.58, 3.98
	fig9LowWhole, fig9HighWhole = 1.81, 6.66
	fig9Chunk                   = 8192
	fig9Block                   = 16
	fig9Floor                   = 40960 // tokens: the Qwen3 models' longest request
)

// Fig9 is SwiftCache's Fig. 9 computed from Eq. 1 to 5 under several
// assumptions. The paper gives the GPUs, the workers and the range of the
// ratios; the figure's bars are not in its text. Which models were masters, how
// much of a GPU's memory was used and how much of a worker's was lent it does
// not say, so all of them are assumed here, and compared with the range.
type Fig9 struct {
	Schema string     `json:"schema"`
	Cases  []Fig9Case `json:"cases"` // under the first set of assumptions
	Sets   []Fig9Set  `json:"sets"`
	// Nearest is the index of the set that comes nearest to both ends.
	Nearest int `json:"nearest"`
	// LowConfig and HighConfig are the ends of the nearest range as
	// configurations that kvlend plan accepts.
	LowConfig  string `json:"low_config"`
	HighConfig string `json:"high_config"`
}

// Fig9Case is one GPU with one master. Sizes are bytes, contexts tokens.
type Fig9Case struct {
	VRAM    int      `json:"vram_gb"`
	GPU     string   `json:"gpu"`
	Master  string   `json:"master"`
	Workers []string `json:"workers"`
	Usable  int64    `json:"usable"`         // of each GPU
	Cm      int64    `json:"c_master"`       // the master's KV cache
	Cw      int64    `json:"c_workers"`      // what the workers lend, together
	NLSC    int      `json:"n_lsc"`          // full blocks
	NRC     int      `json:"n_rc"`           //
	Chunked int      `json:"vllm_chunked"`   // vLLM with chunks of 8K
	Whole   int      `json:"vllm_unchunked"` // vLLM without chunks
	Lending int      `json:"lending"`
	Ratio   float64  `json:"ratio"`           // lending over vllm_chunked
	RatioW  float64  `json:"ratio_unchunked"` // lending over vllm_unchunked
	// ForLow and ForHigh are the share of the workers' KV memory that would
	// have to be lent for 1.58 and 3.98; above 1: impossible.
	ForLow  float64 `json:"share_for_low"`
	ForHigh float64 `json:"share_for_high"`
	have    []int64 // each worker's KV memory
	lent    []int64
}

// Fig9Set is a set of assumptions and the range that follows.
type Fig9Set struct {
	Name        string    `json:"name"`
	Memory      string    `json:"memory"`      // how a GPU's memory is counted
	Utilization float64   `json:"utilization"` // share of it that is used
	Lent        string    `json:"lent"`        // how much the workers lend
	Prefill     string    `json:"prefill"`     // of the master
	Low         Fig9End   `json:"low"`
	High        Fig9End   `json:"high"`
	LowWhole    Fig9End   `json:"low_unchunked"`
	HighWhole   Fig9End   `json:"high_unchunked"`
	assume      fig9Rules // what the words above mean
}

// Fig9End is one end of a range.
type Fig9End struct {
	Ratio float64 `json:"ratio"`
	Paper float64 `json:"paper"`
	Miss  float64 `json:"miss"` // (ratio - paper) / paper
	Case  string  `json:"case"`
}

// fig9GPU is a setting of section 5.3. mib is the memory that the driver
// reports of such a GPU.
type fig9GPU struct {
	vram    int
	gpu     string
	mib     int64
	workers []string
}

func fig9GPUs() []fig9GPU {
	return []fig9GPU{
		{96, "H20", 97871, []string{"Qwen3-14B", "Qwen3-8B"}},
		{80, "A100-80G-SXM", 81920, []string{"Qwen3-14B", "Qwen3-8B"}},
		{32, "V100-32G-SXM2", 32768, []string{"Qwen3-14B", "Qwen3-8B"}},
		{24, "L4", 23034, []string{"Qwen3-8B", "Qwen3-8B"}},
	}
}

// fig9Masters are the models of the paper's Table 2.
func fig9Masters() []string { return []string{"LWM-1M-Text", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B"} }

// counted says whether a case is in the range of a set: LWM everywhere, as in
// the paper's other experiments, and Qwen3-32B where one of its own longest
// requests fits without lending: not in 80 GB.
func (c *Fig9Case) counted() bool {
	return c.Master == "LWM-1M-Text" || c.Master == "Qwen3-32B" && c.VRAM == 96
}

func (c *Fig9Case) name() string { return fmt.Sprintf("%s, %d GB", c.Master, c.VRAM) }

// fig9Rules are assumptions in a form that can be computed.
type fig9Rules struct {
	decimal bool // GB of 10^9 bytes instead of what the driver reports
	util    float64
	floor   int     // tokens that each worker keeps
	share   float64 // of the rest that is lent
	only    string  // the one model that lends; "": both
	whole   bool    // the master computes a prompt in one step
}

// fig9Sets are the assumptions that are tried.
func fig9Sets() []Fig9Set {
	set := func(lent string, r fig9Rules) Fig9Set {
		s := Fig9Set{Memory: "driver", Utilization: r.util, Lent: lent, Prefill: "chunks of 8K", assume: r}
		if r.decimal {
			s.Memory = "10^9"
		}
		if r.whole {
			s.Prefill = "whole prompt"
		}
		return s
	}
	out := []Fig9Set{
		set("all of both workers", fig9Rules{util: 0.9, share: 1}),
		set("all of both workers", fig9Rules{util: 0.9, share: 1, decimal: true}),
		set("all of both workers", fig9Rules{util: 0.95, share: 1}),
		set("all of both workers", fig9Rules{util: 0.9, share: 1, whole: true}),
		set("all but one request of 40,960 tokens each", fig9Rules{util: 0.9, share: 1, floor: fig9Floor}),
		set("half of both workers", fig9Rules{util: 0.9, share: 0.5}),
		set("all of one Qwen3-8B", fig9Rules{util: 0.9, share: 1, only: "Qwen3-8B"}),
		set("all of one Qwen3-8B", fig9Rules{util: 0.9, share: 1, only: "Qwen3-8B", decimal: true}),
		set("all of one Qwen3-8B", fig9Rules{util: 0.95, share: 1, only: "Qwen3-8B"}),
	}
	for i := range out {
		out[i].Name = string(rune('A' + i))
	}
	return out
}

// NewFig9 computes Fig. 9.
func NewFig9() (*Fig9, error) {
	f := &Fig9{Schema: Fig9Schema, Sets: fig9Sets()}
	best := math.Inf(1)
	for i := range f.Sets {
		s := &f.Sets[i]
		cases, err := fig9Cases(s.assume)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			f.Cases = cases
		}
		s.ends(cases)
		if miss := math.Abs(s.Low.Miss) + math.Abs(s.High.Miss); miss < best {
			f.Nearest, best = i, miss
			f.LowConfig, f.HighConfig = s.configs(cases)
		}
	}
	return f, nil
}

// configs are the two ends of the set's range.
func (s *Fig9Set) configs(cases []Fig9Case) (low, high string) {
	for i := range cases {
		switch cases[i].name() {
		case s.Low.Case:
			low = cases[i].Config()
		case s.High.Case:
			high = cases[i].Config()
		}
	}
	return low, high
}

func (s *Fig9Set) ends(cases []Fig9Case) {
	end := func(paper float64, sign float64, of func(c *Fig9Case) float64) Fig9End {
		var e Fig9End
		for i := range cases {
			c := &cases[i]
			if v := of(c); c.counted() && (e.Case == "" || sign*v > sign*e.Ratio) {
				e = Fig9End{Ratio: v, Paper: paper, Miss: v/paper - 1, Case: c.name()}
			}
		}
		return e
	}
	chunked := func(c *Fig9Case) float64 { return c.Ratio }
	whole := func(c *Fig9Case) float64 { return c.RatioW }
	s.Low, s.High = end(fig9Low, -1, chunked), end(fig9High, 1, chunked)
	s.LowWhole, s.HighWhole = end(fig9LowWhole, -1, whole), end(fig9HighWhole, 1, whole)
}

// fig9Cases computes all masters on all GPUs, but for masters that do not fit.
func fig9Cases(r fig9Rules) ([]Fig9Case, error) {
	var out []Fig9Case
	for _, g := range fig9GPUs() {
		for _, name := range fig9Masters() {
			c, ok, err := fig9One(g, name, r)
			if err != nil {
				return nil, err
			}
			if ok {
				out = append(out, c)
			}
		}
	}
	return out, nil
}

func fig9One(g fig9GPU, name string, r fig9Rules) (Fig9Case, bool, error) {
	memory := g.mib << 20
	if r.decimal {
		memory = int64(g.vram) * 1e9
	}
	c := Fig9Case{VRAM: g.vram, GPU: g.gpu, Master: name, Workers: g.workers, Usable: int64(float64(memory) * r.util)}
	master, err := facts.LookupModel(name)
	if err != nil {
		return c, false, err
	}
	shape, geometry := catalogShape(master), master.Geometry(fig9Block, weightElem)
	free := c.Usable - shape.WeightBytes
	c.Cm = free - fig9Chunk*shape.activationPerToken()
	if c.Cm < geometry.FullBlockBytes() {
		return c, false, nil
	}
	var blocks []int
	var most int64
	for i, worker := range g.workers {
		w, err := facts.LookupModel(worker)
		if err != nil {
			return c, false, err
		}
		all, lent := fig9Lent(w, c.Usable, r, slices.Index(g.workers, r.only) != i)
		most += all
		c.have, c.lent = append(c.have, all), append(c.lent, lent)
		c.Cw += lent
		blocks = append(blocks, geometry.FullBlocks(lent))
	}
	tokens := func(arena int64, lent []int) elastic.Capacity {
		k, kerr := elastic.NewCapacity(geometry, max(arena, 0), lent, 1)
		if kerr != nil && err == nil {
			err = kerr
		}
		return k
	}
	perToken := shape.activationPerToken()
	whole := func(lent []int) int {
		return fig9Block * (sort.Search(1<<24, func(i int) bool {
			t := (i + 1) * fig9Block
			return tokens(free-int64(t)*perToken, lent).Tokens < t
		}))
	}
	k := tokens(c.Cm, blocks)
	c.NLSC, c.NRC, c.Lending, c.Chunked, c.Whole = k.NLSC, k.NRC, k.Tokens, k.AloneTokens, whole(nil)
	if r.whole {
		c.Lending = whole(blocks)
	}
	c.Ratio, c.RatioW = ratio(c.Lending, c.Chunked), ratio(c.Lending, c.Whole)
	// Eq. 2 to 5 while a regular cache remains: 1 + (L-1)/L * Cw/Cm.
	per := float64(geometry.Layers-1) / float64(geometry.Layers) * float64(most) / float64(c.Cm)
	c.ForLow, c.ForHigh = (fig9Low-1)/per, (fig9High-1)/per
	return c, true, err
}

// fig9Lent is a worker's KV memory, and what it lends of that.
func fig9Lent(w facts.Model, usable int64, r fig9Rules, another bool) (all, lent int64) {
	shape := catalogShape(w)
	all = max(0, usable-shape.WeightBytes-fig9Chunk*shape.activationPerToken())
	if r.only != "" && another {
		return all, 0
	}
	kept := int64(r.floor) * w.Geometry(fig9Block, weightElem).TokenBytes()
	return all, int64(float64(max(0, all-kept)) * r.share)
}

// Config is the case as a configuration that kvlend plan accepts.
func (c *Fig9Case) Config() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# SwiftCache Fig. 9: %s.\nversion: 1\nfabric: {kind: cuda}\ndevices:\n", c.name())
	for i := range len(c.Workers) + 1 {
		fmt.Fprintf(&b, "  - {name: gpu%d, kind: %s}\n", i, c.GPU)
	}
	const rest = "kv_dtype: f16, max_batch_tokens: 8192, max_running: 1"
	fmt.Fprintf(&b, "models:\n  - {name: master, source: \"catalog:%s\", role: master, device: gpu0, arena: %dB, %s}\n", c.Master, c.Cm, rest)
	for i, w := range c.Workers {
		m, err := facts.LookupModel(w)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		arena := max(c.have[i], m.Geometry(fig9Block, weightElem).FullBlockBytes())
		fmt.Fprintf(&b, "  - {name: worker%d, source: \"catalog:%s\", role: worker, device: gpu%d, arena: %dB, floor: %dB, %s}\n", i+1, w, i+1, arena, arena-c.lent[i], rest)
	}
	b.WriteString("lending: {unit: {policy: layer-lcm}}\n")
	return b.String()
}

// WriteJSON writes the figure as indented JSON.
func (f *Fig9) WriteJSON(w io.Writer) error { return writeJSON(w, f) }

// WriteText writes the figure for a terminal.
func (f *Fig9) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, `SwiftCache, Fig. 9: longest context with lending over that of vLLM with chunks of 8K tokens.
The paper reports %.2fx to %.2fx, and %.2fx to %.2fx over vLLM with larger activations.
Given: GPUs and workers. Assumed: masters, usable memory, what is lent, prefill, activations
(as kvlend plan estimates them). B = 16, 16-bit KV, one LSC buffer; ratio = 1 + (L-1)/L * sum C_w / C_m
while a regular cache remains.

Set A: every case
`, fig9Low, fig9High, fig9LowWhole, fig9HighWhole)
	t := grid([]int{1, 2}, "GB", "master", "workers", "C_m", "sum C_w", "N_LSC", "N_RC", "vLLM 8K", "lending", "ratio", "over unchunked", "1.58x if lent", "3.98x if lent")
	for i := range f.Cases {
		c := &f.Cases[i]
		name := c.Master
		if c.counted() {
			name += " *"
		}
		t.AppendRow(table.Row{c.VRAM, name, strings.Join(c.Workers, ", "), human(c.Cm), human(c.Cw), c.NLSC, c.NRC, c.Chunked, c.Lending,
			times(c.Ratio), times(c.RatioW), needed(c.ForLow), needed(c.ForHigh)})
	}
	fmt.Fprintf(&b, "%s\n* counted in the ranges below. Qwen3-32B in 80 GB is not: %s\n\nRanges under each set of assumptions\n", t.Render(), f.outlier())
	t = grid([]int{0, 1, 3, 4}, "set", "memory", "used", "workers lend", "master's prefill", "lowest", "miss", "highest", "miss", "over unchunked", "miss", "highest", "miss")
	for i, s := range f.Sets {
		name := s.Name
		if i == f.Nearest {
			name += " *"
		}
		row := table.Row{name, s.Memory, fmt.Sprintf("%.0f %%", 100*s.Utilization), s.Lent, s.Prefill}
		for _, e := range []Fig9End{s.Low, s.High, s.LowWhole, s.HighWhole} {
			row = append(row, times(e.Ratio), fmt.Sprintf("%+.1f %%", 100*e.Miss))
		}
		t.AppendRow(row)
	}
	fmt.Fprintf(&b, "%s\n* nearest to both ends. Memory: what the driver reports (97,871, 81,920, 32,768, 23,034 MiB) or GB of 10^9 bytes.\n", t.Render())
	n := f.Sets[f.Nearest]
	fmt.Fprintf(&b, "\nNearest, set %s: %.2fx (%s; %+.1f %% of 1.58x) to %.2fx (%s; %+.1f %% of 3.98x).\n",
		n.Name, n.Low.Ratio, n.Low.Case, 100*n.Low.Miss, n.High.Ratio, n.High.Case, 100*n.High.Miss)
	fmt.Fprintf(&b, "\n%s\n%s", f.LowConfig, f.HighConfig)
	_, err := io.WriteString(w, b.String())
	return err
}

// outlier says why one case cannot have been in the figure as assumed.
func (f *Fig9) outlier() string {
	for _, c := range f.Cases {
		if c.Master == "Qwen3-32B" && c.VRAM == 80 {
			return fmt.Sprintf("%s of KV are left, %d tokens, so that %.2fx follow, far more than %.2fx", human(c.Cm), c.Chunked, c.Ratio, fig9High)
		}
	}
	return "it does not fit"
}

func needed(share float64) string {
	if share > 1 {
		return "never"
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}
