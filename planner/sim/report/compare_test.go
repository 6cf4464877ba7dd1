package report

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner/sim"
)

// talks are conversations that need more than oak's own memory.
func talks(t testing.TB, change func(*trace.Synthetic)) *trace.Trace {
	t.Helper()
	s := trace.Synthetic{Sessions: 10, Rate: 1, Turns: 4, Think: 5 * time.Second, First: 1000, Next: 100, Answer: 30, Sigma: 0.3, Seed: 1}
	if change != nil {
		change(&s)
	}
	out, err := s.Make()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func options(t testing.TB) Options {
	return Options{Systems: systems(t, server, "lending", "local-only", "host-offload"), Trace: talks(t, nil), Seed: 1}
}

func TestRefusedOptions(t *testing.T) {
	edit := func(old, new string) func(*Options) {
		return func(o *Options) {
			o.Systems = []Candidate{{"mine", parse(t, strings.Replace(server, old, new, 1))}}
		}
	}
	for _, c := range []struct {
		name   string
		change func(*Options)
		want   []string
	}{
		{"no system", func(o *Options) { o.Systems = nil }, []string{"a system"}},
		{"no trace", func(o *Options) { o.Trace = nil }, []string{"a trace"}},
		{"names", func(o *Options) { o.Systems[1].Name = "lending" }, []string{"lending", "another"}},
		{"timing", func(o *Options) { o.Timing = "now" }, []string{`"now"`, "think", "trace"}},
		{"duration", func(o *Options) { o.Length = -1 }, []string{"-1ns", "0"}},
		{"model", func(o *Options) { o.Model = "yew" }, []string{`"yew"`, "oak, elm"}},
		{"beside nobody", func(o *Options) { o.Beside = []Beside{{"yew", o.Trace}} }, []string{"beside", `"yew"`}},
		{"two loads", func(o *Options) { o.Beside = []Beside{{"oak", o.Trace}} }, []string{"oak", "two loads"}},
		{"context", func(o *Options) { o.Shape.MaxContext = 2 }, []string{"no session", "2 tokens"}},
		{"kind", edit("kind: L4}\n  - {name: gpu1", "kind: cpu}\n  - {name: gpu1"), []string{"mine", "models[0]", `kind "cpu"`, "L40S"}},
		{"too large", edit("arena: 1152MiB", "arena: 12GiB"), []string{"models[0].arena", "do not fit", "24.0 GB", "less"}},
		{"slow link", edit("25GB/s", "1B/s"), []string{"links: from gpu0 to gpu1", "models[0]", "lending.lease", "faster link"}},
		{"budget", edit("lease: 60s", "lease: 60s, link_budget: 1KB/s"), []string{"lending.link_budget"}},
	} {
		o := options(t)
		c.change(&o)
		_, err := Prepare(o)
		if err == nil {
			t.Errorf("%s: accepted", c.name)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", c.name, err, want)
			}
		}
	}
}

func kindsOf(r *Report, system string) []string {
	var out []string
	for _, w := range r.Warnings {
		if w.System == system {
			out = append(out, w.Kind)
		}
	}
	return out
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Options)
		system string
		want   []string
		not    []string
	}{
		{"calm", func(o *Options) {
			o.Trace = talks(t, func(s *trace.Synthetic) { s.Sessions, s.Rate, s.Turns, s.First, s.Answer = 110, 0.05, 1, 20, 10 })
			o.Machine = calibrated()
		}, "lending", []string{WarnUnlent}, []string{WarnFew, WarnOverload, WarnGuess, WarnRefused}},
		{"calibrated", func(o *Options) { o.Machine = calibrated() }, "", nil, []string{WarnGuess}},
		{"guess", nil, "", []string{WarnGuess}, []string{WarnCut}},
		{"few", nil, "lending", []string{WarnFew}, []string{WarnUnlent}},
		{"cut", func(o *Options) { o.Shape.MaxContext = 1200 }, "", []string{WarnCut}, nil},
		{"overload", func(o *Options) {
			o.Trace = talks(t, func(s *trace.Synthetic) { s.Sessions, s.Rate, s.Turns = 40, 20, 1 })
		}, "local-only", []string{WarnOverload}, nil},
		{"refused", func(o *Options) {
			o.Trace = talks(t, func(s *trace.Synthetic) { s.First, s.Turns = 9000, 1 })
			o.Shape.MaxContext = 40000
		}, "local-only", []string{WarnRefused}, nil},
	} {
		o := options(t)
		if c.change != nil {
			c.change(&o)
		}
		got := kindsOf(run(t, o), c.system)
		for _, kind := range c.want {
			if !slices.Contains(got, kind) {
				t.Errorf("%s: warnings of %q are %v, want %s too", c.name, c.system, got, kind)
			}
		}
		for _, kind := range c.not {
			if slices.Contains(got, kind) {
				t.Errorf("%s: warnings of %q are %v, want no %s", c.name, c.system, got, kind)
			}
		}
	}
}

// TestBeside: workers with a load of their own are reported, and lose little.
func TestBeside(t *testing.T) {
	o := options(t)
	o.Beside = []Beside{{"elm", talks(t, func(s *trace.Synthetic) { s.First, s.Seed = 200, 2 })}}
	r := run(t, o)
	for _, s := range r.Systems {
		if len(s.Loads) != 2 || s.Loads[1].Model != "elm" || s.Loads[1].Answered == 0 {
			t.Errorf("%s: %d loads", s.Name, len(s.Loads))
		}
	}
	if text := string(forms(t, r)["table"]); !strings.Contains(text, "What users of elm see") {
		t.Errorf("no table of elm:\n%s", text)
	}
}

func TestDurationAndProgress(t *testing.T) {
	o := options(t)
	o.Length = 4 * time.Second
	var last Progress
	o.Progress = func(p Progress) { last = p }
	r := run(t, o)
	if l := r.Systems[0].main(); l.Unsent == 0 || l.Answered == 0 || l.Answered+l.Unsent != r.Trace.Turns {
		t.Errorf("%d answered, %d not sent, refused %v, of %d", l.Answered, l.Unsent, l.Refused, r.Trace.Turns)
	}
	if last.Total != 3*r.Trace.Turns || !strings.Contains(last.Doing, " at ") {
		t.Errorf("progress %+v", last)
	}
}

func TestCancel(t *testing.T) {
	c, err := Prepare(options(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if errors.Is(err, sim.ErrStuck) {
		t.Error("it says that it is stuck")
	}
}
