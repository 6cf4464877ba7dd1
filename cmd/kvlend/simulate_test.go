package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	simreport "github.com/kvlend/kvlend/planner/sim/report"
)

// runCommand runs a command of kvlend and returns what it prints and its exit code.
func runCommand(t *testing.T, c *cobra.Command, args ...string) (out, errs string, code int) {
	t.Helper()
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetFlagErrorFunc(root(nil).FlagErrorFunc())
	var stdout, stderr bytes.Buffer
	c.SetOut(&stdout)
	c.SetErr(&stderr)
	c.SetArgs(args)
	code = report(&stderr, c.ExecuteContext(t.Context()))
	return stdout.String(), stderr.String(), code
}

func runSimulate(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	return runCommand(t, simulateCmd(), args...)
}

// file writes a file of the test's own and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

const twoGPUs = `
version: 1
devices: [{name: g0, kind: L4}, {name: g1, kind: L4}]
links: [{from: g0, to: g1, bandwidth: 25GB/s}]
models:
  - {name: m, source: "catalog:Qwen3-8B", role: master, device: g0, arena: 2GiB}
  - {name: w, source: "catalog:Qwen3-8B", role: worker, device: g1, arena: 3GiB}
`

func TestSimulate(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.html")
	out, errs, code := runSimulate(t, "--sessions", "4", "--html", page)
	if code != exitOK || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	for _, want := range []string{"SIMULATED: qwen3-32b", "lending", "local-only", "host-offload", "WARNING"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if text, err := os.ReadFile(page); err != nil || !bytes.HasPrefix(text, []byte("<!DOCTYPE html>")) || !bytes.HasSuffix(text, []byte("</html>\n")) {
		t.Errorf("the page: %v, %d bytes", err, len(text))
	}
	if again, _, _ := runSimulate(t, "--sessions", "4"); again != out {
		t.Error("a second run prints something else")
	}
}

func TestSimulateSystems(t *testing.T) {
	mine := file(t, "mine.yaml", twoGPUs)
	trace := file(t, "trace.jsonl", `{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 2000, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}
`)
	out, errs, code := runSimulate(t, "-c", mine, "--systems", "local-only,lending", "--config", "other="+mine, "--trace", trace, "--gpu", "L40S", "--json")
	var r simreport.Report
	if err := json.Unmarshal([]byte(out), &r); code != exitOK || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, errs)
	}
	var names []string
	for _, s := range r.Systems {
		names = append(names, s.Name)
		if l := s.Loads[0]; l.Answered != 2 || l.Tiers.Local+l.Tiers.Borrowed == 0 {
			t.Errorf("%s answered %d, tiers %+v", s.Name, l.Answered, l.Tiers)
		}
	}
	if got := strings.Join(names, " "); got != "local-only lending other" || r.Trace.Format != "mooncake" || !strings.Contains(r.Assumptions[0].What, "L40S") {
		t.Errorf("systems %s, format %s, %+v", got, r.Trace.Format, r.Assumptions[0])
	}
}

// TestSimulateExitCodes: 1 nothing was answered, 2 bad input that is named.
func TestSimulateExitCodes(t *testing.T) {
	mine := file(t, "mine.yaml", twoGPUs)
	damaged := file(t, "damaged.jsonl", `{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 1, "input_length": -3, "output_length": 5, "hash_ids": [0]}
`)
	edited := func(old, new string) string {
		return file(t, "edited.yaml", strings.Replace(twoGPUs, old, new, 1))
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"nothing answered", []string{"-c", mine, "--sessions", "3", "--turns", "1", "--first", "38500", "--sigma", "0", "--max-context", "40960"}, exitFailed, "nothing was answered"},
		{"damaged trace", []string{"--trace", damaged}, exitUsage, "damaged.jsonl:2: input_length"},
		{"no trace", []string{"--trace", "nowhere"}, exitUsage, "nowhere"},
		{"both loads", []string{"--trace", damaged, "--turns", "3"}, exitUsage, "--turns"},
		{"no config", []string{"-c", "nowhere.yaml"}, exitUsage, "nowhere.yaml"},
		{"zero bandwidth", []string{"-c", edited("25GB/s", "0B/s")}, exitUsage, "links[0].bandwidth"},
		{"slow link", []string{"-c", edited("25GB/s", "1B/s")}, exitUsage, "links: from g0 to g1"},
		{"field", []string{"-c", edited("arena: 2GiB", "arena: 0B")}, exitUsage, "models[0].arena"},
		{"too large", []string{"-c", edited("arena: 2GiB", "arena: 20GiB")}, exitUsage, "models[0].arena"},
		{"too small a GPU", []string{"--gpu", "L4"}, exitUsage, "models[1].arena"},
		{"unknown GPU", []string{"--gpu", "TI83"}, exitUsage, "H100-SXM"},
		{"unknown kind", []string{"-c", edited("kind: L4", "kind: cpu")}, exitUsage, "g0"},
		{"unknown system", []string{"--systems", "best"}, exitUsage, "local-only"},
		{"no disks", []string{"--systems", "pool"}, exitUsage, "overflow.devices"},
		{"taken name", []string{"-c", mine, "--systems", "lending", "--config", "lending=" + mine}, exitUsage, "lending is taken"},
		{"no name", []string{"--config", mine}, exitUsage, "NAME=FILE"},
		{"machine", []string{"--machine", file(t, "machine.json", `{"modles": {}}`)}, exitUsage, "modles"},
		{"calibration", []string{"--machine", file(t, "machine.json", `{"models": {"x": {"linear": 2}}}`)}, exitUsage, `models["x"]`},
		{"host memory", []string{"--host-memory", "much"}, exitUsage, "--host-memory"},
		{"beside", []string{"--beside", "qwen3-8b"}, exitUsage, "MODEL=RATE"},
		{"timing", []string{"--timing", "now"}, exitUsage, "think"},
		{"rate", []string{"--rate", "0"}, exitUsage, "rate"},
		{"flag", []string{"--fast"}, exitUsage, "--fast"},
		{"argument", []string{"now"}, exitUsage, "no arguments"},
	} {
		_, errs, code := runSimulate(t, c.args...)
		if code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit %d, want %d and %q: %s", c.name, code, c.code, c.want, errs)
		}
	}
}
