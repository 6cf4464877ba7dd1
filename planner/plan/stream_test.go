package plan

import (
	"math"
	"strings"
	"testing"
)

const three = `
version: 1
devices: [{name: g0, kind: A100-80G-SXM}, {name: g1, kind: H100-SXM}, {name: g2, kind: H100-SXM}, {name: g3, kind: L4}]
links: [{from: g0, to: g1, bandwidth: 100GB/s}, {from: g2, to: g0, bandwidth: 200GB/s}]
models:
  - {name: m, source: "catalog:LWM-1M-Text", role: master, device: g0, arena: 40GiB, max_batch_tokens: 8192}
  - {name: slow, source: "catalog:Qwen3-8B", role: worker, device: g1, arena: 16GiB}
  - {name: fast, source: "catalog:Qwen3-8B", role: worker, device: g2, arena: 8GiB}
`

// near compares times.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }

// TestStreamLoads works a load out by hand: the fastest link first, all links
// at once, and no faster than the NVLink of the master's GPU.
func TestStreamLoads(t *testing.T) {
	const layerToken = 16384 // bytes of one token in one layer of LWM
	s := mustPlan(t, three).Streams[0]
	fast, slow := float64(s.Lenders[0].Tokens), float64(s.Lenders[1].Tokens)
	if s.Lenders[0].Worker != "fast" || s.History != int(fast+slow) || fast == 0 || slow <= fast {
		t.Fatalf("%+v", s)
	}
	if want := slow * layerToken / 100e9; !near(s.Load, want) {
		t.Errorf("a load takes %g s, want %g", s.Load, want)
	}
	if want := 8192 * layerToken / 100e9; !near(s.Store, want) {
		t.Errorf("a store takes %g s, want %g", s.Store, want)
	}
	wide := strings.Replace(strings.Replace(three, "100GB/s", "300GB/s", 1), "200GB/s", "300GB/s", 1)
	s = mustPlan(t, wide).Streams[0]
	if want := float64(s.History) * layerToken / 300e9; !near(s.Load, want) {
		t.Errorf("through two links of 300 GB/s a load takes %g s; the master's GPU has as much for both, want %g", s.Load, want)
	}
}

// TestStreamBandwidths: what stands in links, what GPUs have, or nothing.
func TestStreamBandwidths(t *testing.T) {
	for _, c := range []struct {
		name, old, new, from string
		bandwidth            float64
	}{
		{"described", "", "", fromLinks, 200e9},
		{"NVLink of the slower GPU", "links: [{from: g0, to: g1, bandwidth: 100GB/s}, {from: g2, to: g0, bandwidth: 200GB/s}]\n", "", fromNVLink, 300e9},
		{"the other way only", "bandwidth: 200GB/s}", "bandwidth: 200GB/s, oneway: true}", fromLinks, 200e9},
		{"not this way", "{from: g2, to: g0, bandwidth: 200GB/s}", "{from: g0, to: g2, bandwidth: 1GB/s, oneway: true}", fromNVLink, 300e9},
		{"no NVLink", "role: worker, device: g2", "role: worker, device: g3", fromPCIe, 16 * 1.969e9},
		{"same device", "role: worker, device: g2", "role: worker, device: g0", fromDevice, 0},
		{"no GPU", "{name: g2, kind: H100-SXM}", "{name: g2}", fromLinks, 200e9},
	} {
		s := mustPlan(t, strings.Replace(three, c.old, c.new, 1)).Streams[0]
		for _, l := range s.Lenders {
			if l.Worker == "fast" && (l.From != c.from || l.Bandwidth != c.bandwidth) {
				t.Errorf("%s: %+v, want %g from %q", c.name, l, c.bandwidth, c.from)
			}
		}
	}
	text := strings.Replace(strings.Replace(three, "{name: g1, kind: H100-SXM}", "{name: g1}", 1), "{from: g0, to: g1, bandwidth: 100GB/s}, ", "", 1)
	if s := mustPlan(t, text).Streams[0]; !strings.Contains(s.Unknown, "slow and m") || s.HideTokens != 0 {
		t.Errorf("without a link: %+v", s)
	}
}

// TestMemoryBars: the parts of a bar add up to the device, or to what lies on it.
func TestMemoryBars(t *testing.T) {
	for _, text := range []string{three, needy} {
		p := mustPlan(t, text)
		b := p.memoryBars(1)
		for i, d := range p.Devices {
			sum := 0.0
			for _, part := range b.parts {
				if part.values[i] < 0 {
					t.Errorf("%s: %s is %g", d.Name, part.name, part.values[i])
				}
				sum += part.values[i]
			}
			if want := float64(d.Memory - min(0, d.Left)); sum != want {
				t.Errorf("%s: the parts add up to %g, want %g", d.Name, sum, want)
			}
		}
	}
}
