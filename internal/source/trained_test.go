package source

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
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
			m, err := engine.Builtin(name, engine.Options{KVDType: kernels.F32})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			t.Logf("PyTorch %s", want.Torch)
			if made := sameAsTorch(t, m, want.Prompt, &want.torchAnswer); made < len(want.Tokens) {
				t.Logf("%d of %d tokens are the engine's own choice", made, len(want.Tokens))
			}
		})
	}
}

// record asks PyTorch.
func record(t *testing.T, name, file string) {
	const tokens, made = 700, 256
	python := torchPython(t)
	version, err := exec.Command(python, "-c", "import torch; print(torch.__version__, end='')").Output()
	if err != nil {
		t.Fatalf("%s has no PyTorch: %v", python, err)
	}
	dir := filepath.Join(t.TempDir(), name)
	if err := engine.WriteBuiltin(dir, name); err != nil {
		t.Fatal(err)
	}
	r := recorded{Torch: string(version), Prompt: prompt(t, name, tokens)}
	r.torchAnswer = askTorch(t, python, dir, [][]int32{r.Prompt}, made)[0]
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
