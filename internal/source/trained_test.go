package source

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/tokenizer"
	"github.com/kvlend/kvlend/engine/trained"
	"github.com/kvlend/kvlend/internal/dialogue"
)

var update = flag.Bool("update", false, "ask PyTorch again what the trained models compute (KVLEND_TORCH_PYTHON names a Python that has it)")

// recorded is what PyTorch computed with a trained model.
type recorded struct {
	Torch  string  // its version
	Prompt []int32 // a dialogue up to the last question
	torchAnswer
}

// torchAnswer is what tools/train/reference.py says of a prompt.
type torchAnswer struct {
	Logits []float32 `json:"logits"` // of the prompt's last token
	Tokens []int32   `json:"tokens"` // a greedy continuation
	Leads  []float64 `json:"leads"`  // of each of them over the next best
}

// TestTrainedModelsComputeWhatPyTorchDoes compares the engine with recorded
// answers of PyTorch: the logits after a dialogue, and a long greedy
// continuation.
func TestTrainedModelsComputeWhatPyTorchDoes(t *testing.T) {
	for _, name := range trained.Names() {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", "torch-"+name+".json")
			if *update {
				record(t, name, file)
			}
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var want recorded
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
			compare(t, name, &want)
		})
	}
}

// compare generates as PyTorch did. Every token must be the same, but where
// PyTorch had two that are as good as equal; its own is what goes on then.
func compare(t *testing.T, name string, want *recorded) {
	const tolerance, tie = 0.05, 0.01
	m, err := engine.Builtin(name, engine.Options{KVDType: kernels.F32})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	kv := engine.NewSimpleKV(m, len(want.Prompt)+len(want.Tokens))
	tokens, start := want.Prompt, 0
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
			t.Logf("logits from %.2f to %.2f differ by %.2g at most from those of PyTorch %s", slices.Min(logits), slices.Max(logits), worst, want.Torch)
			if worst > tolerance {
				t.Errorf("the logits differ by %g, want at most %g", worst, tolerance)
			}
		}
		if best := int32(slices.Index(logits, slices.Max(logits))); best != token {
			if want.Leads[i] < tie {
				t.Logf("token %d of %d is %d, PyTorch says %d with a lead of %g", i, len(want.Tokens), best, token, want.Leads[i])
			} else {
				t.Fatalf("token %d of %d is %d, PyTorch says %d with a lead of %g", i, len(want.Tokens), best, token, want.Leads[i])
			}
		}
		start += len(tokens)
		tokens = []int32{token}
	}
}

// record asks PyTorch.
func record(t *testing.T, name, file string) {
	const tokens, made = 700, 256
	python := os.Getenv("KVLEND_TORCH_PYTHON")
	if python == "" {
		python = "python3"
	}
	version, err := exec.Command(python, "-c", "import torch; print(torch.__version__, end='')").Output()
	if err != nil {
		t.Fatalf("%s has no PyTorch: %v", python, err)
	}
	dir := filepath.Join(t.TempDir(), name)
	if err := engine.WriteBuiltin(dir, name); err != nil {
		t.Fatal(err)
	}
	r := recorded{Torch: string(version), Prompt: prompt(t, name, tokens)}
	task, err := json.Marshal(map[string]any{"prompts": [][]int32{r.Prompt}, "tokens": made})
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
	r.torchAnswer = answers[0]
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(raw, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// prompt is a dialogue of about n tokens that lacks the last answer.
func prompt(t *testing.T, name string, n int) []int32 {
	tok, err := Tokenizer(name)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(text string) []int32 {
		ids, err := tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	d, err := dialogue.Generate(1, 0, dialogue.Options{
		Tokens: n, HeldOut: true, Kind: dialogue.Recall, Count: func(text string) int { return len(encode(text)) }})
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, m := range d.Messages[:len(d.Messages)-1] {
		text += m.Text()
	}
	return encode(text + "<|im_start|>assistant\n")
}
