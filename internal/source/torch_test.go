package source

import (
	"bytes"
	"context"
	"encoding/json"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
)

const (
	// tolerance is how far logits may be apart. Inputs of matrix products are
	// rounded to bfloat16, so that a sum in another order may change a bit there:
	// PyTorch's own logits with sums in float32 and in float64 differ by up to
	// 0.067 in 120 prompts of random tokens.
	tolerance = 0.1
	// tie is the lead below which rounding decides which token is the best.
	tie = 0.01
)

// torchPython finds a Python that has PyTorch, or skips the test.
func torchPython(t *testing.T) string {
	t.Helper()
	python := os.Getenv("KVLEND_TORCH_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import torch, numpy").CombinedOutput(); err != nil {
		t.Skipf("PyTorch is not installed, the models of tools/train are not compared with it: %v %.200s (KVLEND_TORCH_PYTHON names a Python that has it)", err, bytes.TrimSpace(out))
	}
	return python
}

// torchAnswer is what tools/train/reference.py says of a prompt.
type torchAnswer struct {
	Logits []float32 `json:"logits"` // of the prompt's last token
	Tokens []int32   `json:"tokens"` // a greedy continuation
	Leads  []float64 `json:"leads"`  // of each of them over the next best
}

// askTorch has PyTorch continue prompts with a model's directory.
func askTorch(t *testing.T, python, dir string, prompts [][]int32, tokens int) []torchAnswer {
	t.Helper()
	task, err := json.Marshal(map[string]any{"prompts": prompts, "tokens": tokens})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, filepath.Join("..", "..", "tools", "train", "reference.py"), dir)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(task), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var answers []torchAnswer
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	if len(answers) != len(prompts) {
		t.Fatalf("PyTorch gave %d answers to %d prompts", len(answers), len(prompts))
	}
	return answers
}

// sameAsTorch generates as PyTorch did. Every token must be the same, but where
// PyTorch had two that are as good as equal; its own is what goes on then. It
// returns how many were the engine's own choice, too.
func sameAsTorch(t *testing.T, m *engine.Model, prompt []int32, want *torchAnswer) (same int) {
	t.Helper()
	kv := engine.NewSimpleKV(m, len(prompt)+len(want.Tokens))
	tokens, start := prompt, 0
	for i, token := range want.Tokens {
		out, err := m.Forward(context.Background(), []engine.Sequence{{Tokens: tokens, Start: start, Logits: engine.LastLogits}}, kv)
		if err != nil {
			t.Fatal(err)
		}
		logits := out.Logits[0]
		if i == 0 {
			worst := 0.0
			for j := range logits {
				worst = max(worst, math.Abs(float64(logits[j]-want.Logits[j])))
			}
			t.Logf("%d tokens: logits from %.2f to %.2f differ by %.2g at most", len(prompt), slices.Min(logits), slices.Max(logits), worst)
			if worst > tolerance {
				t.Errorf("%d tokens: the logits differ by %g, want at most %g", len(prompt), worst, tolerance)
			}
		}
		switch best := int32(slices.Index(logits, slices.Max(logits))); {
		case best == token:
			same++
		case want.Leads[i] < tie:
			t.Logf("%d tokens and %d: the engine says %d, PyTorch %d with a lead of %g", len(prompt), i, best, token, want.Leads[i])
		default:
			t.Fatalf("%d tokens and %d: the engine says %d, PyTorch %d with a lead of %g", len(prompt), i, best, token, want.Leads[i])
		}
		start += len(tokens)
		tokens = []int32{token}
	}
	return same
}

// TestPyTorchComputesTheSame compares the engine with the model that tools/train
// trains, on random tokens: the built-ins and the directory that
// KVLEND_TORCH_MODEL names, such as that of a model in training.
func TestPyTorchComputesTheSame(t *testing.T) {
	python := torchPython(t)
	dirs := map[string]string{}
	for _, name := range engine.BuiltinNames() {
		dirs[name] = filepath.Join(t.TempDir(), name)
		if err := engine.WriteBuiltin(dirs[name], name); err != nil {
			t.Fatal(err)
		}
	}
	if dir := os.Getenv("KVLEND_TORCH_MODEL"); dir != "" {
		dirs["trained"] = dir
	}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) {
			m, err := engine.Load(dir, engine.Options{Threads: 1, KVDType: kernels.F32})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			h := fnv.New64a()
			h.Write([]byte(name))
			r := rand.New(rand.NewPCG(1, h.Sum64()))
			var prompts [][]int32
			for _, n := range []int{1, 17, 200} {
				ids := make([]int32, n)
				for i := range ids {
					ids[i] = r.Int32N(int32(m.Config().Vocab))
				}
				prompts = append(prompts, ids)
			}
			for i, want := range askTorch(t, python, dir, prompts, 24) {
				sameAsTorch(t, m, prompts[i], &want)
			}
		})
	}
}
