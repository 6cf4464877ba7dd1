package engine_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/safetensors"
	"pgregory.net/rapid"
)

// requireEqual fails unless two rows of logits have the same bits.
func requireEqual(t rapid.TB, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d logits, want %d", what, len(got), len(want))
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: logit %d is %v (%#08x), want %v (%#08x)", what, i,
				got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

// TestChunksAndBatches checks that any chunking, in any batches, under any
// logits mode gives the bits of one pass over each sequence alone.
func TestChunksAndBatches(t *testing.T) {
	for i, f := range []struct {
		dtype safetensors.DType
		kv    kernels.DType
		block int
	}{{safetensors.BF16, kernels.BF16, 16}, {safetensors.F32, kernels.F32, 32}, {safetensors.F16, kernels.BF16, 48}} {
		t.Run(fmt.Sprintf("%s-%s", f.dtype, f.kv), func(t *testing.T) {
			c := modelCases()[[]int{4, 2, 0}[i]]
			dir := t.TempDir()
			c.write(t, dir, f.dtype, 1)
			opt := engine.Options{KVDType: f.kv, BlockTokens: f.block, Threads: 2}
			m := load(t, dir, opt)
			const seqs, longest = 3, 300
			var tokens [seqs][]int32
			var want [seqs][][]float32
			for s := range seqs {
				tokens[s] = randomTokens(uint64(s), longest, c.g.VocabSize)
				want[s] = forwardAll(t, m, tokens[s])
			}
			rapid.Check(t, func(t *rapid.T) {
				kv := engine.NewSimpleKVs(m, seqs, longest)
				var at [seqs]int
				for pass := range rapid.IntRange(1, 6).Draw(t, "passes") {
					order := rapid.Permutation([]int{0, 1, 2}).Draw(t, "order")[:rapid.IntRange(1, seqs).Draw(t, "size")]
					runChunk(t, m, kv, order, &at, &tokens, &want, pass)
				}
			})
		})
	}
}

// runChunk advances the sequences of order by chunks of drawn length and
// compares every row of logits.
func runChunk(t *rapid.T, m *engine.Model, kv *engine.SimpleKV, order []int, at *[3]int, tokens *[3][]int32, want *[3][][]float32, pass int) {
	var batch []engine.Sequence
	var used []int
	for _, s := range order {
		left := len(tokens[s]) - at[s]
		if left == 0 {
			continue
		}
		n := rapid.OneOf(rapid.Just(1), rapid.IntRange(1, min(left, 20)), rapid.IntRange(1, left)).Draw(t, "chunk")
		n = min(n, left)
		mode := rapid.SampledFrom([]engine.LogitsMode{engine.NoLogits, engine.LastLogits, engine.AllLogits}).Draw(t, "logits")
		batch = append(batch, engine.Sequence{Tokens: tokens[s][at[s] : at[s]+n], Start: at[s], Logits: mode})
		used = append(used, s)
	}
	if len(batch) == 0 {
		return
	}
	kv.Use(used...)
	out, err := m.Forward(context.Background(), batch, kv)
	if err != nil {
		t.Fatal(err)
	}
	row := 0
	for i, s := range used {
		end := at[s] + len(batch[i].Tokens)
		first := end
		switch batch[i].Logits {
		case engine.LastLogits:
			first = end - 1
		case engine.AllLogits:
			first = at[s]
		}
		for p := first; p < end; p++ {
			requireEqual(t, fmt.Sprintf("pass %d, sequence %d, position %d", pass, s, p), out.Logits[row], want[s][p])
			row++
		}
		at[s] = end
	}
	if row != len(out.Logits) {
		t.Fatalf("%d rows of logits, want %d", len(out.Logits), row)
	}
}

// TestInstructionSetsAgree compares every instruction set and thread count of
// this machine.
func TestInstructionSetsAgree(t *testing.T) {
	t.Logf("instruction sets of this machine: %v", kernels.Available())
	for _, name := range engine.BuiltinNames() {
		var want [][]float32
		for _, isa := range kernels.Available() {
			for _, threads := range []int{1, 3} {
				if isa == "go" && threads > 1 {
					continue // slow under the race detector
				}
				m, err := engine.Builtin(name, engine.Options{ISA: isa, Threads: threads})
				if err != nil {
					t.Fatal(err)
				}
				if m.ISA() != isa || m.Threads() != threads {
					t.Errorf("runs on %s with %d threads, want %s with %d", m.ISA(), m.Threads(), isa, threads)
				}
				got := forwardAll(t, m, randomTokens(5, 18, 320))
				m.Close()
				if want == nil {
					want = got
				}
				for i := range got {
					requireEqual(t, fmt.Sprintf("%s on %s with %d threads, row %d", name, isa, threads, i), got[i], want[i])
				}
			}
		}
	}
}

// shuffledKV scatters blocks over an arena with a hole before each, and checks
// the order of calls.
type shuffledKV struct {
	*testing.T
	mem    []byte
	tables [][]int64
	calls  []string
}

func newShuffledKV(t *testing.T, m *engine.Model, tokens int) *shuffledKV {
	l, layers := m.KVLayout(), m.Config().Layers
	blocks := (tokens + l.BlockTokens - 1) / l.BlockTokens
	stride := l.LayerBlockBytes() + 64
	kv := &shuffledKV{T: t, mem: make([]byte, int64(layers*blocks)*stride), tables: make([][]int64, layers)}
	for i := range kv.mem {
		kv.mem[i] = 0xff // bf16 and f32 NaN: what was never written must not matter
	}
	for i := range layers * blocks {
		kv.tables[i%layers] = append(kv.tables[i%layers], int64(layers*blocks-1-i)*stride+64)
	}
	return kv
}

func (kv *shuffledKV) Memory() []byte { return kv.mem }
func (kv *shuffledKV) Layer(l int) ([][]int64, error) {
	kv.calls = append(kv.calls, fmt.Sprint("layer ", l))
	return kv.tables[l : l+1], nil
}
func (kv *shuffledKV) Written(l int) { kv.calls = append(kv.calls, fmt.Sprint("written ", l)) }
func (kv *shuffledKV) Done(l int)    { kv.calls = append(kv.calls, fmt.Sprint("done ", l)) }

// TestPlacementDoesNotMatter checks that blocks may lie anywhere, that bytes
// outside the blocks' written tokens are neither used nor changed, and that
// the KV is called in its documented order.
func TestPlacementDoesNotMatter(t *testing.T) {
	m, err := engine.Builtin("random-cedar", engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	tokens := randomTokens(9, 37, 320)
	want := forwardAll(t, m, tokens)
	kv := newShuffledKV(t, m, len(tokens))
	for start := 0; start < len(tokens); {
		n := min(9, len(tokens)-start)
		out, err := m.Forward(context.Background(), []engine.Sequence{{Tokens: tokens[start : start+n], Start: start, Logits: engine.AllLogits}}, kv)
		if err != nil {
			t.Fatal(err)
		}
		for i, row := range out.Logits {
			requireEqual(t, fmt.Sprint("position ", start+i), row, want[start+i])
		}
		start += n
	}
	stride := m.KVLayout().LayerBlockBytes() + 64
	for off := int64(0); off < int64(len(kv.mem)); off += stride {
		for i, b := range kv.mem[off : off+64] {
			if b != 0xff {
				t.Fatalf("byte %d of the hole at %d was written", i, off)
			}
		}
	}
	var order []string
	for l := range m.Config().Layers {
		order = append(order, fmt.Sprint("layer ", l), fmt.Sprint("written ", l), fmt.Sprint("done ", l))
	}
	if got := kv.calls[:len(order)]; !slices.Equal(got, order) {
		t.Errorf("calls %v, want %v", got, order)
	}
}

// TestHistoryMatters makes sure that a corrupted KV byte changes logits: the
// end-to-end tests elsewhere rest on it.
func TestHistoryMatters(t *testing.T) {
	for _, name := range engine.BuiltinNames() {
		m, err := engine.Builtin(name, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		tokens := randomTokens(4, 33, 320)
		want := forwardAll(t, m, tokens)[32]
		for _, layer := range []int{0, m.Config().Layers / 2, m.Config().Layers - 1} {
			kv := engine.NewSimpleKV(m, 33)
			step := func(start, end int) []float32 {
				out, err := m.Forward(context.Background(), []engine.Sequence{{Tokens: tokens[start:end], Start: start, Logits: engine.LastLogits}}, kv)
				if err != nil {
					t.Fatal(err)
				}
				return out.Logits[0]
			}
			step(0, 32)
			l := m.KVLayout()
			k, v := make([]float32, l.KVHeads*l.HeadDim), make([]float32, l.KVHeads*l.HeadDim)
			tables, _ := kv.Layer(layer)
			if err := kernels.ReadKV(kv.Memory(), l, tables[0][0], 3, k, v); err != nil {
				t.Fatal(err)
			}
			k[5], v[7] = -k[5], -v[7]
			if err := kernels.WriteKV(kv.Memory(), l, tables[0][0], 3, k, v); err != nil {
				t.Fatal(err)
			}
			if slices.Equal(step(32, 33), want) {
				t.Errorf("%s: a corrupted key and value of layer %d changed no logit", name, layer)
			}
		}
		m.Close()
	}
}
