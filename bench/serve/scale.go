package serve

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/internal/source"
)

// SwiftCache's Figure 1: 5K tokens of history come over PCIe in 75 ms, 256 new
// ones are computed in 27 ms. Its machine's NVLink carries 400 GB/s, its PCIe 32.
const (
	paperHistory = 5120
	paperNew     = 256
	paperLoad    = 75.0
	paperCompute = 27.0
	paperNVLink  = 400.0
	paperPCIe    = 32.0
)

// Scale is how fast emulated links must be for loading to stand to computing, on
// this machine's engine, as it does in the paper.
type Scale struct {
	Compute time.Duration // of 256 new tokens after 5,120, measured
	KVBytes int64         // of 5,120 tokens
	PCIe    configs.Rate  // KVBytes in 75/27 of Compute
	NVLink  configs.Rate  // 400/32 of it
}

// String is the line that a report prints.
func (s Scale) String() string {
	return fmt.Sprintf("*emulated* links: %d new tokens after %d take this engine %.0f ms, so the %.0f MiB of history take %.0f ms over PCIe (%s), as 75 to 27 ms in the paper; NVLink is 400/32 of it (%s)",
		paperNew, paperHistory, s.Compute.Seconds()*1e3, float64(s.KVBytes)/(1<<20), float64(s.KVBytes)/float64(s.PCIe)*1e3, s.PCIe, s.NVLink)
}

// Measure works out the scale for a model: the median of several passes of the
// engine alone, over KV at home.
func Measure(ctx context.Context, m *configs.Model) (Scale, error) {
	eng, err := source.Engine(m)
	if err != nil {
		return Scale{}, fmt.Errorf("model %s: %w", m.Name, err)
	}
	defer eng.Close()
	kv := engine.NewSimpleKV(eng, paperHistory+paperNew)
	tokens := make([]int32, paperHistory+paperNew)
	for i := range tokens {
		tokens[i] = int32(i % min(251, eng.Config().Vocab))
	}
	forward := func(from, to int) (time.Duration, error) {
		began := time.Now()
		_, err := eng.Forward(ctx, []engine.Sequence{{Tokens: tokens[from:to], Start: from, Logits: engine.LastLogits}}, kv)
		return time.Since(began), err
	}
	for at := 0; at < paperHistory; at += paperNew {
		if _, err := forward(at, at+paperNew); err != nil {
			return Scale{}, err
		}
	}
	var took []time.Duration
	for range 9 {
		d, err := forward(paperHistory, paperHistory+paperNew)
		if err != nil {
			return Scale{}, err
		}
		took = append(took, d)
	}
	slices.Sort(took)
	g := eng.KVLayout()
	s := Scale{Compute: took[len(took)/2]}
	s.KVBytes = int64(paperHistory/g.BlockTokens) * int64(eng.Config().Layers) * g.LayerBlockBytes()
	pcie := float64(s.KVBytes) / (s.Compute.Seconds() * paperLoad / paperCompute)
	s.PCIe, s.NVLink = configs.Rate(pcie), configs.Rate(pcie*paperNVLink/paperPCIe)
	return s, nil
}

// WithScale is a copy of a configuration whose links have the scale's speeds:
// those to a device called host are PCIe, all others NVLink.
func WithScale(c *configs.Config, s Scale) (*configs.Config, error) {
	if !c.Fabric.Pace {
		return nil, fmt.Errorf("the configuration does not pace its links (fabric.pace): they cannot be scaled")
	}
	out := *c
	out.Links = slices.Clone(c.Links)
	for i := range out.Links {
		l := &out.Links[i]
		l.Bandwidth = s.NVLink
		if l.From == configs.HostDevice || l.To == configs.HostDevice {
			l.Bandwidth = s.PCIe
		}
	}
	return &out, nil
}
