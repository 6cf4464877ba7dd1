package plan

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/configs"
)

func axes(t testing.TB, texts ...string) []Axis {
	t.Helper()
	var out []Axis
	for _, text := range texts {
		a, err := ParseAxis(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, a)
	}
	return out
}

func mustSweep(t testing.TB, cfg *configs.Config, list ...string) *SweepResult {
	t.Helper()
	r, err := Sweep(cfg, axes(t, list...), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestSweep: the same bytes each time, and the configuration stays as it was.
func TestSweep(t *testing.T) {
	cfg := configs.Default()
	before := cfg.Hash()
	list := []string{"block=16,48,16/48", "policy=lcm,padded", "share=0%,50%,100%", "buffers=1,2"}
	r := mustSweep(t, cfg, list...)
	golden(t, "sweep.txt", r.WriteText)
	var one, two bytes.Buffer
	if err := r.WriteJSON(&one); err != nil {
		t.Fatal(err)
	}
	if err := mustSweep(t, cfg, list...).WriteJSON(&two); err != nil || !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Errorf("two sweeps differ (%v)", err)
	}
	if cfg.Hash() != before {
		t.Error("the sweep changed the configuration")
	}
	if len(r.Rows) != 36 || !slices.Equal(r.Rows[1].Values, []string{"16", "lcm", "0%", "2"}) || !r.Possible() {
		t.Errorf("%d rows, the second of %v", len(r.Rows), r.Rows[1].Values)
	}
}

// TestSweepAgreesWithPlan: a row is what planning that configuration says.
func TestSweepAgreesWithPlan(t *testing.T) {
	text := example(t, configs.DefaultName)
	r := mustSweep(t, parse(t, text), "policy=lcm,padded", "buffers=1,2")
	for _, row := range r.Rows {
		changed := strings.Replace(strings.Replace(text, "policy: lcm,", "policy: "+row.Values[0]+",", 1), "buffers: 1", "buffers: "+row.Values[1], 1)
		p := mustPlan(t, changed)
		if m := p.Models[0]; row.Contexts[0] != m.MaxTokens || row.Ratios[0] != m.Master.Ratio || row.Warnings != p.Count(Warning) {
			t.Errorf("%v: %+v, a plan of it says %d", row.Values, row, m.MaxTokens)
		}
	}
}

// TestMoreShareNeverShortens: with one buffer and a regular cache, what is lent
// only lengthens the context.
func TestMoreShareNeverShortens(t *testing.T) {
	for _, name := range configs.ExampleNames() {
		r := mustSweep(t, parse(t, example(t, name)), "buffers=1", "share=0%,10%,20%,30%,40%,50%,60%,70%,80%,90%,100%")
		for i := 1; i < len(r.Rows); i++ {
			if r.Rows[i].total() < r.Rows[i-1].total() {
				t.Errorf("%s: %v has %d tokens, %v %d", name, r.Rows[i].Values, r.Rows[i].total(), r.Rows[i-1].Values, r.Rows[i-1].total())
			}
		}
		for _, i := range r.Best {
			best, last := &r.Rows[i], &r.Rows[len(r.Rows)-1]
			if best.Warnings > last.Warnings || best.Warnings == last.Warnings && best.total() != last.total() {
				t.Errorf("%s: best row %+v, the last is %+v", name, best, last)
			}
		}
	}
}

func TestSweepImpossible(t *testing.T) {
	r := mustSweep(t, configs.Default(), "block=512,1024")
	if r.Possible() || len(r.Best) != 0 || !strings.Contains(r.Rows[0].Error, "models[0].max_batch_tokens 256: smaller than one block (and 2 more)") {
		t.Errorf("%+v", r)
	}
}

func TestBadAxes(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "want NAME=VALUE",
		"block":                      "one of block, policy, waste, share, buffers",
		"block=":                     "want NAME=VALUE",
		"blocks=16":                  `sweep of "blocks": want one of block`,
		"block=17":                   `sweep of block: value "17", want tokens from 16 to 1024, a multiple of 16`,
		"block=16,":                  `value ""`,
		"block=16/17":                `value "16/17"`,
		"block=99999999999999999999": "value",
		"policy=best":                `value "best", want one of ["lcm"`,
		"share=101%":                 `value "101%", want a share`,
		"share=0.5":                  `value "0.5", want a share`,
		"waste=100%":                 `value "100%"`,
		"buffers=3":                  `value "3", want 1 or 2`,
		"policy=lcm,lcm":             `value "lcm" appears twice`,
	} {
		if _, err := ParseAxis(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	cfg := configs.Default()
	if _, err := Sweep(cfg, axes(t, "buffers=1", "buffers=2"), Options{}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("an axis twice: %v", err)
	}
	if _, err := Sweep(cfg, nil, Options{}); err == nil || !strings.Contains(err.Error(), "nothing to vary") {
		t.Errorf("no axes: %v", err)
	}
	many := "share=0%"
	for i := range 99 {
		many += fmt.Sprintf(",%d%%", i+1)
	}
	blocks := "block=16"
	for i := 32; i <= 1024; i += 16 {
		blocks += fmt.Sprintf(",%d", i)
	}
	if _, err := Sweep(cfg, axes(t, many, blocks), Options{}); err == nil || !strings.Contains(err.Error(), "more than 4096") {
		t.Errorf("too many: %v", err)
	}
}

func FuzzParseAxis(f *testing.F) {
	for _, s := range []string{"block=16,16/32", "policy=lcm", "waste=5%", "share=1%,2%", "buffers=1", "=", "block=/"} {
		f.Add(s)
	}
	cfg := configs.Default()
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAxis(text)
		if err != nil {
			return
		}
		for _, v := range a.Values {
			set, err := a.setter(v)
			if err != nil {
				t.Fatalf("%q was accepted, its value %q is not: %v", text, v, err)
			}
			set(clone(cfg))
		}
	})
}
