package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/engine/kernels"
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
	Logits []float32 // of the prompt's last token
	Tokens []int32   // a greedy continuation
	Leads  []float64 // of each of them over the next best
}

// TestPyTorchComputesTheSame compares the engine with the model that
// tools/train trains, on the built-ins and on the directory that
// KVLEND_TORCH_MODEL names, such as that of a model in training.
func TestPyTorchComputesTheSame(t *testing.T) {
	python := torchPython(t)
	dirs := map[string]string{}
	for _, name := range BuiltinNames() {
		dirs[name] = filepath.Join(t.TempDir(), name)
		if err := WriteBuiltin(dirs[name], name); err != nil {
			t.Fatal(err)
		}
	}
	if dir := os.Getenv("KVLEND_TORCH_MODEL"); dir != "" {
		dirs["trained"] = dir
	}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) { compareWithTorch(t, python, dir) })
	}
}

func compareWithTorch(t *testing.T, python, dir string) {
	m, err := Load(dir, Options{Threads: 1, KVDType: kernels.F32})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	const made = 24
	r := newRandom(1, strings.Replace(t.Name(), randomPrefix, "", 1)) // twins get the same prompts
	var prompts [][]int32
	for _, n := range []int{1, 17, 200} {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(r.next() % uint64(m.Config().Vocab))
		}
		prompts = append(prompts, ids)
	}
	task, err := json.Marshal(map[string]any{"prompts": prompts, "tokens": made})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, filepath.Join("..", "tools", "train", "reference.py"), dir)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(task), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var want []torchAnswer
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatal(err)
	}
	for i, ids := range prompts {
		compareAnswer(t, m, ids, want[i])
	}
}

// compareAnswer generates as PyTorch did. Where both candidates are as good as
// equal, rounding may decide, and what follows is another text.
func compareAnswer(t *testing.T, m *Model, ids []int32, want torchAnswer) {
	t.Helper()
	const tolerance = 0.05
	kv := NewSimpleKV(m, len(ids)+len(want.Tokens))
	batch := []Sequence{{Tokens: ids, Logits: LastLogits}}
	for i, token := range want.Tokens {
		out, err := m.Forward(context.Background(), batch, kv)
		if err != nil {
			t.Fatal(err)
		}
		logits := out.Logits[0]
		if i == 0 {
			worst := 0.0
			for j := range logits {
				worst = max(worst, math.Abs(float64(logits[j]-want.Logits[j])))
			}
			t.Logf("%d tokens: logits from %.2f to %.2f differ by %.2g at most", len(ids), slices.Min(logits), slices.Max(logits), worst)
			if worst > tolerance {
				t.Errorf("%d tokens: the logits differ by %g, want at most %g", len(ids), worst, tolerance)
			}
		}
		best := int32(slices.Index(logits, slices.Max(logits)))
		if best != token {
			if want.Leads[i] > tolerance {
				t.Errorf("%d tokens and %d: the engine says %d, PyTorch %d with a lead of %g", len(ids), i, best, token, want.Leads[i])
			}
			return
		}
		batch = []Sequence{{Tokens: []int32{token}, Start: batch[0].Start + len(batch[0].Tokens), Logits: LastLogits}}
	}
}
