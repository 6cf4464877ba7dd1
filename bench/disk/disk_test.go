package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/kvlend/kvlend/overflow/placement"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseSpecs(t *testing.T) {
	got, err := ParseSpecs("/dev/a=52428800,/dev/b,c=1.5e8")
	want := []Spec{{"/dev/a", 52428800}, {"/dev/b", 0}, {"c", 1.5e8}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("ParseSpecs: %v, %v; want %v", got, err, want)
	}
	if !emulated(got) || emulated(got[1:2]) {
		t.Error("a device with a limit is emulated, one without is not")
	}
	for list, part := range map[string]string{
		"": "empty path", "a,,b": "empty path", "a,b,a=1": "twice", "a=": `is "";`, "a=x": `"x"`, "a=-1": `"-1"`, "a=nan": `"nan"`, "a=inf": `"inf"`,
	} {
		if _, err := ParseSpecs(list); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("ParseSpecs(%q): %v, want an error with %s", list, err, part)
		}
	}
}

func FuzzParseSpecs(f *testing.F) {
	f.Add("/dev/a=52428800,/dev/b")
	f.Fuzz(func(t *testing.T, list string) {
		specs, err := ParseSpecs(list)
		if err != nil {
			return
		}
		for _, d := range specs {
			if d.Path == "" || !(d.Limit >= 0 && d.Limit <= 1e12) {
				t.Errorf("ParseSpecs(%q) accepts %+v", list, d)
			}
		}
	})
}

func TestParseFio(t *testing.T) {
	const good = `note: something
{"jobs":[{"error":0,"read":{"io_bytes":2000000000,"runtime":2000},"job_runtime":2000,"usr_cpu":5.0,"sys_cpu":20.0}]}`
	m, err := parseFio([]byte(good), false)
	if err != nil || m.bytesPerSec != 1e9 || m.cpuPerGB != 0.25 {
		t.Errorf("parseFio: %+v, %v; want 1e9 bytes/s and 0.25 s/GB", m, err)
	}
	for _, bad := range []string{"", "{}", `{"jobs":[{},{}]}`, `{"jobs":[{"error":5,"read":{"io_bytes":1,"runtime":1}}]}`, `{"jobs":[{"read":{"io_bytes":0,"runtime":9}}]}`} {
		if _, err := parseFio([]byte(bad), false); err == nil {
			t.Errorf("parseFio(%q) finds nothing wrong", bad)
		}
	}
}

func TestFioArguments(t *testing.T) {
	args := fioArgs("/x", load{span: 1 << 20, block: 4096, depth: 32}, 1500*time.Millisecond, tunings[3])
	for _, want := range []string{"--filename=/x", "--direct=1", "--readonly", "--iodepth=32", "--runtime=1500ms", "--iodepth_batch_submit=8",
		"--iodepth_batch_complete_min=8", "--fixedbufs=1", "--registerfiles=1"} {
		if !slices.Contains(args, want) {
			t.Errorf("fio's arguments lack %s: %v", want, args)
		}
	}
	if n := len(tuningsAt(1)); n != 1 {
		t.Errorf("%d settings at depth 1, want 1", n)
	}
	if n := len(tuningsAt(32)); n != len(tunings) {
		t.Errorf("%d settings at depth 32, want all %d", n, len(tunings))
	}
}

func TestStatistics(t *testing.T) {
	if m := median([]float64{4, 1, 2, 3}); m != 2.5 {
		t.Errorf("median %v", m)
	}
	if m := median(nil); m != 0 {
		t.Errorf("median of nothing %v", m)
	}
	if l, h := quartiles([]float64{5, 1, 4, 2, 3}); l != 2 || h != 4 {
		t.Errorf("quartiles %v %v", l, h)
	}
	var c ReadCell
	c.summarise([]sample{{bytesPerSec: 90, cpuPerGB: 2}, {bytesPerSec: 300, cpuPerGB: 2}, {bytesPerSec: 100, cpuPerGB: 2}},
		[]sample{{bytesPerSec: 100, cpuPerGB: 1}, {bytesPerSec: 200, cpuPerGB: 4}, {bytesPerSec: 100, cpuPerGB: 1}})
	if c.Ratio != 1 || c.BytesPerSec != 100 || c.CPURatio != 2 {
		t.Errorf("ratios are of each round: %+v", c)
	}
}

func TestSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "devices")
		rates, room := make([]float64, n), make([]int64, n)
		for i := range rates {
			rates[i] = rapid.Float64Range(1, 1e9).Draw(t, "rate")
		}
		count, perLayer := rapid.IntRange(1, 9).Draw(t, "layers"), rapid.IntRange(1, 700).Draw(t, "units")
		const unit = 4096
		maxIO := unit * rapid.Int64Range(1, 20).Draw(t, "piece")
		units, err := share(rapid.SampledFrom([]string{placement.Uniform, placement.Bandwidth}).Draw(t, "policy"), perLayer, rates)
		if err != nil {
			t.Fatal(err)
		}
		for i := range room {
			room[i] = unit * (int64(units[i]) + rapid.Int64Range(0, 900).Draw(t, "room"))
		}
		plan, err := spread(count, unit, maxIO, units, 0, room)
		if err != nil {
			t.Fatal(err)
		}
		if plan.bytes() != int64(count*perLayer*unit) {
			t.Fatalf("%d bytes, want %d", plan.bytes(), count*perLayer*unit)
		}
		for l, pieces := range plan {
			end := map[int]int64{}
			got := make([]int64, n)
			for _, p := range pieces {
				if p.off < 0 || p.len < 1 || p.len > maxIO || p.off+p.len > room[p.dev] {
					t.Fatalf("piece %+v, at most %d bytes, device of %d", p, maxIO, room[p.dev])
				}
				if e, ok := end[p.dev]; ok && e != p.off {
					t.Fatalf("layer %d is not one run on device %d", l, p.dev)
				}
				end[p.dev] = p.off + p.len
				got[p.dev] += p.len
			}
			for d := range got {
				if got[d] != int64(units[d])*unit {
					t.Fatalf("device %d holds %d bytes of layer %d, want %d", d, got[d], l, units[d]*unit)
				}
			}
		}
	})
}

func TestSpreadRefusesShortDevices(t *testing.T) {
	if _, err := spread(1, 4096, 4096, []int{3}, 0, []int64{8192}); err == nil || !strings.Contains(err.Error(), "8192") {
		t.Errorf("a run that does not fit: %v", err)
	}
}

// sampleFile writes n bytes that tell their offset.
func sampleFile(t *testing.T, n int) (path string, content []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "disk")
	if err := prepare(context.Background(), path, int64(n), nothing); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, content
}

// TestLayersArrive reads a plan that fits into memory whole and compares it.
func TestLayersArrive(t *testing.T) {
	const unit, count = 16 << 10, 5
	var specs []Spec
	var content [][]byte
	for range 3 {
		path, b := sampleFile(t, 1<<20)
		specs, content = append(specs, Spec{Path: path}), append(content, b)
	}
	units := []int{1, 4, 7}
	s, err := openSet(specs, false, count*12*unit, 0)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := spread(count, unit, s.maxIO(2*unit), units, 4096, s.sizes())
	if err != nil {
		t.Fatal(err)
	}
	r, err := newLayerReader(s.devs, plan, count, s.mem)
	if err != nil {
		t.Fatal(err)
	}
	began, err := r.run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for l, pieces := range plan {
		if r.ended[l].Before(began) {
			t.Errorf("layer %d ended before the beginning", l)
		}
		for _, p := range pieces {
			if !bytes.Equal(s.mem[at:at+int(p.len)], content[p.dev][p.off:p.off+p.len]) {
				t.Errorf("layer %d: the %d bytes at %d of device %d differ", l, p.len, p.off, p.dev)
			}
			at += int(p.len)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
}

// TestLayersInOrder reuses memory: with room for two layers, the last two are
// what is left in it.
func TestLayersInOrder(t *testing.T) {
	const unit, count = 4096, 40
	path, content := sampleFile(t, count*unit)
	s, err := openSet([]Spec{{Path: path}}, false, 2*unit, 0)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := spread(count, unit, unit, []int{1}, 0, s.sizes())
	if err != nil {
		t.Fatal(err)
	}
	r, err := newLayerReader(s.devs, plan, 2, s.mem)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(s.mem, content[(count-2)*unit:]) {
		t.Error("the last two layers are not what memory holds")
	}
	if _, err := newLayerReader(s.devs, plan, 3, s.mem); err == nil {
		t.Error("three layers fit into the memory of two")
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
}

func TestReadWithoutFio(t *testing.T) {
	path, _ := sampleFile(t, 1<<20)
	r, err := Read(context.Background(), ReadOptions{Path: path, Span: 1 << 20, Sizes: []int64{4096, 65536}, Depths: []int{1, 8}, Rounds: 1, Each: 50 * time.Millisecond, Alone: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cells) != 4 {
		t.Fatalf("%d cells, want 4", len(r.Cells))
	}
	for _, c := range r.Cells {
		if c.BytesPerSec <= 0 || c.Calls <= 0 || c.Median <= 0 || c.P99 < c.Median || c.Ratio != 0 {
			t.Errorf("%+v", c)
		}
	}
	shows(t, r, "4 KiB", "without fio")
}

// shows checks that a result can be printed, drawn and decoded.
func shows(t *testing.T, r interface {
	WriteTable(w io.Writer) error
	WriteJSON(w io.Writer) error
	WritePlot(w io.Writer, format string) error
}, parts ...string) {
	t.Helper()
	var text, data, plot bytes.Buffer
	if err := errors.Join(r.WriteTable(&text), r.WriteJSON(&data), r.WritePlot(&plot, "svg")); err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if !strings.Contains(text.String(), p) {
			t.Errorf("the table lacks %q:\n%s", p, text.String())
		}
	}
	if !json.Valid(data.Bytes()) || !strings.Contains(plot.String(), "<svg") {
		t.Error("no JSON or no SVG")
	}
}

func TestPool(t *testing.T) {
	var specs []Spec
	for range 3 {
		path, _ := sampleFile(t, 2<<20)
		specs = append(specs, Spec{Path: path, Limit: 1e6})
	}
	// The limits are wrong and small, so that little is read.
	r, err := Pool(context.Background(), PoolOptions{Devices: specs, Layer: 256 << 10, Rounds: 1, Each: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Emulated || len(r.Devices) != 3 || len(r.Sums) != 3 || r.Sums[2].Devices != 3 || r.Shares == nil {
		t.Fatalf("%+v", r)
	}
	for _, s := range r.Sums {
		if s.BytesPerSec <= 0 || s.OfAlone <= 0 || s.OfLimits <= 0 {
			t.Errorf("%+v", s)
		}
	}
	shows(t, r, "EMULATED", "predicted")
}

func TestRestore(t *testing.T) {
	opt := RestoreOptions{Dirs: []Spec{{Path: t.TempDir()}, {Path: t.TempDir()}}, Tokens: 64, Layers: 2, Rounds: 1, Keep: true}
	if err := PrepareRestore(context.Background(), opt); err != nil {
		t.Fatal(err)
	}
	r, err := Restore(context.Background(), opt)
	if err != nil && strings.Contains(err.Error(), "page cache") {
		t.Skip("the temporary directory is in memory, where nothing can be cold:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.Bytes != 4*2*layerUnit || len(r.Ways) != 5 || r.Ways[0].Name != Pooled || r.Ways[0].Ratio != 1 {
		t.Errorf("%+v", r)
	}
	shows(t, r, "files, all disks", "real devices")
	opt.Keep = false
	if _, err := Restore(context.Background(), opt); err != nil {
		t.Fatal(err)
	}
	for _, d := range opt.Dirs {
		if left, err := os.ReadDir(d.Path); err != nil || len(left) != 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

func TestPrepareRefusesHoles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sparse")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := prepare(context.Background(), path, 1<<20, nothing); err == nil || !strings.Contains(err.Error(), "really written") {
		t.Errorf("a sparse file passes for a written one: %v", err)
	}
	if err := prepare(context.Background(), t.TempDir(), 1, nothing); err == nil {
		t.Error("a directory passes for a file")
	}
}

func TestRefusals(t *testing.T) {
	ctx := context.Background()
	for want, f := range map[string]func() error{
		"no file":    func() error { _, err := Read(ctx, ReadOptions{}); return err },
		"5000 bytes": func() error { _, err := Read(ctx, ReadOptions{Path: "x", Sizes: []int64{5000}}); return err },
		"depth 0":    func() error { _, err := Read(ctx, ReadOptions{Path: "x", Depths: []int{0}}); return err },
		"no devices": func() error { _, err := Pool(ctx, PoolOptions{}); return err },
		"2 devices at": func() error {
			_, err := Pool(ctx, PoolOptions{Devices: []Spec{{Path: "x"}}, Counts: []int{2}})
			return err
		},
		"layer of 7":     func() error { _, err := Pool(ctx, PoolOptions{Devices: []Spec{{Path: "x"}}, Layer: 7}); return err },
		"no directories": func() error { _, err := Restore(ctx, RestoreOptions{}); return err },
		"17 tokens": func() error {
			_, err := Restore(ctx, RestoreOptions{Dirs: []Spec{{Path: "x"}}, Tokens: 17})
			return err
		},
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	if err := (&ReadResult{}).WritePlot(&bytes.Buffer{}, "svg"); !errors.Is(err, errNothing) {
		t.Errorf("plot of nothing: %v", err)
	}
}
