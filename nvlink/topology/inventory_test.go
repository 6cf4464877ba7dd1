package topology

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCanonicalPCI(t *testing.T) {
	for in, want := range map[string]string{
		"00000000:3B:00.0": "0000:3b:00.0", "0000:3b:00.0": "0000:3b:00.0", "3b:00.0": "0000:3b:00.0",
		"00010000:0A:1F.7": "10000:0a:1f.7", " 0000:3b:00.0\n": "0000:3b:00.0",
		"": "", "gpu0": "gpu0", "0000:3b:00.8": "0000:3b:00.8", "GPU-1": "gpu-1",
	} {
		if got := CanonicalPCI(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestFind(t *testing.T) {
	inv := &Inventory{GPUs: []GPU{
		{Index: 0, UUID: "GPU-11111111-aaaa", PCI: "0000:3b:00.0"}, {Index: 1, UUID: "GPU-11111111-bbbb", PCI: "0000:5e:00.0"}, {Index: 2},
	}}
	for _, c := range []struct {
		selector string
		want     int
		err      string
	}{
		{"0", 0, ""}, {"2", 2, ""}, {"3", 0, "no GPU 3; there is GPU 0 GPU-11111111-aaaa, GPU 1 GPU-11111111-bbbb, GPU 2"},
		{"gpu-11111111-BBBB", 1, ""}, {"GPU-11111111-a", 0, ""}, {"GPU-11111111", 0, "names GPU 0 as well as GPU 1"},
		{"GPU-1111", 0, "too short"}, {"5E:00.0", 1, ""}, {"00000000:3B:00.0", 0, ""}, {"", 0, `no GPU ""`}, {"-1", 0, "no GPU -1"},
		{"GPU-11111111-aaaa-cccc", 0, "no GPU"},
	} {
		g, err := inv.Find(c.selector)
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%q: %v, want %q", c.selector, err, c.err)
		case c.err == "" && (err != nil || g.Index != c.want):
			t.Errorf("%q: %v, %v, want %d", c.selector, g, err, c.want)
		}
	}
	if _, err := new(Inventory).Find("0"); err == nil || !strings.Contains(err.Error(), "there is none") {
		t.Errorf("without GPUs: %v", err)
	}
}

// links is n active links to a peer.
func links(n int, peer string, rate float64) []NVLink {
	out := make([]NVLink, n)
	for i := range out {
		out[i] = NVLink{Index: i, Active: true, Peer: peer, BytesPerSec: rate}
	}
	return out
}

func allowed(int, int) (P2P, string) {
	return P2P{Read: P2PYes, Write: P2PYes}, "NODE"
}

func TestConnect(t *testing.T) {
	slot := PCIe{Gen: 4, Width: 16}
	for _, c := range []struct {
		name string
		a, b GPU
		p2p  P2P
		via  Via
		n    int
		rate float64
	}{
		{"slots", GPU{PCIe: slot}, GPU{PCIe: PCIe{Gen: 1, MaxGen: 3, Width: 8}}, P2P{}, ViaPCIe, 0, 8 * 0.985e9},
		{"a slot that is not known", GPU{PCIe: slot}, GPU{}, P2P{}, ViaPCIe, 0, 0},
		{"a slot of the future", GPU{PCIe: PCIe{Gen: 9, Width: 1}}, GPU{PCIe: PCIe{Gen: 9, Width: 1}}, P2P{}, ViaPCIe, 0, 7.563e9},
		{"links", GPU{NVLinks: links(3, "b", 25e9)}, GPU{}, P2P{}, ViaNVLink, 3, 75e9},
		{"links elsewhere", GPU{NVLinks: links(3, "c", 25e9), PCIe: slot}, GPU{PCIe: slot}, P2P{}, ViaPCIe, 0, 16 * 1.969e9},
		{"switches", GPU{NVLinks: links(18, PeerSwitch, 25e9)}, GPU{NVLinks: links(12, PeerSwitch, 25e9)}, P2P{}, ViaNVSwitch, 12, 300e9},
		{"switches by address", GPU{NVLinks: append(links(2, "0000:c1:00.0", 25e9), append(links(4, "0000:c2:00.0", 25e9), links(3, "0000:c3:00.0", 25e9)...)...)},
			GPU{NVLinks: append(links(2, "0000:c1:00.0", 25e9), links(1, "0000:c2:00.0", 25e9)...)}, P2P{}, ViaNVSwitch, 3, 75e9},
		{"both at a third GPU", GPU{NVLinks: links(2, "0000:0c:00.0", 25e9)}, GPU{NVLinks: links(2, "0000:0c:00.0", 25e9)}, P2P{}, ViaPCIe, 0, 0},
		{"both at who knows what", GPU{NVLinks: links(2, PeerUnknown, 25e9)}, GPU{NVLinks: links(2, PeerUnknown, 25e9)}, P2P{}, ViaPCIe, 0, 0},
		{"one at the switch", GPU{NVLinks: links(18, PeerSwitch, 25e9), PCIe: slot}, GPU{PCIe: slot}, P2P{}, ViaPCIe, 0, 16 * 1.969e9},
		{"a fabric that is not ready", GPU{NVLinks: links(18, PeerSwitch, 25e9), PCIe: slot, Fabric: FabricInProgress},
			GPU{NVLinks: links(18, PeerSwitch, 25e9), PCIe: slot, Fabric: FabricCompleted}, P2P{}, ViaPCIe, 0, 16 * 1.969e9},
		{"no reading", GPU{NVLinks: links(3, "b", 25e9), PCIe: slot}, GPU{PCIe: slot}, P2P{Read: "disabled"}, ViaHost, 0, 16 * 1.969e9},
		{"no writing", GPU{PCIe: slot}, GPU{PCIe: slot}, P2P{Read: P2PYes, Write: "disabled"}, ViaHost, 0, 16 * 1.969e9},
		{"MIG", GPU{NVLinks: links(3, "b", 25e9), PCIe: slot}, GPU{PCIe: slot, MIG: On}, P2P{}, ViaHost, 0, 16 * 1.969e9},
	} {
		c.a.Index, c.a.PCI, c.b.Index, c.b.PCI = 4, "a", 7, "b"
		pairs := Connect([]GPU{c.a, c.b, {Index: 9, PCI: "0000:0c:00.0", Fault: "gone"}}, func(int, int) (P2P, string) { return c.p2p, "SYS" })
		if len(pairs) != 2 {
			t.Fatalf("%s: %d pairs", c.name, len(pairs))
		}
		if p := pairs[0]; p.From != 4 || p.To != 7 || p.Via != c.via || p.Links != c.n || p.BytesPerSec != c.rate || p.Path != "SYS" {
			t.Errorf("%s: %+v, want %s %d %g", c.name, p, c.via, c.n, c.rate)
		}
	}
}

func TestFaultyOnesHaveNoPairs(t *testing.T) {
	pairs := Connect([]GPU{{Index: 0}, {Index: 1, Fault: "lost"}, {Index: 2}}, func(from, to int) (P2P, string) {
		if from == 1 || to == 1 {
			t.Errorf("GPU %d was asked about %d", from, to)
		}
		return P2P{}, ""
	})
	if len(pairs) != 2 {
		t.Errorf("%+v", pairs)
	}
}

func TestLinksOfDevices(t *testing.T) {
	gpus := []GPU{{Index: 0, PCI: "a", MemoryBandwidth: 2e12, NVLinks: links(2, "b", 25e9)}, {Index: 1, PCI: "b", NVLinks: links(2, "a", 25e9)}, {Index: 2, PCI: "c"}}
	inv := &Inventory{GPUs: gpus, Pairs: Connect(gpus, allowed)}
	got := inv.Links([]string{"x", "y", "z", "host", "same"}, map[string]int{"x": 0, "y": 1, "z": 2, "same": 0})
	want := []Link{
		{From: "x", To: "y", BytesPerSec: 50e9, Source: FromNVML}, {From: "x", To: "same", BytesPerSec: 1e12, Source: FromNVML},
		{From: "y", To: "x", BytesPerSec: 50e9, Source: FromNVML}, {From: "y", To: "same", BytesPerSec: 50e9, Source: FromNVML},
		{From: "same", To: "x", BytesPerSec: 1e12, Source: FromNVML}, {From: "same", To: "y", BytesPerSec: 50e9, Source: FromNVML},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

func TestCombineAndRank(t *testing.T) {
	all := Combine(
		[]Link{{From: "b", To: "a", BytesPerSec: 10, Source: FromMeasured}},
		[]Link{{From: "b", To: "a", BytesPerSec: 99, Source: FromConfig}, {From: "c", To: "a", BytesPerSec: 20, Source: FromConfig}},
		[]Link{{From: "c", To: "a", BytesPerSec: 99, Source: FromNVML}, {From: "d", To: "a", BytesPerSec: 20, Source: FromNVML}})
	top, err := New([]string{"a", "b", "c", "d", "e"}, all)
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]Source{"b": FromMeasured, "c": FromConfig, "d": FromNVML} {
		if l, _ := top.Link(from, "a"); l.Source != want {
			t.Errorf("from %s: %+v", from, l)
		}
	}
	if got := top.Rank("a", []string{"e", "b", "d", "c"}); !slices.Equal(got, []string{"d", "c", "b", "e"}) {
		t.Errorf("ranked %q", got)
	}
	if got := top.Rank("a", []string{"e", "b", "a"}); !slices.Equal(got, []string{"a", "b", "e"}) {
		t.Errorf("with itself: %q", got)
	}
	if got := top.Rank("b", []string{"e", "c"}); !slices.Equal(got, []string{"e", "c"}) {
		t.Errorf("without links: %q", got)
	}
}

func TestInventoryAsJSON(t *testing.T) {
	gpus := []GPU{{Index: 0, UUID: "GPU-1", NUMANode: -1, NVLinks: links(1, PeerSwitch, 25e9), Processes: []Process{{PID: 1}}}, {Index: 1}}
	inv := Inventory{Driver: "550.1", GPUs: gpus, Pairs: Connect(gpus, allowed)}
	text, err := json.Marshal(inv)
	if err != nil {
		t.Fatal(err)
	}
	var back Inventory
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	again, _ := json.Marshal(back)
	if !bytes.Equal(text, again) {
		t.Errorf("%s\nthen %s", text, again)
	}
}

func TestMeasuredRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &Measured{Version: MeasuredVersion, Fabric: rapid.SampledFrom([]string{"shm", "cuda", ""}).Draw(t, "fabric"), Taken: time.Unix(1e9, 0).UTC()}
		for i := range rapid.IntRange(0, 6).Draw(t, "links") {
			m.Links = append(m.Links, MeasuredLink{From: "a", To: strings.Repeat("b", i+1),
				BytesPerSec: rapid.Float64Range(1, 1e15).Draw(t, "rate"), Latency: time.Duration(rapid.IntRange(0, 1e9).Draw(t, "latency"))})
		}
		var buf bytes.Buffer
		if err := m.Write(&buf); err != nil {
			t.Fatal(err)
		}
		back, err := ParseMeasured(&buf)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(back.Links, m.Links) || back.Fabric != m.Fabric || !back.Taken.Equal(m.Taken) {
			t.Fatalf("%+v became %+v", m, back)
		}
	})
}

func TestMeasuredRefusals(t *testing.T) {
	for text, want := range map[string]string{
		``:                       "EOF",
		`{"version": 2}`:         "version is 2, want 1",
		`{"version": 1, "x": 1}`: "unknown field",
		`{"version": 1} {}`:      "something follows",
		`{"version": 1, "links": [{"from": "a", "to": "a", "bytes_per_sec": 1}]}`:                                               "two different devices",
		`{"version": 1, "links": [{"from": "a", "to": "b", "bytes_per_sec": 0}]}`:                                               "bandwidth 0 B/s",
		`{"version": 1, "links": [{"from": "a", "to": "b", "bytes_per_sec": -1}]}`:                                              "bandwidth -1 B/s",
		`{"version": 1, "links": [{"from": "a", "to": "b", "bytes_per_sec": 1}, {"from": "a", "to": "b", "bytes_per_sec": 1}]}`: "given twice",
		strings.Repeat(" ", maxMeasured+1):                                                                                      "more than",
	} {
		if _, err := ParseMeasured(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %q", text, err, want)
		}
	}
	if err := (&Measured{}).Write(new(bytes.Buffer)); err == nil {
		t.Error("links of no version were written")
	}
	if _, err := LoadMeasured(t.TempDir() + "/none"); err == nil {
		t.Error("a file that is not there was read")
	}
}

func FuzzMeasured(f *testing.F) {
	f.Add([]byte(`{"version":1,"fabric":"cuda","taken":"2026-01-02T03:04:05Z","links":[{"from":"a","to":"b","bytes_per_sec":4.5e11,"latency_ns":5000}]}`))
	f.Add([]byte(`{"version":1,"links":[{"from":"a","to":"b","bytes_per_sec":1e400}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseMeasured(bytes.NewReader(data))
		if err != nil {
			return
		}
		// What is accepted makes a topology, and can be written.
		devices := map[string]bool{}
		var ls []Link
		for _, l := range m.Links {
			devices[l.From], devices[l.To] = true, true
			ls = append(ls, l.Link(l.From, l.To))
		}
		var names []string
		for n := range devices {
			names = append(names, n)
		}
		if len(names) > 0 {
			if _, err := New(names, ls); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Write(new(bytes.Buffer)); err != nil {
			t.Fatal(err)
		}
	})
}
