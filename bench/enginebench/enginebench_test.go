package enginebench

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
)

func tiny() *engine.Config {
	return &engine.Config{Name: "tiny", Arch: engine.ArchLlama, Layers: 2, Hidden: 32, Heads: 2, KVHeads: 1, HeadDim: 16,
		FFN: 64, Vocab: 100, MaxContext: 600, NormEps: 1e-5, Rope: engine.RopeConfig{Theta: 10000}}
}

func TestRun(t *testing.T) {
	var steps []string
	res, err := Run(context.Background(), Options{Models: []*engine.Config{tiny()}, Rounds: 2, Prefill: []int{5, 40}, Depths: []int{0, 64, 5000},
		DecodeSteps: 3, Chunk: 16, MinTime: 1, Progress: func(s string) { steps = append(steps, s) }})
	if err != nil {
		t.Fatal(err)
	}
	type key struct {
		kind          string
		depth, tokens int
	}
	var got []key
	for _, c := range res.Cases {
		got = append(got, key{c.Kind, c.Depth, c.Tokens})
		if len(c.Seconds) != 2 || !(c.TokensPerSec > 0) || c.BestPerSec < c.TokensPerSec || !(c.Share > 0) || math.IsInf(c.Share, 0) || c.Bound == "" {
			t.Errorf("case %+v", c)
		}
	}
	// 5,000 tokens are beyond the model's context.
	want := []key{{"prefill", 0, 5}, {"prefill", 0, 40}, {"prefill", 64, 512}, {"decode", 0, 3}, {"decode", 64, 3}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(key{})); d != "" {
		t.Error(d)
	}
	if res.ISA == "" || res.Roof.ReadAll <= 0 || len(steps) != 1+2*(1+len(want)) {
		t.Errorf("isa %q, roof %+v, %d steps", res.ISA, res.Roof, len(steps))
	}
	var table, raw bytes.Buffer
	if err := res.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	if s := table.String(); strings.Count(s, "tiny") != len(want) || !strings.Contains(s, "of the roof") && !strings.Contains(s, "OF THE ROOF") {
		t.Errorf("table:\n%s", s)
	}
	if err := res.WriteJSON(&raw); err != nil {
		t.Fatal(err)
	}
	var back Result
	if err := json.Unmarshal(raw.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(res, &back); d != "" {
		t.Error(d)
	}
}

func TestRunRefuses(t *testing.T) {
	for field, opt := range map[string]Options{
		"Rounds": {Rounds: -1}, "Chunk": {Chunk: -5}, "Prefill": {Prefill: []int{0}}, "Depths": {Depths: []int{-1}}, "DecodeSteps": {DecodeSteps: -1},
	} {
		if _, err := Run(context.Background(), opt); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: error %v, want one that names %s", opt, err, field)
		}
	}
}

// TestWork checks the counts against sums written out for one case each.
func TestWork(t *testing.T) {
	c := tiny()
	c.WeightBytes = 1e6
	// A layer: q 32x32, k and v 32x16, o 32x32, three of 32x64.
	const layer = 32*32 + 2*32*16 + 32*32 + 3*32*64
	flops, bytes := work(c, kernels.BF16, &Case{Kind: "decode", Depth: 10, Tokens: 2})
	// The two tokens see 11 and 12 positions, 2 heads of 16, 2 layers.
	if want := float64(2*2*(2*layer+3200) + 2*4*32*(11+12)); flops != want {
		t.Errorf("decode: %v operations, want %v", flops, want)
	}
	if want := float64(2*(1e6-2*3200) + (11+12)*2*2*16*2); bytes != want {
		t.Errorf("decode: %v bytes, want %v", bytes, want)
	}
	flops, bytes = work(c, kernels.BF16, &Case{Kind: "prefill", Depth: 10, Tokens: 2})
	const last = 32 * (32 + 2*16)
	if want := float64(2*2*(layer+last) + 2*(layer-last+3200) + 4*32*(11+12) + 4*32*12); flops != want {
		t.Errorf("prefill: %v operations, want %v", flops, want)
	}
	if want := float64(1e6 - 2*3200 + 12*2*2*16*2); bytes != want {
		t.Errorf("prefill: %v bytes, want %v", bytes, want)
	}
}

func TestFillKV(t *testing.T) {
	mem := make([]byte, 4096)
	fillKV(mem, rand.New(rand.NewPCG(1, 1)))
	for i := 0; i < len(mem); i += 2 {
		v := math.Abs(float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(mem[i:])) << 16)))
		if v < 0.125 || v >= 0.5 {
			t.Fatalf("element %d is %v", i/2, v)
		}
	}
}
