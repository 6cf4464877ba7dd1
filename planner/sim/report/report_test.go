package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/planner/perf"
	"github.com/kvlend/kvlend/planner/sim"
)

var update = flag.Bool("update", false, "write the golden files")

// server is small, so that a few conversations are more than its own memory.
const server = `
version: 1
devices:
  - {name: gpu0, kind: L4}
  - {name: gpu1, kind: L4}
links: [{from: gpu0, to: gpu1, bandwidth: 25GB/s, latency: 10us}]
models:
  - {name: oak, source: "catalog:Qwen3-8B", role: master, device: gpu0, arena: 1152MiB, max_batch_tokens: 2048, max_running: 8}
  - {name: elm, source: "catalog:Qwen3-8B", role: worker, device: gpu1, arena: 4GiB, floor: 256MiB, max_batch_tokens: 2048, max_running: 8}
lending: {lease: 60s}
`

func parse(t testing.TB, text string) *configs.Config {
	t.Helper()
	c, err := configs.Parse([]byte(text), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// systems are baselines of a configuration.
func systems(t testing.TB, text string, names ...string) []Candidate {
	t.Helper()
	var out []Candidate
	for _, name := range names {
		c, err := configs.Baseline(name, parse(t, text))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, Candidate{name, c})
	}
	return out
}

func run(t testing.TB, o Options) *Report {
	t.Helper()
	c, err := Prepare(o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// forms are all that a report can be written as.
func forms(t testing.TB, r *Report) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for name, write := range map[string]func(io.Writer) error{"table": r.WriteTable, "json": r.WriteJSON, "html": r.WriteHTML} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		out[name] = b.Bytes()
	}
	return out
}

// sample is a report whose figures no simulation changes.
func sample() *Report {
	dist := func(scale float64) Dist {
		return Dist{Count: 200, Mean: scale, P50: scale, P90: 2 * scale, P99: 3 * scale, Max: 4 * scale, CDF: [][2]float64{{scale / 2, 0}, {scale, 0.5}, {4 * scale, 1}}}
	}
	one := func(name string, times float64) System {
		l := Load{
			Model: "oak", Answered: 200, PromptTokens: 1e6, OutputTokens: 20000, End: 100, First: dist(times), Later: dist(times / 10),
			TTFT: dist(times / 2), Token: dist(times / 50), Whole: dist(times * 3), Tiers: Tiers{Computed: 0.25, Local: 0.75},
			Waiting: Series{Slice: 50, Values: []float64{1, 2}, Mean: 1.5, Most: 4},
		}
		return System{
			Name: name, Config: "version: 1\n", Seconds: 100, Loads: []Load{l},
			Models:  []Model{{Name: "oak", Role: "master", Device: "gpu0", Busy: 50}, {Name: "elm", Role: "worker", Device: "gpu1"}},
			Devices: []Device{{"gpu0", 0.5}, {"gpu1", 0}}, Lent: Series{Slice: 50, Values: []float64{0, 0}},
		}
	}
	lending, alone := one("lending", 0.2), one("local-only", 0.5)
	lending.Loads[0].Tiers = Tiers{Computed: 0.1, Local: 0.3, Borrowed: 0.5999, Host: 0.0001, Declined: 0.05}
	lending.Lent = Series{Slice: 50, Values: []float64{1e9, 3e9}, Mean: 2e9, Most: 4e9}
	lending.Control = Control{Messages: 120, PerSecond: 1.2, Bytes: 9000, Granted: 12345, Reclaims: 3, Reclaimed: 40}
	lending.Models[0].Loaded, lending.Models[0].Stored, lending.Models[0].Moved = 5e12, 2e9, map[string]uint64{"borrowed": 12, "dropped": 3}
	lending.Models[1].Busy, lending.Models[1].Slowed = 10, 0.7
	lending.Links = []Link{{"gpu1", "gpu0", 5e12, 0.93, 2e11}, {"gpu0", "gpu1", 0, 0, 0}}
	lending.Disks = []Disk{{"ssd0", 1e9, 2e9, 2.5}}
	alone.Loads[0].Refused = []Refusal{{"too_long", 7, "too long"}}
	return &Report{
		Schema: Schema, Kind: "simulated", Model: "oak", Seed: 1, Timing: "think",
		Trace:       Trace{Name: "synthetic", Sessions: 50, Turns: 200, PromptTokens: 1e6, OutputTokens: 20000, LongestTurn: 9000, MaxContext: 32768},
		Assumptions: []Assumption{{"gpu0", "an assumption"}},
		Warnings:    []Warning{{Kind: WarnGuess, Text: "nothing was measured"}, {"local-only", WarnRefused, "oak refused 7 requests"}},
		Systems:     []System{lending, alone},
	}
}

func TestTable(t *testing.T) {
	const path = "testdata/table.txt"
	got := forms(t, sample())["table"]
	if *update {
		if err := os.WriteFile(path, got, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestSameBytes: however many run at the same time, and whenever.
func TestSameBytes(t *testing.T) {
	var before map[string][]byte
	for _, parallel := range []int{1, 4} {
		o := options(t)
		o.Parallel = parallel
		got := forms(t, run(t, o))
		for name := range got {
			if before != nil && !bytes.Equal(before[name], got[name]) {
				t.Errorf("%s differs with %d at a time", name, parallel)
			}
		}
		before = got
	}
	o := options(t)
	o.Seed = 7
	if other := forms(t, run(t, o)); bytes.Equal(other["json"], before["json"]) {
		t.Error("another seed gives the same report")
	}
}

func TestRoundTrip(t *testing.T) {
	for name, r := range map[string]*Report{"sample": sample(), "run": run(t, options(t))} {
		text := forms(t, r)["json"]
		var back Report
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&back); err != nil {
			t.Fatal(name, err)
		}
		if !reflect.DeepEqual(&back, r) {
			t.Errorf("%s: decoded is not what was encoded", name)
		}
		if again := forms(t, &back)["json"]; !bytes.Equal(again, text) {
			t.Errorf("%s: encoded again it differs", name)
		}
	}
}

var outside = regexp.MustCompile(`(?i)https?:|src *=|href *=|url *\(|@import|<script|<link|<iframe|\bon[a-z]+ *=`)

// TestPage: it is well formed, needs nothing else, and text cannot break out.
func TestPage(t *testing.T) {
	odd := sample()
	odd.Systems[1].Name = `<b onclick=x>&"'`
	odd.Warnings[1].System, odd.Model, odd.Systems[0].Config = odd.Systems[1].Name, "</title><i>", "</pre><script>"
	for name, r := range map[string]*Report{"sample": sample(), "run": run(t, options(t)), "odd": odd} {
		text := forms(t, r)["html"]
		dec := xml.NewDecoder(bytes.NewReader(text))
		dec.Strict, dec.AutoClose, dec.Entity = false, []string{"meta"}, xml.HTMLEntity // attributes as HTML has them
		depth := 0
		for {
			tok, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			switch tok := tok.(type) {
			case xml.StartElement:
				depth++
				switch tok.Name.Local {
				case "script", "link", "b", "img":
					t.Errorf("%s: an element %s", name, tok.Name.Local)
				}
			case xml.EndElement:
				depth--
			}
		}
		if depth != 0 {
			t.Errorf("%s: %d elements are not closed", name, depth)
		}
		if found := outside.Find(text); found != nil && name != "odd" {
			t.Errorf("%s refers to something outside: %q", name, found)
		}
		for _, want := range []string{"simulated", "prefers-color-scheme: dark", "<svg", "Assumptions", "Time to first token", "Lent memory"} {
			if !bytes.Contains(text, []byte(want)) {
				t.Errorf("%s: the page lacks %q", name, want)
			}
		}
		if bytes.Contains(text, []byte("NaN")) || bytes.Contains(text, []byte("Inf")) || bytes.Contains(text, []byte("ZgotmplZ")) {
			t.Errorf("%s: the page has something that is no number, or was not let through", name)
		}
	}
}

// TestAccounts: what holds of every report.
func TestAccounts(t *testing.T) {
	r := run(t, options(t))
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	for i := range r.Systems {
		s := &r.Systems[i]
		l := s.main()
		if l.Answered != r.Trace.Turns || int(l.TTFT.Count) != l.Answered || l.First.Count+l.Later.Count != l.TTFT.Count {
			t.Errorf("%s: %d of %d turns answered, %d first and %d later ones", s.Name, l.Answered, r.Trace.Turns, l.First.Count, l.Later.Count)
		}
		sum := 0.0
		for _, tier := range tierList() {
			sum += tier.of(&l.Tiers)
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("%s: the tiers' shares add up to %v", s.Name, sum)
		}
		for _, d := range s.Devices {
			if d.Busy < 0 || d.Busy > 1 {
				t.Errorf("%s: %s is busy %v of the time", s.Name, d.Name, d.Busy)
			}
		}
		lends := s.Name == "lending"
		if (l.Tiers.Borrowed > 0) != lends || (s.Lent.Most > 0) != lends || (s.Control.Messages > 0) != lends {
			t.Errorf("%s: borrowed %v, lent %v, %d messages", s.Name, l.Tiers.Borrowed, s.Lent.Most, s.Control.Messages)
		}
		if last := l.TTFT.CDF[len(l.TTFT.CDF)-1]; last != [2]float64{l.TTFT.Max, 1} {
			t.Errorf("%s: the distribution ends at %v, the maximum is %v", s.Name, last, l.TTFT.Max)
		}
	}
}

func TestErr(t *testing.T) {
	r := sample()
	r.Systems[1].Loads[0].Answered = 0
	if err := r.Err(); err != nil {
		t.Errorf("a system to compare with: %v", err)
	}
	r.Systems[0], r.Systems[1] = r.Systems[1], r.Systems[0]
	if err := r.Err(); !errors.Is(err, ErrUnanswered) || !strings.Contains(err.Error(), "too long") {
		t.Errorf("got %v", err)
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{three(0), "0"}, {three(0.04567), "0.046"}, {three(1.2345), "1.23"}, {three(99.96), "100"}, {three(12345), "12345"},
		{duration(0), "0"}, {duration(12.3e-6), "12.3 us"}, {duration(0.0123), "12.3 ms"}, {duration(0.99996), "1.00 s"}, {duration(123), "123 s"},
		{size3(0), "0"}, {size3(999.6e6), "1.00 GB"}, {size3(12), "12.0 B"}, {share(0), "0"}, {share(1e-9), "<0.1 %"}, {share(1), "100.0 %"},
		{ratio(3, 2), "x1.50"}, {ratio(1, 0), ""}, {count(1234), "1234"}, {count(12345), "12,345"}, {count(uint64(1234567)), "1,234,567"},
		{plain("1.50 ms"), "1.5 ms"}, {plain("100 s"), "100 s"}, {plain("20.0"), "20"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func FuzzAxes(f *testing.F) {
	f.Add(0.001, 10.0)
	f.Add(0.02, 0.021)
	f.Fuzz(func(t *testing.T, low, high float64) {
		if !(low >= leastTime && high >= low && high < 1e9) {
			t.Skip("not a range of times")
		}
		for _, a := range []axis{logTimes(low, high), fromZero(high, three), clock(high)} {
			if len(a.ticks) == 0 || len(a.ticks) > 30 {
				t.Errorf("%v to %v: %d ticks", low, high, len(a.ticks))
			}
			for _, k := range a.ticks {
				if s := a.share(k.at); !(s >= -1e-9 && s <= 1+1e-9) {
					t.Errorf("%v to %v: a tick at %v", low, high, s)
				}
			}
		}
	})
}

func calibrated() sim.Machine {
	c := perf.DefaultCalibration()
	c.Source = "a test"
	return sim.Machine{Name: "test rig", Models: map[string]sim.Calibrated{"catalog:Qwen3-8B": {Calibration: c}}}
}
