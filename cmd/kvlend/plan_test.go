package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/planner/plan"
)

// runPlanCmd runs kvlend plan and returns what it prints and its exit code.
func runPlanCmd(t *testing.T, input string, args ...string) (out, errs string, code int) {
	t.Helper()
	c := planCmd()
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetFlagErrorFunc(root(nil).FlagErrorFunc())
	var stdout, stderr bytes.Buffer
	c.SetOut(&stdout)
	c.SetErr(&stderr)
	c.SetIn(strings.NewReader(input))
	c.SetArgs(args)
	code = report(&stderr, c.Execute())
	return stdout.String(), stderr.String(), code
}

func TestPlanDefault(t *testing.T) {
	out, errs, code := runPlanCmd(t, "")
	if code != exitOK || errs != "" || !strings.Contains(out, "4.50x") || !strings.Contains(out, "It fits.") {
		t.Errorf("exit %d, %s\n%s", code, errs, out)
	}
}

func TestPlanJSON(t *testing.T) {
	out, _, code := runPlanCmd(t, "", "--json")
	var p plan.Plan
	if err := json.Unmarshal([]byte(out), &p); code != exitOK || err != nil || p.Schema != plan.Schema || !p.Fits {
		t.Errorf("exit %d, %v\n%s", code, err, out)
	}
}

const planTooLarge = `
version: 1
devices: [{name: g0, kind: L4}, {name: g1, kind: L4}]
models:
  - {name: m, source: "catalog:Qwen3-8B", role: master, device: g0, arena: 20GiB}
  - {name: w, source: "catalog:Qwen3-8B", role: worker, device: g1, arena: 3GiB}
`

// TestPlanExitCodes: 0 fine, 1 impossible, 2 bad input that is named.
func TestPlanExitCodes(t *testing.T) {
	for _, c := range []struct {
		name, input string
		args        []string
		code        int
		errs        string
	}{
		{"does not fit", planTooLarge, []string{"-c", "-"}, exitFailed, "cannot work"},
		{"can be made to fit", planTooLarge, []string{"-c", "-", "--recommend"}, exitOK, ""},
		{"cannot be made to fit", strings.Replace(planTooLarge, "catalog:Qwen3-8B", "catalog:Qwen3-32B", 1), []string{"-c", "-", "--recommend"}, exitFailed, "no change was found"},
		{"reserve", "", []string{"--reserve", "much"}, exitUsage, `--reserve is "much"`},
		{"sweep", "", []string{"--sweep", "block=7"}, exitUsage, `value "7", want tokens from 16 to 1024`},
		{"impossible sweep", "", []string{"--sweep", "block=1024"}, exitFailed, "no combination"},
		{"plot", "", []string{"--svg", "x.gif"}, exitUsage, "must end in .svg or .png"},
		{"plot of nothing", "", []string{"--paper", "--svg", "x.svg"}, exitUsage, "--svg and --html go with"},
		{"two at once", "", []string{"--paper", "--list"}, exitUsage, "only one of"},
		{"argument", "", []string{"x"}, exitUsage, "takes no arguments"},
		{"flag", "", []string{"--nope"}, exitUsage, "--nope"},
		{"no file", "", []string{"-c", "/nonexistent/x.yaml"}, exitUsage, "no such file"},
		{"config", "version: 1\nmodels: [{name: m, source: \"catalog:Qwen9\", role: master, device: g, arena: 0B}]", []string{"-c", "-"}, exitUsage, "models[0].arena"},
		{"model", "version: 1\ndevices: [{name: g}]\nmodels: [{name: m, source: \"catalog:Qwen3-9B\", role: master, device: g, arena: 1GiB}]", []string{"-c", "-"}, exitUsage, `did you mean "catalog:Qwen3-`},
		{"directory", "version: 1\ndevices: [{name: g}]\nmodels: [{name: m, source: /nonexistent/model, role: master, device: g, arena: 1GiB}]", []string{"-c", "-"}, exitUsage, "models[0].source"},
	} {
		out, errs, code := runPlanCmd(t, c.input, c.args...)
		if code != c.code || !strings.Contains(errs, c.errs) || (c.errs == "") != (errs == "") {
			t.Errorf("%s: exit %d, want %d; %q, want %q\n%s", c.name, code, c.code, errs, c.errs, out)
		}
	}
}

func TestPlanRecommendedIsAccepted(t *testing.T) {
	out, _, code := runPlanCmd(t, planTooLarge, "-c", "-", "--recommend")
	if _, errs, again := runPlanCmd(t, out, "-c", "-"); code != exitOK || again != exitOK {
		t.Errorf("exit %d, then %d: %s\n%s", code, again, errs, out)
	}
	same, _, _ := runPlanCmd(t, "", "--recommend")
	text, err := configs.Example(configs.DefaultName)
	if err != nil || !strings.Contains(same, "no change is needed") || !strings.HasSuffix(same, string(text)) {
		t.Errorf("of the default (%v):\n%s", err, same)
	}
}

func TestPlanFiles(t *testing.T) {
	dir := t.TempDir()
	svg, html, png := filepath.Join(dir, "p.svg"), filepath.Join(dir, "p.html"), filepath.Join(dir, "p.png")
	if _, errs, code := runPlanCmd(t, "", "--svg", svg, "--html", html); code != exitOK {
		t.Fatal(errs)
	}
	if _, errs, code := runPlanCmd(t, "", "--sweep", "share=10%,50%", "--sweep", "buffers=1,2", "--svg", png); code != exitOK {
		t.Fatal(errs)
	}
	for path, want := range map[string]string{svg: "</svg>", html: "</html>", png: "PNG"} {
		if text, err := os.ReadFile(path); err != nil || !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s: %v, %d bytes", path, err, len(text))
		}
	}
	if _, _, code := runPlanCmd(t, "", "--svg", filepath.Join(dir, "none", "p.svg")); code != exitFailed {
		t.Errorf("a file that cannot be made: exit %d", code)
	}
}

func TestPlanListAndPaper(t *testing.T) {
	for _, c := range [][]string{{"--list"}, {"--paper"}, {"--list", "--json"}, {"--paper", "--json"}} {
		out, errs, code := runPlanCmd(t, "", c...)
		if code != exitOK || !strings.Contains(out, "Qwen3-32B") || len(c) == 2 && !json.Valid([]byte(out)) {
			t.Errorf("%v: exit %d, %s\n%s", c, code, errs, out)
		}
	}
}
