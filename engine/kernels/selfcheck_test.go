package kernels

import (
	"strings"
	"testing"
)

// broken differs from the reference in one operator.
type broken struct {
	ref
	what string
}

func (b broken) name() string { return "broken" }

func (b broken) mul(dt DType, r int, y []float32, ys int, x operand, xs int, panel []byte, k int) {
	b.ref.mul(dt, r, y, ys, x, xs, panel, k)
	if b.what == "mul" && dt == BF16 && r == 5 {
		y[4*ys+63] += y[4*ys+63] * 0x1p-22
	}
}

func (b broken) values(dt DType, r int, o []float32, p operand, ps int, mem []byte, tiles []int64, first, last, d int) {
	if b.what == "values" {
		last -= last - first&2
	}
	b.ref.values(dt, r, o, p, ps, mem, tiles, first, last, d)
}

func (b broken) siluMul(y, gate, up []float32) {
	b.ref.siluMul(y, gate, up)
	if b.what == "siluMul" {
		y[len(y)-1] = -y[len(y)-1]
	}
}

func TestSelfCheckRefusesWhatDiffers(t *testing.T) {
	if err := selfCheck(broken{}); err != nil {
		t.Fatalf("the reference under another name: %v", err)
	}
	for _, what := range []string{"mul", "values", "siluMul"} {
		bad := broken{what: what}
		if err := selfCheck(bad); err == nil || !strings.Contains(err.Error(), `"broken" refused`) {
			t.Errorf("%s: error %v, want a refusal", what, err)
		}
		o, refused, err := choose([]ops{bad, ref{}}, "")
		if err != nil || o.name() != "go" || refused == nil {
			t.Errorf("%s: chose %v, refused %v, error %v; want go and a reason", what, o, refused, err)
		}
		if _, _, err := choose([]ops{bad, ref{}}, "broken"); err == nil {
			t.Errorf("%s: asked for by name: no error", what)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, opt := range []Options{{ISA: "mmx"}, {Threads: -1}, {Threads: maxThreads + 1}} {
		if r, err := New(opt); err == nil {
			r.Close()
			t.Errorf("New(%+v): no error", opt)
		}
	}
	names := Available()
	if names[len(names)-1] != "go" {
		t.Errorf("Available() = %q, want go at the end", names)
	}
	r, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.Name() != names[0] || r.Refused() != nil || r.Threads() < 1 {
		t.Errorf("default Runner is %q with %d threads, refused %v; want %q", r.Name(), r.Threads(), r.Refused(), names[0])
	}
}

func BenchmarkSelfCheck(b *testing.B) {
	for _, o := range detect() {
		b.Run(o.name(), func(b *testing.B) {
			for b.Loop() {
				if err := selfCheck(o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
