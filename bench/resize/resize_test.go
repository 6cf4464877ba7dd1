package resize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"image/png"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestLayerMajor resizes at random and sees that every block that was never
// cut off keeps its contents, and that the bytes moved are all layers but the
// first.
func TestLayerMajor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, most, size := rapid.IntRange(1, 6).Draw(t, "layers"), rapid.IntRange(1, 12).Draw(t, "blocks"), rapid.IntRange(1, 9).Draw(t, "size")
		c := newLayerMajor(make([]byte, layers*most*size), layers, most, size)
		fill := func(from, to int) {
			for l := range layers {
				for b := from; b < to; b++ {
					for i := range size {
						c.block(l, b)[i] = byte(l*50 + b*3 + i)
					}
				}
			}
		}
		fill(0, most)
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			before := c.blocks
			n := rapid.IntRange(1, most).Draw(t, "n")
			moved, err := c.resize(n)
			if err != nil {
				t.Fatal(err)
			}
			want := (layers - 1) * min(before, n) * size
			if before == n {
				want = 0
			}
			if moved != want {
				t.Fatalf("%d bytes moved, want %d", moved, want)
			}
			fill(before, n)
			for l := range layers {
				for b := range n {
					for i := range size {
						if c.block(l, b)[i] != byte(l*50+b*3+i) {
							t.Fatalf("layer %d, block %d lost its contents", l, b)
						}
					}
				}
			}
		}
	})
	c := newLayerMajor(make([]byte, 8), 2, 4, 1)
	for _, n := range []int{0, -1, 5} {
		if _, err := c.resize(n); err == nil {
			t.Errorf("resize to %d of 4 blocks was accepted", n)
		}
	}
}

func small() Options {
	return Options{Layers: []int{4, 6}, Blocks: []int{2, 32, 64, 1 << 20}, LayerBlockBytes: 64, MasterLayers: 8, MaxBytes: 1 << 20, Rounds: 2}
}

func TestRun(t *testing.T) {
	r, err := Run(t.Context(), small())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cells) != 4 || len(r.Skipped) != 4 {
		t.Fatalf("%d cells, %d skipped: %+v", len(r.Cells), len(r.Skipped), r.Skipped)
	}
	for _, c := range r.Cells {
		unit := map[int]int{4: 2, 6: 4}[c.Layers] // lcm with 8 layers, in blocks
		moved := int64((c.Layers - 1) * (c.Blocks - unit) * 64)
		if c.UnitBlocks != unit || c.MovedBytes != moved || c.CacheBytes != int64(c.Layers*c.Blocks*64) {
			t.Errorf("%+v: want units of %d blocks and %d bytes moved", c, unit, moved)
		}
		for _, v := range []Comparison{c.Lend, c.TakeBack} {
			for _, m := range []Timing{v.LayerMajor, v.BlockMajor} {
				if m.Min <= 0 || m.Min > m.Median || m.Median > m.Max {
					t.Errorf("times are out of order: %+v", m)
				}
			}
			if v.Ratio != v.LayerMajor.Median/v.BlockMajor.Median {
				t.Errorf("ratio is %v", v.Ratio)
			}
		}
	}
	renderAll(t, r)
}

func renderAll(t *testing.T, r Result) {
	t.Helper()
	var out bytes.Buffer
	if err := RenderJSON(&out, r); err != nil {
		t.Fatal(err)
	}
	var back Result
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Error(diff)
	}
	out.Reset()
	if err := RenderTable(&out, r); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines < len(r.Cells)+len(r.Skipped) || !strings.Contains(out.String(), "not measured: 4 layers, 2 blocks: a unit has 2 blocks") {
		t.Errorf("table:\n%s", out.String())
	}
	out.Reset()
	if err := RenderPlot(&out, r, "svg"); err != nil || !strings.Contains(out.String(), "6 layers") {
		t.Errorf("svg: %v", err)
	}
	out.Reset()
	if err := RenderPlot(&out, r, "png"); err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(&out); err != nil {
		t.Error(err)
	}
	if err := RenderPlot(&out, r, "jam"); err == nil {
		t.Error("a format that does not exist")
	}
	if err := RenderPlot(&out, Result{}, "svg"); err == nil {
		t.Error("a plot of nothing")
	}
}

func TestRunCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, small()); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestOptions(t *testing.T) {
	if err := DefaultOptions().Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Options){
		"no layers":  func(o *Options) { o.Layers = nil },
		"no blocks":  func(o *Options) { o.Blocks = nil },
		"layers":     func(o *Options) { o.Layers = []int{0} },
		"blocks":     func(o *Options) { o.Blocks = []int{-1} },
		"odd block":  func(o *Options) { o.LayerBlockBytes = 65 },
		"huge block": func(o *Options) { o.LayerBlockBytes = 1 << 30 },
		"master":     func(o *Options) { o.MasterLayers = 0 },
		"bytes":      func(o *Options) { o.MaxBytes = 0 },
		"rounds":     func(o *Options) { o.Rounds = 0 },
	} {
		o := small()
		change(&o)
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestFormats(t *testing.T) {
	for ns, want := range map[float64]string{1: "1 ns", 63.27: "63.3 ns", 999.6: "1 us", 12345: "12.3 us", 2e6: "2 ms", 3.5e9: "3.5 s"} {
		if got := nanos(ns); got != want {
			t.Errorf("%v ns prints as %q, want %q", ns, got, want)
		}
	}
	for n, want := range map[int64]string{512: "512 B", 1 << 20: "1 MiB", 3 << 29: "1.5 GiB"} {
		if got := size(n); got != want {
			t.Errorf("%d bytes print as %q, want %q", n, got, want)
		}
	}
	for r, want := range map[float64]string{1.234: "1.23", 99.94: "99.9", 1234: "1200", 987654: "990000"} {
		if got := ratio(r); got != want {
			t.Errorf("%v prints as %q, want %q", r, got, want)
		}
	}
}

// TestDefaultRun writes the default run's results to the directory that
// KVLEND_RESIZE_OUT names.
func TestDefaultRun(t *testing.T) {
	dir := os.Getenv("KVLEND_RESIZE_OUT")
	if dir == "" {
		t.Skip("takes seconds and 512 MiB: set KVLEND_RESIZE_OUT to a directory for the results")
	}
	r, err := Run(t.Context(), DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	for name, render := range map[string]func(*os.File) error{
		"resize.json": func(f *os.File) error { return RenderJSON(f, r) },
		"resize.txt":  func(f *os.File) error { return RenderTable(f, r) },
		"resize.svg":  func(f *os.File) error { return RenderPlot(f, r, "svg") },
		"resize.png":  func(f *os.File) error { return RenderPlot(f, r, "png") },
	} {
		f, err := os.Create(dir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(render(f), f.Close()); err != nil {
			t.Error(err)
		}
	}
}
