package enginebench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
)

// LayoutOptions say what CompareLayouts measures. Zero fields have the defaults
// named.
type LayoutOptions struct {
	Models   []*engine.Config // Default
	Threads  int              // GOMAXPROCS
	Tokens   int              // of KV in the cache; 4096
	Rounds   int              // 15
	MinTime  time.Duration    // each side is repeated for so long in a round; 50 ms
	Progress func(string)     // may be nil
}

// LayoutResult compares attention over a block-major cache, whose full blocks
// can be lent, with attention over a layer-major one.
type LayoutResult struct {
	ISA    string       `json:"isa"`
	Rounds int          `json:"rounds"`
	Cases  []LayoutCase `json:"cases"`
}

// LayoutCase is the attention of all layers of one pass over the same memory
// under two sets of block tables.
type LayoutCase struct {
	Model    string  `json:"model"`
	Pass     string  `json:"pass"`
	Blocks   string  `json:"blocks"` // "in order", or "shuffled" as in a cache that has been used for long
	BlockMS  float64 `json:"block_major_ms"`
	LayerMS  float64 `json:"layer_major_ms"`
	Ratio    float64 `json:"ratio"` // block-major over layer-major, median of the rounds' ratios
	RatioLow float64 `json:"ratio_p10"`
	RatioTop float64 `json:"ratio_p90"`
}

const prefillRows = 256

// layoutSubject is one model's cache.
type layoutSubject struct {
	r      *kernels.Runner
	cfg    *engine.Config
	l      kernels.KVLayout
	mem    []byte
	q, out []float32
}

// CompareLayouts measures decode of one sequence, decode of eight that share the
// cache, and a chunk of a prefill. The two sides take turns in going first.
func CompareLayouts(ctx context.Context, opt LayoutOptions) (*LayoutResult, error) {
	if err := opt.defaults(); err != nil {
		return nil, err
	}
	r, err := kernels.New(kernels.Options{Threads: opt.Threads})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	res := &LayoutResult{ISA: r.Name(), Rounds: opt.Rounds}
	for _, cfg := range opt.Models {
		s := newLayoutSubject(r, cfg, opt.Tokens)
		for _, shuffled := range []bool{false, true} {
			for _, pass := range []string{"decode", "decode of 8", "prefill"} {
				opt.Progress(fmt.Sprintf("%s: %s", cfg.Name, pass))
				c, err := s.compare(ctx, pass, shuffled, &opt)
				if err != nil {
					return nil, err
				}
				res.Cases = append(res.Cases, c)
			}
		}
	}
	return res, nil
}

func (o *LayoutOptions) defaults() error {
	if o.Models == nil {
		models, err := Default()
		if err != nil {
			return err
		}
		o.Models = models
	}
	if o.Tokens == 0 {
		o.Tokens = 4096
	}
	if o.Rounds == 0 {
		o.Rounds = 15
	}
	if o.MinTime == 0 {
		o.MinTime = 50 * time.Millisecond
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Tokens < 2*prefillRows || o.Tokens%128 != 0 {
		return fmt.Errorf("enginebench: Tokens is %d, want a multiple of 128 and at least %d", o.Tokens, 2*prefillRows)
	}
	if o.Rounds < 1 {
		return fmt.Errorf("enginebench: Rounds is %d, want at least 1", o.Rounds)
	}
	return nil
}

func newLayoutSubject(r *kernels.Runner, cfg *engine.Config, tokens int) *layoutSubject {
	s := &layoutSubject{r: r, cfg: cfg, l: kernels.KVLayout{BlockTokens: 16, KVHeads: cfg.KVHeads, HeadDim: cfg.HeadDim, DType: kernels.BF16}}
	s.mem = make([]byte, int64(cfg.Layers)*int64(tokens/16)*s.l.LayerBlockBytes())
	rng := rand.New(rand.NewPCG(1, 1))
	fillKV(s.mem, rng)
	s.q = make([]float32, prefillRows*cfg.Heads*cfg.HeadDim)
	for i := range s.q {
		s.q[i] = rng.Float32() - 0.5
	}
	s.out = make([]float32, len(s.q))
	return s
}

// tables places all blocks, in order or shuffled, by layer.
func (s *layoutSubject) tables(blockMajor, shuffled bool) [][]int64 {
	size := s.l.LayerBlockBytes()
	blocks := int(int64(len(s.mem)) / size / int64(s.cfg.Layers))
	order := make([]int, blocks)
	for i := range order {
		order[i] = i
	}
	if shuffled {
		order = rand.New(rand.NewPCG(2, 2)).Perm(blocks)
	}
	out := make([][]int64, s.cfg.Layers)
	for l := range out {
		for _, b := range order {
			at := l*blocks + b
			if blockMajor {
				at = b*s.cfg.Layers + l
			}
			out[l] = append(out[l], int64(at)*size)
		}
	}
	return out
}

// sequences divides a layer's table among the sequences of a pass.
func sequences(pass string, table []int64) []kernels.AttnSeq {
	switch pass {
	case "prefill":
		return []kernels.AttnSeq{{Rows: prefillRows, Start: 16*len(table) - prefillRows, Table: table}}
	case "decode":
		return []kernels.AttnSeq{{Rows: 1, Start: 16*len(table) - 1, Table: table}}
	}
	var out []kernels.AttnSeq
	for part := range slices.Chunk(table, len(table)/8) {
		out = append(out, kernels.AttnSeq{Rows: 1, Start: 16*len(part) - 1, Table: part})
	}
	return out
}

func (s *layoutSubject) compare(ctx context.Context, pass string, shuffled bool, opt *LayoutOptions) (LayoutCase, error) {
	c := LayoutCase{Model: s.cfg.Name, Pass: pass, Blocks: "in order"}
	if shuffled {
		c.Blocks = "shuffled"
	}
	var sides [2][][]kernels.AttnSeq // layer-major, block-major; by layer
	for i := range sides {
		for _, table := range s.tables(i == 1, shuffled) {
			sides[i] = append(sides[i], sequences(pass, table))
		}
		if err := s.pass(sides[i]); err != nil { // pages in
			return c, err
		}
	}
	var times [2][]float64
	var ratios []float64
	for round := range opt.Rounds {
		if err := ctx.Err(); err != nil {
			return c, err
		}
		for turn := range sides {
			side := (turn + round) % 2
			ms, err := s.measure(sides[side], opt.MinTime)
			if err != nil {
				return c, err
			}
			times[side] = append(times[side], ms)
		}
		ratios = append(ratios, times[1][round]/times[0][round])
	}
	c.LayerMS, c.BlockMS = quantile(times[0], 0.5), quantile(times[1], 0.5)
	c.Ratio, c.RatioLow, c.RatioTop = quantile(ratios, 0.5), quantile(ratios, 0.1), quantile(ratios, 0.9)
	return c, nil
}

// measure is the mean time of a pass in milliseconds.
func (s *layoutSubject) measure(layers [][]kernels.AttnSeq, least time.Duration) (float64, error) {
	start, n := time.Now(), 0
	for n == 0 || time.Since(start) < least {
		if err := s.pass(layers); err != nil {
			return 0, err
		}
		n++
	}
	return time.Since(start).Seconds() * 1e3 / float64(n), nil
}

func (s *layoutSubject) pass(layers [][]kernels.AttnSeq) error {
	scale := float32(1 / math.Sqrt(float64(s.cfg.HeadDim)))
	for _, seqs := range layers {
		rows := 0
		for _, q := range seqs {
			rows += q.Rows
		}
		n := rows * s.cfg.Heads * s.cfg.HeadDim
		if err := s.r.Attention(s.out[:n], s.q[:n], s.cfg.Heads, scale, s.l, s.mem, seqs); err != nil {
			return err
		}
	}
	return nil
}

// quantile is the smallest value that a share p of them does not exceed.
func quantile(v []float64, p float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[min(int(p*float64(len(s))), len(s)-1)]
}

// WriteJSON writes the result as indented JSON.
func (r *LayoutResult) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteTable writes the result for a terminal.
func (r *LayoutResult) WriteTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s. Attention of all layers; medians of %d rounds, ratio as the median of the rounds' ratios.\n", r.ISA, r.Rounds); err != nil {
		return err
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"model", "pass", "blocks", "layer-major ms", "block-major ms", "ratio", "P10 to P90"})
	var right []table.ColumnConfig
	for n := 4; n <= 7; n++ {
		right = append(right, table.ColumnConfig{Number: n, Align: text.AlignRight})
	}
	t.SetColumnConfigs(right)
	for i, c := range r.Cases {
		if i > 0 && c.Model != r.Cases[i-1].Model {
			t.AppendSeparator()
		}
		t.AppendRow(table.Row{c.Model, c.Pass, c.Blocks, fmt.Sprintf("%.3f", c.LayerMS), fmt.Sprintf("%.3f", c.BlockMS),
			fmt.Sprintf("%.3f", c.Ratio), fmt.Sprintf("%.3f to %.3f", c.RatioLow, c.RatioTop)})
	}
	_, err := fmt.Fprintln(w, t.Render())
	return err
}
