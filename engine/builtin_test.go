package engine_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

// TestBuiltinDigests pins the weights: they must be the same on every machine
// and for every release, since prefix identities and stored KV depend on them.
func TestBuiltinDigests(t *testing.T) {
	want := map[string]string{
		"atlas":        "4bd96ab5600f1937fe2dc3e42997f70597e147d246d1f3ac7e25e0a15207e96b",
		"birch":        "a4199e71b241ec062d41c5033cbf498175f2d2573666e2ae3787c68b1adbdce4",
		"cedar":        "7a8cef9bfc184fb5837d24d8938c5b7e2b129da8c58c065a494b4fc3fa1e922e",
		"random-atlas": "f25c923f0a0a41975a94a4a46258790c35fa96684b0445b7b4827f9e47816737",
		"random-birch": "277d7b39e047c6c3ec8d4e41d6733775ee608e80477629d8395ef763b210e364",
		"random-cedar": "0e4e64668d5e47857691b79e2b51e8e92b754c3f9c6989aad45d077cf905fa1a",
	}
	if got := engine.BuiltinNames(); !slices.Equal(got, []string{"atlas", "birch", "cedar", "random-atlas", "random-birch", "random-cedar"}) {
		t.Fatalf("built-ins %v", got)
	}
	for name, digest := range want {
		m, err := engine.Builtin(name, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Config().WeightsDigest; got != digest {
			t.Errorf("%s: digest %s, want %s", name, got, digest)
		}
		cfg, err := engine.BuiltinConfig(name)
		if err != nil {
			t.Fatal(err)
		}
		cfg.WeightsDigest, cfg.WeightBytes = m.Config().WeightsDigest, m.Config().WeightBytes
		if d := cmp.Diff(cfg, m.Config()); d != "" {
			t.Errorf("%s: BuiltinConfig differs from the model's: %s", name, d)
		}
		m.Close()
	}
	if _, err := engine.Builtin("oak", engine.Options{}); err == nil || !strings.Contains(err.Error(), "atlas, birch, cedar") {
		t.Errorf("unknown name: %v", err)
	}
}

func TestBuiltinGeometry(t *testing.T) {
	want := map[string][2]int64{"atlas": {4096, 32768}, "birch": {1536, 16384}, "cedar": {1280, 16384}, "random-atlas": {4096, 32768}, "random-birch": {1536, 16384}, "random-cedar": {1280, 16384}}
	for name, w := range want {
		c, err := engine.BuiltinConfig(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.KVBytesPerToken(kernels.BF16); got != w[0] || int64(c.MaxContext) != w[1] {
			t.Errorf("%s: %d bytes of KV per token and context %d, want %d and %d", name, got, c.MaxContext, w[0], w[1])
		}
	}
}

// TestBuiltinOptions checks that options are refused by name and applied.
func TestBuiltinOptions(t *testing.T) {
	for field, opt := range map[string]engine.Options{
		"BlockTokens": {BlockTokens: 17}, "DType": {KVDType: kernels.F16}, "ISA": {ISA: "vax"}, "Threads": {Threads: -1},
	} {
		if _, err := engine.Builtin("random-cedar", opt); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: error %v, want one that names %s", opt, err, field)
		}
	}
	m, err := engine.Builtin("random-cedar", engine.Options{Name: "mine", BlockTokens: 32, KVDType: kernels.F32, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	want := kernels.KVLayout{BlockTokens: 32, KVHeads: 1, HeadDim: 64, DType: kernels.F32}
	if m.Config().Name != "mine" || m.KVLayout() != want {
		t.Errorf("name %s and layout %+v, want mine and %+v", m.Config().Name, m.KVLayout(), want)
	}
}

// TestBuiltinTextIsReadable samples from the model's own distribution: all but
// a few characters must be printable ASCII, and the end of a turn must be
// possible without being likely.
func TestBuiltinTextIsReadable(t *testing.T) {
	for _, name := range []string{"random-atlas", "random-birch", "random-cedar"} {
		t.Run(name, func(t *testing.T) {
			m, err := engine.Builtin(name, engine.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			text, ends, letters := sampleText(t, m, 600)
			if ends > 20 || letters < 400 {
				t.Errorf("%d ends of turns and %d letters and spaces among 600 tokens: %q", ends, letters, text)
			}
			for i, c := range text {
				if (c < ' ' || c > '~') && c != '\n' {
					t.Errorf("character %d is %q in %q", i, c, text)
				}
			}
		})
	}
}

// sampleText draws n tokens at temperature 1 after a chat prompt.
func sampleText(t *testing.T, m *engine.Model, n int) (text string, ends, letters int) {
	t.Helper()
	tok := tokenizer.Builtin()
	prompt, err := tok.Encode("<|im_start|>user\nWie geht's, 世界?<|im_end|>\n<|im_start|>assistant\n", tokenizer.EncodeOptions{ParseSpecial: true})
	if err != nil {
		t.Fatal(err)
	}
	kv := engine.NewSimpleKV(m, len(prompt)+n)
	rng := rand.New(rand.NewPCG(1, 2))
	var ids []int32
	start, next := 0, prompt
	for range n {
		out, err := m.Forward(context.Background(), []engine.Sequence{{Tokens: next, Start: start, Logits: engine.LastLogits}}, kv)
		if err != nil {
			t.Fatal(err)
		}
		start += len(next)
		id := draw(rng, out.Logits[0])
		switch {
		case id == tokenizer.BuiltinIMEnd:
			ends++
		case id == ' ' || id >= 'a' && id <= 'z':
			letters++
		}
		next = []int32{id}
		ids = append(ids, id)
	}
	return tok.Decode(ids, true), ends, letters
}

// draw samples from softmax(logits).
func draw(rng *rand.Rand, logits []float32) int32 {
	p, sum := make([]float64, len(logits)), 0.0
	for i, v := range logits {
		p[i] = math.Exp(float64(v))
		sum += p[i]
	}
	u := rng.Float64() * sum
	for i, v := range p {
		if u -= v; u < 0 {
			return int32(i)
		}
	}
	return int32(len(logits) - 1)
}
