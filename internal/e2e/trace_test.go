package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTraceShowsLayersOfARunningMaster records while a request runs whose KV
// does not fit at home, and finds its layers and its transfers in the file.
func TestTraceShowsLayersOfARunningMaster(t *testing.T) {
	s := Start(t)
	file := filepath.Join(tempDir(t), "trace.json")
	cmd := exec.CommandContext(t.Context(), kvlend, "trace", "--run-dir", s.RunDir, "--model", "atlas", "--duration", "4s", "-o", file)
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Requests until the recording is over, so that some run during it.
	over := make(chan error, 1)
	go func() { over <- cmd.Wait() }()
	q := Request{Model: "atlas", Prompt: text(77, 1800), MaxTokens: 8}
	for running := true; running; {
		if _, _, err := s.Complete(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		q.Prompt = text(uint64(len(q.Prompt)), len(q.Prompt)+1)
		select {
		case err := <-over:
			if err != nil {
				t.Fatalf("kvlend trace: %v\n%s", err, said.String())
			}
			running = false
		default:
		}
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var trace struct {
		TraceEvents []struct {
			Name, Ph string
			Dur      float64
			Args     map[string]any
		}
	}
	if err := json.Unmarshal(raw, &trace); err != nil {
		t.Fatal(err)
	}
	layers := map[string]map[any]bool{}
	for _, e := range trace.TraceEvents {
		if e.Ph != "X" {
			continue
		}
		if layers[e.Name] == nil {
			layers[e.Name] = map[any]bool{}
		}
		layers[e.Name][e.Args["layer"]] = true
	}
	for _, name := range []string{"wait", "attention", "ffn", "load", "store"} {
		if n := len(layers[name]); n != 8 { // atlas has 8 layers
			t.Errorf("spans %q of %d layers, want 8; all: %v", name, n, layers)
		}
	}
	if len(layers["step"]) == 0 {
		t.Errorf("no steps: %v", layers)
	}
	out, err := exec.CommandContext(t.Context(), kvlend, "trace", "--run-dir", s.RunDir, "--model", "nobody", "--duration", "1s").CombinedOutput()
	if e, ok := err.(*exec.ExitError); !ok || e.ExitCode() != 2 || !strings.Contains(string(out), "nobody") {
		t.Errorf("a model that is not there: %v\n%s", err, out)
	}
}
