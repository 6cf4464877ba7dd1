// Package facts is what a planner knows about hardware and models that it does
// not have: GPUs by name, with memory, bandwidths and peak arithmetic, and
// models by name, with their shapes and sizes. The tables are embedded JSON
// files, gpus.json and models.json; every number is checked when it is read.
package facts

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kvlend/kvlend/elastic"
)

//go:embed gpus.json
var gpusJSON []byte

//go:embed models.json
var modelsJSON []byte

// GPU is one kind of GPU, as its maker describes it.
type GPU struct {
	Name string `json:"name"`
	// Memory is the advertised size in bytes; GB are 10^9.
	Memory int64 `json:"memory"`
	// MemoryBandwidth is that of its own memory, in bytes per second.
	MemoryBandwidth float64 `json:"memory_bandwidth"`
	// FLOPS is the peak of dense 16-bit matrix products, per second.
	FLOPS float64 `json:"flops"`
	// NVLink is bytes per second in each direction, over all links together;
	// 0: it has none.
	NVLink float64 `json:"nvlink"`
	// PCIe is the slot, such as "Gen5 x16".
	PCIe string `json:"pcie"`
	// PCIeBandwidth is the slot's bytes per second in each direction, before
	// protocol overhead.
	PCIeBandwidth float64 `json:"pcie_bandwidth"`
}

// Experts is a mixture of experts.
type Experts struct {
	Count  int `json:"count"`
	Active int `json:"active"` // per token
	FFN    int `json:"ffn"`    // intermediate size of one expert
}

// Model is one model's shape.
type Model struct {
	Name         string   `json:"name"`
	Layers       int      `json:"layers"`
	QHeads       int      `json:"q_heads"`
	KVHeads      int      `json:"kv_heads"`
	HeadDim      int      `json:"head_dim"`
	Hidden       int      `json:"hidden"`
	FFN          int      `json:"ffn"`
	Experts      *Experts `json:"experts,omitempty"` // nil: dense
	Vocab        int      `json:"vocab"`
	MaxContext   int      `json:"max_context"`   // tokens it was trained for
	Tied         bool     `json:"tied"`          // input and output embeddings are one
	Params       int64    `json:"params"`        // all weights
	ActiveParams int64    `json:"active_params"` // read per token, without the input embedding
	// Note says what the figures leave out, such as sliding windows; or "".
	Note string `json:"note,omitempty"`
}

// WeightBytes is the memory that the weights need at elemBytes each.
func (m Model) WeightBytes(elemBytes int) int64 { return m.Params * int64(elemBytes) }

// Geometry is the model's KV geometry under its own name.
func (m Model) Geometry(blockTokens, elemBytes int) elastic.Geometry {
	return elastic.Geometry{
		Name: m.Name, Layers: m.Layers, KVHeads: m.KVHeads, HeadDim: m.HeadDim,
		BlockTokens: blockTokens, ElemBytes: elemBytes,
	}
}

// UnknownError says that a table has no entry of that name.
type UnknownError struct {
	Kind  string // "GPU" or "model"
	Name  string
	Known []string // sorted
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("no %s %q is known, want one of %s", e.Kind, e.Name, strings.Join(e.Known, ", "))
}

// GPUs lists all known GPUs, by name. The caller may change the slice.
func GPUs() []GPU {
	out, err := parseGPUs(gpusJSON)
	if err != nil {
		panic("BUG: gpus.json: " + err.Error())
	}
	return out
}

// Models lists all known models, by name. The caller may change the slice.
func Models() []Model {
	out, err := parseModels(modelsJSON)
	if err != nil {
		panic("BUG: models.json: " + err.Error())
	}
	return out
}

// LookupGPU finds a GPU by name, in whatever case; *UnknownError if there is none.
func LookupGPU(name string) (GPU, error) {
	return lookup("GPU", name, GPUs(), func(g GPU) string { return g.Name })
}

// LookupModel finds a model by name, in whatever case; *UnknownError if there
// is none.
func LookupModel(name string) (Model, error) {
	return lookup("model", name, Models(), func(m Model) string { return m.Name })
}

func lookup[T any](kind, name string, all []T, nameOf func(T) string) (T, error) {
	known := make([]string, len(all))
	for i, x := range all {
		if known[i] = nameOf(x); strings.EqualFold(known[i], name) {
			return x, nil
		}
	}
	var none T
	return none, &UnknownError{Kind: kind, Name: name, Known: known}
}

// pcieLane is bytes per second of one lane in each direction, by generation,
// after the line code.
var pcieLane = map[int]float64{3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}

type gpuRow struct {
	MemGB  float64 `json:"mem_gb"`
	HBM    float64 `json:"hbm_tbs"`
	TFLOPS float64 `json:"bf16_dense_tflops"`
	NVLink float64 `json:"nvlink_gbs_per_dir"`
	PCIe   string  `json:"pcie"`
}

func parseGPUs(text []byte) ([]GPU, error) {
	return parseTable(text, func(name string, r gpuRow) (GPU, error) {
		c := checker{name: name}
		c.within("mem_gb", r.MemGB, 1, 10_000)
		c.within("hbm_tbs", r.HBM, 0.01, 1000)
		c.within("bf16_dense_tflops", r.TFLOPS, 0.1, 1e6)
		c.within("nvlink_gbs_per_dir", r.NVLink, 0, 1e5)
		var gen, lanes int
		if n, err := fmt.Sscanf(r.PCIe, "Gen%d x%d", &gen, &lanes); n != 2 || err != nil || pcieLane[gen] == 0 || lanes < 1 || lanes > 16 {
			c.fail("pcie", fmt.Sprintf("%q", r.PCIe), `a slot such as "Gen4 x16", Gen3 to Gen6, 1 to 16 lanes`)
		}
		return GPU{
			Name: name, Memory: int64(r.MemGB * 1e9), MemoryBandwidth: r.HBM * 1e12, FLOPS: r.TFLOPS * 1e12,
			NVLink: r.NVLink * 1e9, PCIe: r.PCIe, PCIeBandwidth: float64(lanes) * pcieLane[gen],
		}, errors.Join(c.errs...)
	})
}

// modelRow is an entry of models.json. The last four fields follow from the
// others and are only checked against them.
type modelRow struct {
	Layers     int     `json:"layers"`
	QHeads     int     `json:"q_heads"`
	KVHeads    int     `json:"kv_heads"`
	HeadDim    int     `json:"head_dim"`
	Hidden     int     `json:"hidden"`
	FFN        int     `json:"ffn"`
	MoE        []int   `json:"moe"` // experts, active ones, FFN of one; null: dense
	Vocab      int     `json:"vocab"`
	MaxCtx     int     `json:"max_ctx"`
	Tied       bool    `json:"tied"`
	Params     int64   `json:"params"`
	Active     int64   `json:"active"`
	Note       string  `json:"note"`
	WeightsGiB float64 `json:"weights_gib_fp16"`
	TokenBytes int64   `json:"kv_bytes_per_token"`
	LayerBlock int64   `json:"layer_block16_bytes"`
	FullBlock  int64   `json:"full_block16_bytes"`
}

func parseModels(text []byte) ([]Model, error) {
	return parseTable(text, func(name string, r modelRow) (Model, error) {
		c := checker{name: name}
		for _, f := range []struct {
			name string
			v    int
		}{
			{"layers", r.Layers}, {"q_heads", r.QHeads}, {"kv_heads", r.KVHeads}, {"head_dim", r.HeadDim},
			{"hidden", r.Hidden}, {"ffn", r.FFN}, {"vocab", r.Vocab}, {"max_ctx", r.MaxCtx},
		} {
			c.within(f.name, float64(f.v), 1, 1<<24)
		}
		c.within("params", float64(r.Params), 1, 1e14)
		c.within("active", float64(r.Active), 1, float64(r.Params))
		m := Model{
			Name: name, Layers: r.Layers, QHeads: r.QHeads, KVHeads: r.KVHeads, HeadDim: r.HeadDim, Hidden: r.Hidden, FFN: r.FFN,
			Vocab: r.Vocab, MaxContext: r.MaxCtx, Tied: r.Tied, Params: r.Params, ActiveParams: r.Active, Note: r.Note,
		}
		switch {
		case len(r.MoE) == 3 && r.MoE[1] >= 1 && r.MoE[1] <= r.MoE[0] && r.MoE[2] >= 1:
			m.Experts = &Experts{Count: r.MoE[0], Active: r.MoE[1], FFN: r.MoE[2]}
		case r.MoE != nil:
			c.fail("moe", fmt.Sprint(r.MoE), "null, or [experts, active ones, intermediate size of one]")
		}
		if len(c.errs) == 0 {
			g := m.Geometry(16, 2)
			c.equal("kv_bytes_per_token", r.TokenBytes, g.TokenBytes())
			c.equal("layer_block16_bytes", r.LayerBlock, g.LayerBlockBytes())
			c.equal("full_block16_bytes", r.FullBlock, g.FullBlockBytes())
			c.equal("weights_gib_fp16 in hundredths", int64(r.WeightsGiB*100+0.5), int64(float64(m.WeightBytes(2))/(1<<30)*100+0.5))
		}
		return m, errors.Join(c.errs...)
	})
}

// parseTable reads an object of rows and returns them by name, in the order of
// their names. Unknown keys are refused.
func parseTable[R, T any](text []byte, row func(name string, r R) (T, error)) ([]T, error) {
	var rows map[string]R
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&rows); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text after the table")
	}
	names := make([]string, 0, len(rows))
	for name := range rows {
		names = append(names, name)
	}
	slices.Sort(names)
	out := make([]T, 0, len(rows))
	var errs []error
	for _, name := range names {
		x, err := row(name, rows[name])
		errs = append(errs, err)
		out = append(out, x)
	}
	return out, errors.Join(errs...)
}

// checker collects what is wrong with one row.
type checker struct {
	name string
	errs []error
}

func (c *checker) fail(field, value, accepted string) {
	c.errs = append(c.errs, fmt.Errorf("%s: %s is %s, want %s", c.name, field, value, accepted))
}

func (c *checker) within(field string, v, low, high float64) {
	if !(v >= low && v <= high) {
		c.fail(field, fmt.Sprint(v), fmt.Sprintf("%g to %g", low, high))
	}
}

func (c *checker) equal(field string, v, want int64) {
	if v != want {
		c.fail(field, fmt.Sprint(v), fmt.Sprint(want))
	}
}
