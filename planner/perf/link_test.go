package perf

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/planner/facts"
	"pgregory.net/rapid"
)

// TestMeasuredCurve: the curve gives back what was measured, between points too
// (figures of NCCL on a DGX H100: 64 KiB 8.5 GB/s ... 64 MiB 348).
func TestMeasuredCurve(t *testing.T) {
	l, err := CurveLink("H100_DGX/intra")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		size int64
		gbs  float64
	}{{64 << 10, 8.5}, {256 << 10, 33}, {1 << 20, 105}, {4 << 20, 221}, {16 << 20, 311}, {64 << 20, 348}} {
		l.Batch = 1
		got := float64(c.size) / float64(l.Time(c.size, c.size).Nanoseconds())
		if got < 0.9*c.gbs || got > 1.1*c.gbs {
			t.Errorf("%d KiB: %.1f GB/s, measured %.1f", c.size>>10, got, c.gbs)
		}
		t.Logf("%6d KiB: %6.1f GB/s, measured %6.1f", c.size>>10, got, c.gbs)
	}
	if _, err := CurveLink("h100"); err == nil || !strings.Contains(err.Error(), "a100_dgx/inter") {
		t.Errorf("an unknown curve: %v", err)
	}
}

// TestBatchesBeatPieces is why kvlend's copies take lists: 40K tokens of
// Qwen3-32B are 160K pieces of 64 KiB.
func TestBatchesBeatPieces(t *testing.T) {
	l, err := NVLink(gpuOf(t, "H100-SXM"))
	if err != nil {
		t.Fatal(err)
	}
	const bytes = 40_000 / 16 * 64 * (64 << 10)
	list := l.Time(bytes, 64<<10)
	single := *l
	single.Batch = 1
	each := single.Time(bytes, 64<<10)
	t.Logf("one list %s, a call for each piece %s", list, each)
	if each < 20*list {
		t.Errorf("a call for each piece takes %s, one list %s: want more of a difference", each, list)
	}
}

func TestSimpleLink(t *testing.T) {
	l, err := ConfigLink(configs.Link{From: "a", To: "b", Bandwidth: 1e9, Latency: configs.Duration(10 * time.Microsecond)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		batch        int
		bytes, piece int64
		want         time.Duration
	}{
		{0, 1000, 100, 11 * time.Microsecond},
		{1, 1000, 100, 101 * time.Microsecond},
		{1, 1050, 100, 11*10*time.Microsecond + 1050},
		{4, 1000, 100, 31 * time.Microsecond},
		{0, 0, 100, 0},
		{1, 500, 0, 10*time.Microsecond + 500},
		{1, 500, 10_000, 10*time.Microsecond + 500},
	} {
		l.Batch = c.batch
		if got := l.Time(c.bytes, c.piece); got < c.want || got > c.want+2 {
			t.Errorf("%+v: %s", c, got)
		}
	}
	l.Batch, l.PieceCost = 0, time.Microsecond
	if got := l.Time(1000, 100); got < 21*time.Microsecond || got > 21*time.Microsecond+2 {
		t.Errorf("10 pieces of 1us each: %s", got)
	}
}

func TestLinksOfGPUs(t *testing.T) {
	for _, g := range facts.GPUs() {
		l, err := NVLink(g)
		if (err == nil) != (g.NVLink > 0) {
			t.Errorf("%s with %g bytes/s of NVLink: %v", g.Name, g.NVLink, err)
		}
		p, err := PCIe(g)
		if err != nil {
			t.Fatal(err)
		}
		if l != nil {
			const big = 1 << 30
			r := big / l.Time(big, big).Seconds() / g.NVLink
			if r < 0.6 || r > 1 {
				t.Errorf("%s: NVLink reaches %.2f of its nominal bandwidth", g.Name, r)
			}
			if l.Time(big, big) >= p.Time(big, big) {
				t.Errorf("%s: NVLink is not faster than PCIe", g.Name)
			}
		}
	}
}

func TestImpossibleLinks(t *testing.T) {
	if _, err := NewLink(0, 0); err == nil || !strings.Contains(err.Error(), "bandwidth") {
		t.Errorf("no bandwidth: %v", err)
	}
	if _, err := NewLink(1, -1); err == nil || !strings.Contains(err.Error(), "latency") {
		t.Errorf("negative latency: %v", err)
	}
	if _, err := ConfigLink(configs.Link{From: "gpu0", To: "gpu1"}); err == nil || !strings.Contains(err.Error(), "gpu0") {
		t.Errorf("a config's link without bandwidth: %v", err)
	}
}

func TestMoreBytesTakeLonger(t *testing.T) {
	var links []*Link
	for _, c := range Curves() {
		l, err := c.Link()
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, l)
	}
	rapid.Check(t, func(t *rapid.T) {
		l := *rapid.SampledFrom(links).Draw(t, "link")
		l.Batch = rapid.IntRange(0, 3).Draw(t, "batch")
		piece := rapid.Int64Range(1, 1<<24).Draw(t, "piece")
		a := rapid.Int64Range(1, 1<<30).Draw(t, "a")
		b := a + rapid.Int64Range(0, 1<<30).Draw(t, "more")
		if l.Time(a, piece) > l.Time(b, piece)+1 {
			t.Fatalf("%d bytes take %s, %d take %s", a, l.Time(a, piece), b, l.Time(b, piece))
		}
		if got := float64(b) / l.Time(b, piece).Seconds(); got > 1.3*l.Rate() {
			t.Fatalf("%d bytes run at %g, the link's rate is %g", b, got, l.Rate())
		}
	})
}

func TestParseCurvesNamesTheLine(t *testing.T) {
	const head = "file,locality,size_bytes,median_ms,p_min_ms,GBps\n"
	for text, want := range map[string]string{
		"":                                  "header",
		"a,b\n":                             "header",
		head:                                "no rows",
		head + "x,intra,0,1,1,1\n":          "line 2: size_bytes",
		head + "x,intra,1,-1,1,1\n":         "line 2: median_ms",
		head + "x,i,1,1,1,1\nx,i,2,NaN,,\n": "line 3: median_ms",
		head + "x,i,1,1,1,1\nx,i,1,1,1,1\n": "twice",
		head + "x,i,1,1\n":                  "line 2",
	} {
		if _, err := ParseCurves(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseCurves(f *testing.F) {
	f.Add([]byte("file,locality,size_bytes,median_ms,p_min_ms,GBps\nx,intra,2048,0.02,0.01,1\nx,intra,4096,0.01,0.01,1\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		curves, err := ParseCurves(bytes.NewReader(text))
		if err != nil {
			return
		}
		for _, c := range curves {
			l, err := c.Link()
			if err != nil {
				continue // a single point
			}
			last := time.Duration(0)
			for n := int64(1); n < 1<<40; n *= 3 {
				d := l.Time(n, n)
				if d <= 0 || d < last-1-last/1_000_000_000 {
					t.Fatalf("%d bytes take %s, fewer took %s", n, d, last)
				}
				last = d
			}
		}
	})
}

func profiled(t testing.TB) *Disk {
	t.Helper()
	p := device.Profile{Device: "nvme0", Read: device.Curve{
		{Size: 4096, Depth: 1, Rate: 50e6, Latency: 80 * time.Microsecond},
		{Size: 4096, Depth: 32, Rate: 1e9, Latency: 130 * time.Microsecond},
		{Size: 65536, Depth: 1, Rate: 500e6, Latency: 130 * time.Microsecond},
		{Size: 65536, Depth: 32, Rate: 5e9, Latency: 420 * time.Microsecond},
	}}
	d, err := ProfileDisk(p, 1e12, DWPD(ReadIntensiveDWPD, 1e12, 5))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDisks(t *testing.T) {
	d := profiled(t)
	for _, c := range []struct {
		size  int64
		depth int
		want  float64
	}{{4096, 1, 50e6}, {65536, 32, 5e9}, {65536, 1000, 5e9}, {1 << 20, 32, 5e9}, {512, 1, 50e6 / 8}} {
		if got := d.ReadRate(c.size, c.depth); got < 0.999*c.want || got > 1.001*c.want {
			t.Errorf("%d bytes, depth %d: %g bytes/s, want %g", c.size, c.depth, got, c.want)
		}
	}
	mid := d.ReadRate(16384, 1)
	if mid < 150e6 || mid > 170e6 { // halfway in logarithms: sqrt(50*500)
		t.Errorf("between sizes: %g bytes/s, want about 158e6", mid)
	}
	if got := d.Read(4096, 4096, 32); got < 80*time.Microsecond || got > 83*time.Microsecond {
		t.Errorf("one I/O takes %s", got)
	}

	s, err := NewDisk(DiskSpec{ReadBandwidth: 7e9, WriteBandwidth: 5e9, ReadIOPS: 1e6, ReadLatency: 80 * time.Microsecond, WriteLatency: 10 * time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		bytes, piece int64
		depth        int
		want         time.Duration
	}{
		{7e9, 1 << 20, 64, time.Second},                   // bandwidth
		{4096e6, 4096, 1024, time.Second},                 // IOPS
		{4096 * 100, 4096, 1, 100 * 80585},                // latency, one by one
		{4096, 4096, 8, 80585},                            // one I/O
		{4096 * 8, 4096, 8, 80585 * time.Nanosecond},      // eight at once
		{4096 * 16, 4096, 8, 2 * 80585 * time.Nanosecond}, // two rounds of eight
	} {
		if got := s.Read(c.bytes, c.piece, c.depth); float64(got) < 0.999*float64(c.want) || float64(got) > 1.001*float64(c.want) {
			t.Errorf("%+v: %s", c, got)
		}
	}
	if s.Read(0, 1, 1) != 0 {
		t.Error("nothing takes time")
	}
}

func TestDiskIsMonotone(t *testing.T) {
	disks := []*Disk{profiled(t)}
	for _, s := range []DiskSpec{DRAM(40e9, 1e12), {ReadBandwidth: 3e9, WriteBandwidth: 1e9, ReadIOPS: 5e5, WriteIOPS: 1e5, ReadLatency: 90 * time.Microsecond}} {
		d, err := NewDisk(s)
		if err != nil {
			t.Fatal(err)
		}
		disks = append(disks, d)
	}
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.SampledFrom(disks).Draw(t, "disk")
		piece, depth := rapid.Int64Range(1, 1<<22).Draw(t, "piece"), rapid.IntRange(1, 256).Draw(t, "depth")
		n := rapid.Int64Range(1, 1<<12).Draw(t, "pieces")
		m := n + rapid.Int64Range(0, 1<<12).Draw(t, "more")
		if a, b := d.Read(n*piece, piece, depth), d.Read(m*piece, piece, depth); a > b+1 {
			t.Fatalf("%d pieces take %s, %d take %s", n, a, m, b)
		}
		if a, b := d.Write(n*piece, piece, depth+1), d.Write(n*piece, piece, depth); a > b+1 {
			t.Fatalf("depth %d takes %s, less deep %s", depth+1, a, b)
		}
	})
}

func TestBadDisks(t *testing.T) {
	for want, s := range map[string]DiskSpec{
		"read bandwidth":  {WriteBandwidth: 1},
		"write bandwidth": {ReadBandwidth: 1},
		"IOPS":            {ReadBandwidth: 1, WriteBandwidth: 1, ReadIOPS: -1},
		"latency":         {ReadBandwidth: 1, WriteBandwidth: 1, WriteLatency: -1},
	} {
		if _, err := NewDisk(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
	for want, c := range map[string]device.Curve{
		"no measurements": nil,
		"measurement 0":   {{Size: 4096}},
		"twice":           {{Size: 1, Depth: 1, Rate: 1, Latency: 1}, {Size: 1, Depth: 1, Rate: 2, Latency: 1}},
	} {
		if _, err := ProfileDisk(device.Profile{Device: "d", Read: c}, 0, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", c, err, want)
		}
	}
}

func TestEndurance(t *testing.T) {
	e := DWPD(1, 3_840_000_000_000, 5) // 7 PB
	if got := e.Years(3.84e12, 24*time.Hour, 1); got < 4.999 || got > 5.001 {
		t.Errorf("one write a day for %g years, want 5", got)
	}
	if got := e.Years(3.84e12, 24*time.Hour, 2.5); got < 1.999 || got > 2.001 {
		t.Errorf("amplified 2.5 times: %g years, want 2", got)
	}
	if got := e.Years(0, time.Hour, 1); got < 1e300 {
		t.Errorf("nothing written: %g years", got)
	}
	if got := Endurance(0).Years(1, time.Hour, 1); got < 1e300 {
		t.Errorf("what does not wear: %g years", got)
	}
}
