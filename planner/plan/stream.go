package plan

import (
	"sort"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/facts"
)

// Efficiency is the share of a GPU's peak arithmetic that prefill is assumed
// to reach. SwiftCache's Table 1 is reproduced with 0.86 to 0.93 on an H20,
// whose peak is low for its memory bandwidth; faster GPUs reach less, so that
// computation takes longer there and hides more than this says.
const Efficiency = 0.85

// Stream says whether a master's loads from its workers can hide behind its
// computation. Times are estimates of one layer.
type Stream struct {
	Master string `json:"master"`
	// History is the streamed tokens that the times are for: all that can be
	// borrowed, but no more than one sequence of the trained context.
	History int           `json:"history"`
	Lenders []StreamShare `json:"lenders"`
	// Load is the time to load a layer of the history, Store that to store a
	// layer of a full step's new tokens; 0: not known.
	Load  float64 `json:"load"`
	Store float64 `json:"store"`
	// HiddenBy is what runs during a load: "ffn" with one buffer, "attention
	// and ffn" with two.
	HiddenBy string `json:"hidden_by"`
	// Step is the new tokens of a full step (max_batch_tokens); Compute is the
	// time of what hides a load in it, Decode that in a step of one token.
	Step    int     `json:"step_tokens"`
	Compute float64 `json:"compute"`
	Decode  float64 `json:"decode"`
	// HideTokens is the least new tokens that hide a load; 0: not known.
	HideTokens int `json:"hide_tokens"`
	// Unknown says why times are not known; or "".
	Unknown string `json:"unknown,omitempty"`
	other   int    // HideTokens with the other number of buffers
}

// StreamShare is one worker's part of the history.
type StreamShare struct {
	Worker    string  `json:"worker"`
	Tokens    int     `json:"tokens"`
	Bandwidth float64 `json:"bandwidth"` // bytes per second; 0: not known, or the same device
	// From says where the bandwidth comes from: "links", "same device", or an
	// assumption: "NVLink of the GPUs", "PCIe of the GPUs".
	From string `json:"from"`
}

// maxHide bounds the search for HideTokens.
const maxHide = 1 << 24

// streams estimates every master's loads. Blocks are taken from the lenders in
// the order in which the master asks them; their links work in parallel, but
// not faster than the NVLink of the master's GPU.
func (p *Plan) streams(sys *planner.System) {
	for _, m := range sys.Models {
		if m.Config.Role != configs.RoleMaster || len(m.Lenders) == 0 {
			continue
		}
		p.Streams = append(p.Streams, p.stream(sys, m))
	}
}

func (p *Plan) stream(sys *planner.System, m *planner.Model) Stream {
	pm := p.Model(m.Config.Name)
	s := Stream{Master: m.Config.Name, Step: m.Config.MaxBatchTokens, HiddenBy: "ffn", Lenders: []StreamShare{}}
	if pm.Master.Buffers == 2 {
		s.HiddenBy = "attention and ffn"
	}
	s.History = pm.Master.NLSC * pm.BlockTokens
	if pm.Trained > 0 {
		s.History = min(s.History, pm.Trained)
	}
	left := s.History
	for _, l := range m.Lenders {
		share := StreamShare{Worker: l.Worker.Config.Name, Tokens: min(left, l.Blocks*pm.BlockTokens)}
		left -= share.Tokens
		share.Bandwidth, share.From = linkBandwidth(sys.Config, l.Worker.Config.Device, m.Config.Device)
		s.Lenders = append(s.Lenders, share)
	}
	gpu, known := gpuOf(configs.Device{Kind: p.device(m.Config.Device).Kind})
	perToken := float64(pm.LayerBlock) / float64(pm.BlockTokens)
	var all, slowest float64
	for _, l := range s.Lenders {
		if l.Tokens == 0 || l.From == fromDevice {
			continue
		}
		if l.Bandwidth == 0 {
			s.Unknown = "no link between the devices of " + l.Worker + " and " + s.Master + " is described"
			return s
		}
		s.Load = max(s.Load, float64(l.Tokens)*perToken/l.Bandwidth)
		all += float64(l.Tokens)
		slowest = max(slowest, 1/l.Bandwidth)
	}
	if known && gpu.NVLink > 0 {
		s.Load = max(s.Load, all*perToken/gpu.NVLink)
	}
	s.Store = float64(s.Step) * perToken * slowest
	if !known {
		s.Unknown = "the speed of a device of kind " + p.device(m.Config.Device).Kind + " is not known"
		return s
	}
	hides := func(buffers int) func(fresh float64) float64 {
		return func(fresh float64) float64 { return computeTime(pm.shape, gpu, fresh, float64(s.History), buffers) }
	}
	s.Compute, s.Decode = hides(pm.Master.Buffers)(float64(s.Step)), hides(pm.Master.Buffers)(1)
	s.HideTokens = leastTokens(s.Load, hides(pm.Master.Buffers))
	s.other = leastTokens(s.Load, hides(3-pm.Master.Buffers))
	return s
}

// computeTime estimates what runs in one layer while the next one is loaded:
// the feed-forward part, and attention too with two buffers. A part takes as
// long as its arithmetic or as reading its weights, whichever is longer.
func computeTime(s Shape, gpu facts.GPU, fresh, history float64, buffers int) float64 {
	peak := gpu.FLOPS * Efficiency
	t := max(fresh*s.ffnFLOPs()/peak, min(fresh*float64(s.FFN)*3*float64(s.Hidden), float64(s.FFNWeights))*weightElem/gpu.MemoryBandwidth)
	if buffers == 2 {
		t += max(s.attentionFLOPs(fresh, history)/peak, s.projectionElems()*weightElem/gpu.MemoryBandwidth)
	}
	return t
}

// leastTokens is the least number of tokens whose time reaches load.
func leastTokens(load float64, time func(fresh float64) float64) int {
	return 1 + sort.Search(maxHide, func(i int) bool { return time(float64(i+1)) >= load })
}

// Where a bandwidth comes from.
const (
	fromLinks  = "links"
	fromDevice = "same device"
	fromNVLink = "NVLink of the GPUs"
	fromPCIe   = "PCIe of the GPUs"
)

// linkBandwidth is that of a described link, or what two known GPUs have: the
// slower NVLink, or the slower slot through the host where one has no NVLink.
func linkBandwidth(cfg *configs.Config, from, to string) (float64, string) {
	if from == to {
		return 0, fromDevice
	}
	if l, ok := cfg.Link(from, to); ok {
		return float64(l.Bandwidth), fromLinks
	}
	var gpus []facts.GPU
	for _, d := range cfg.Devices {
		if g, ok := gpuOf(d); ok && (d.Name == from || d.Name == to) {
			gpus = append(gpus, g)
		}
	}
	if len(gpus) != 2 {
		return 0, ""
	}
	if nv := min(gpus[0].NVLink, gpus[1].NVLink); nv > 0 {
		return nv, fromNVLink
	}
	return min(gpus[0].PCIeBandwidth, gpus[1].PCIeBandwidth), fromPCIe
}
