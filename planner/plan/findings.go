package plan

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/planner"
)

// Severity of a finding.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // it cannot work
	Warning Severity = "warning" // it works, probably not as meant
	Note    Severity = "note"    // worth knowing
)

// The codes of findings; docs/planning.md explains each.
const (
	codeFit          = "does-not-fit"
	codeLending      = "lending-impossible"
	codeUnit         = "unit-too-large"
	codeFloor        = "floor-forbids-lending"
	codeBlock        = "odd-block-size"
	codeLCM          = "lcm-blown-up"
	codeCoarse       = "few-units"
	codeStuck        = "idle-memory-stuck"
	codeWaste        = "padding"
	codeLSC          = "more-than-the-lsc-streams"
	codeLink         = "link-too-slow"
	codeDecode       = "decoding-waits"
	codeLinkSpeed    = "link-faster-than-gpu"
	codeLinkUnknown  = "speed-unknown"
	codeLinkAssumed  = "link-assumed"
	codeShares       = "unequal-shares"
	codeShared       = "lent-twice"
	codeNoLender     = "no-lender"
	codeNoBorrower   = "no-borrower"
	codeDevice       = "same-device"
	codeKind         = "unknown-gpu"
	codeTrained      = "beyond-trained-context"
	codeShape        = "figures-approximate"
	codeOverTrained  = "arena-less-than-one-request"
	codeMixedElement = "mixed-element-types"
)

// Finding is something that a planner should know.
type Finding struct {
	Severity Severity `json:"severity"`
	Code     string   `json:"code"`
	Path     string   `json:"path"` // key of the configuration, such as models[1].floor
	Value    string   `json:"value,omitempty"`
	Text     string   `json:"text"`
	Advice   string   `json:"advice,omitempty"`
}

// String is the finding on one line, without its severity.
func (f Finding) String() string {
	s := f.Path
	if f.Value != "" {
		s += " " + f.Value
	}
	s += ": " + f.Text
	if f.Advice != "" {
		s += "; " + f.Advice
	}
	return s
}

// Limits beyond which there is a finding.
const (
	stuckLimit  = 0.05 // of a worker's idle memory that no unit can lend
	wasteLimit  = 0.02 // of a unit that padding loses
	coarseUnits = 8    // lendable units below which lending goes in large steps
	blownUp     = 16   // unit over the largest block in it
	surplus     = 0.05 // of what workers can lend and the LSC cannot stream
)

// Count is the number of findings of a severity.
func (p *Plan) Count(s Severity) int {
	n := 0
	for _, f := range p.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

func (p *Plan) find(s Severity, code, path, value, text, advice string) {
	p.Findings = append(p.Findings, Finding{s, code, path, value, text, advice})
}

// findings looks for everything, worst first and otherwise in the order of the
// configuration.
func (p *Plan) findings(sys *planner.System, opt Options) {
	for i := range sys.Config.Devices {
		p.findDevice(sys.Config, i)
	}
	p.findLinks(sys.Config)
	for i, m := range sys.Models {
		path := fmt.Sprintf("models[%d]", i)
		p.findModel(m, path)
		switch m.Config.Role {
		case configs.RoleMaster:
			p.findMaster(sys, m, path)
		case configs.RoleWorker:
			p.findWorker(sys, m, path, opt)
		}
	}
	for _, s := range p.Streams {
		p.findStream(sys, s)
	}
	order := []Severity{Error, Warning, Note}
	slices.SortStableFunc(p.Findings, func(a, b Finding) int {
		return slices.Index(order, a.Severity) - slices.Index(order, b.Severity)
	})
}

func (p *Plan) findDevice(cfg *configs.Config, i int) {
	d := p.device(cfg.Devices[i].Name)
	path := fmt.Sprintf("devices[%d]", i)
	if d.GPU == "" && !strings.EqualFold(d.Kind, "cpu") {
		p.find(Note, codeKind, path+".kind", d.Kind, "not a GPU that is known: its memory and speed are not considered unless given", "see kvlend plan --list")
	}
	if d.Left >= 0 {
		return
	}
	advice := fmt.Sprintf("arenas of at most %s together", human(d.Room))
	if d.Room <= 0 {
		advice = "fewer or smaller models on it, or a larger GPU"
	}
	p.find(Error, codeFit, path+".memory", human(d.Memory),
		fmt.Sprintf("%s does not fit: weights %s, activations %s, tails %s, reserve %s and arenas %s are %s too much",
			d.Name, human(d.Weights), human(d.Activations), human(d.Tails), human(d.Reserve), human(d.Arenas), human(-d.Left)), advice)
}

func (p *Plan) findLinks(cfg *configs.Config) {
	for i, l := range cfg.Links {
		for _, name := range []string{l.From, l.To} {
			k := slices.IndexFunc(cfg.Devices, func(d configs.Device) bool { return d.Name == name })
			if g, ok := gpuOf(cfg.Devices[k]); ok && float64(l.Bandwidth) > math.Max(g.NVLink, g.PCIeBandwidth)*1.001 {
				p.find(Warning, codeLinkSpeed, fmt.Sprintf("links[%d].bandwidth", i), l.Bandwidth.String(),
					fmt.Sprintf("more than %s (%s) has in each direction, %s", name, g.Name, speed(math.Max(g.NVLink, g.PCIeBandwidth))), "")
				break
			}
		}
	}
}

func (p *Plan) findModel(m *planner.Model, path string) {
	pm := p.Model(m.Config.Name)
	if strings.Contains(pm.shape.Note, "SWA") || strings.Contains(pm.shape.Note, "MXFP4") {
		p.find(Note, codeShape, path+".source", m.Config.Source,
			"sliding windows and weights below 16 bits are not considered, it needs less than this says: "+pm.shape.Note, "")
	}
	if pm.Trained > 0 && pm.Role != configs.RoleMaster && pm.MaxTokens < pm.Trained {
		p.find(Note, codeOverTrained, path+".arena", m.Config.Arena.String(),
			fmt.Sprintf("holds %d tokens, less than the %d that %s was trained for", pm.MaxTokens, pm.Trained, pm.Name), "")
	}
}

func (p *Plan) findMaster(sys *planner.System, m *planner.Model, path string) {
	pm := p.Model(m.Config.Name)
	r := pm.Master
	if len(m.Lenders) == 0 {
		p.find(Warning, codeNoLender, path+".role", m.Config.Role, pm.Name+" has no worker to borrow from", "a model with role: worker")
	} else if r.KWorkers == 0 {
		p.find(Error, codeLending, path+".borrow_from", "", "no worker can lend "+pm.Name+" a single block", "see the workers' findings")
	}
	for _, l := range m.Lenders {
		if l.Worker.Config.Device == m.Config.Device {
			p.find(Warning, codeDevice, path+".device", m.Config.Device, fmt.Sprintf("%s borrows from %s on its own device, where a larger arena would do", pm.Name, l.Worker.Config.Name), "")
		}
	}
	if over := r.KWorkers - r.NLSC; r.DiskBlock == 0 && float64(over) > surplus*float64(r.KWorkers) {
		advice := fmt.Sprintf("an arena of %s streams all of it", human(int64(r.Buffers*r.KWorkers)*pm.LayerBlock))
		if r.Buffers == 2 {
			advice += ", and so does half of that with lsc.buffers: 1"
		}
		p.find(Warning, codeLSC, path+".arena", m.Config.Arena.String(),
			fmt.Sprintf("workers can lend %d blocks, but its layer stream cache streams only %d: %s of idle memory stay unused",
				r.KWorkers, r.NLSC, human(int64(over)*pm.FullBlock)), advice)
	}
	if pm.Trained > 0 && r.Alone >= pm.Trained {
		p.find(Note, codeTrained, path+".arena", m.Config.Arena.String(),
			fmt.Sprintf("%s was trained for %d tokens and holds %d without lending: lending serves more and longer-kept conversations, not longer ones", pm.Name, pm.Trained, r.Alone), "")
	} else if pm.Trained > 0 && pm.MaxTokens > pm.Trained {
		p.find(Note, codeTrained, path+".source", m.Config.Source,
			fmt.Sprintf("trained for %d tokens: of the %d that fit, one request can use no more than that", pm.Trained, pm.MaxTokens), "")
	}
}

func (p *Plan) findWorker(sys *planner.System, m *planner.Model, path string, opt Options) {
	pm := p.Model(m.Config.Name)
	l := pm.Lender
	masters := sys.Config.Masters(m.Config)
	if len(masters) == 0 {
		p.find(Warning, codeNoBorrower, path+".role", m.Config.Role, "no master borrows from "+pm.Name, "a model with role: master, or role: local")
		return
	}
	switch {
	case l.Lendable == 0 && l.Unit > l.Idle && l.Unit <= pm.Arena:
		p.find(Warning, codeFloor, path+".floor", m.Config.Floor.String(),
			fmt.Sprintf("leaves %s of the arena idle, less than one unit of %s: %s never lends", human(l.Idle), human(l.Unit), pm.Name),
			fmt.Sprintf("a floor of at most %s, or a smaller unit", configs.Bytes(pm.Arena-l.Unit)))
	case l.Lendable == 0:
		p.find(Warning, codeUnit, path+".arena", m.Config.Arena.String(),
			fmt.Sprintf("a unit of %s is larger than all of it: %s never lends", human(l.Unit), pm.Name), "another unit policy or block size, or a larger arena")
	case l.Lendable < coarseUnits:
		p.find(Note, codeCoarse, path+".arena", m.Config.Arena.String(),
			fmt.Sprintf("only %d units of %s can be lent: each step moves %.0f %% of the idle memory", l.Lendable, human(l.Unit), 100*float64(l.Unit)/float64(l.Idle)), "")
	}
	if l.Lendable > 0 && float64(l.Stuck) > stuckLimit*float64(l.Idle) {
		p.find(Warning, codeStuck, path+".arena", m.Config.Arena.String(),
			fmt.Sprintf("%s of %s idle are less than a unit of %s and cannot be lent", human(l.Stuck), human(l.Idle), human(l.Unit)),
			fmt.Sprintf("%s more, or a smaller unit", human(l.Unit-l.Stuck)))
	}
	if l.Waste > wasteLimit {
		p.find(Note, codeWaste, "lending.unit.max_waste", configs.Percent(100*p.MaxWaste).String(),
			fmt.Sprintf("padding loses %.1f %% of each unit of %s", 100*l.Waste, pm.Name), "")
	}
	p.findBlocks(sys, m, path, masters, opt)
	p.findShares(m, path, masters)
}

// findBlocks looks for units that are larger than they need to be: because of
// a block size that is no power of two, or because the geometries of several
// models do not go together.
func (p *Plan) findBlocks(sys *planner.System, m *planner.Model, path string, masters []*configs.Model, opt Options) {
	l := p.Model(m.Config.Name).Lender
	unitWith := func(tokens func(int) int) int64 {
		cfg := clone(sys.Config)
		for i := range cfg.Models {
			cfg.Models[i].BlockTokens = tokens(cfg.Models[i].BlockTokens)
		}
		w, _ := cfg.Model(m.Config.Name)
		spec, err := cfg.UnitSpec(w, opt.Find)
		if err != nil {
			return math.MaxInt64
		}
		return spec.Bytes
	}
	odd := func(c *configs.Model) bool { return bits.OnesCount(uint(c.BlockTokens)) > 1 }
	if i := slices.IndexFunc(append([]*configs.Model{m.Config}, masters...), odd); i >= 0 {
		if even := unitWith(powerOfTwo); even <= l.Unit/2 {
			p.find(Warning, codeBlock, path+".block_tokens", fmt.Sprint(m.Config.BlockTokens),
				fmt.Sprintf("block sizes that are no powers of two make a unit of %s", human(l.Unit)),
				fmt.Sprintf("with powers of two it would be %s", human(even)))
			return
		}
	}
	largest := p.Model(m.Config.Name).FullBlock
	elem := []int{p.Model(m.Config.Name).ElemBytes}
	for _, c := range masters {
		largest = max(largest, p.Model(c.Name).FullBlock)
		elem = append(elem, p.Model(c.Name).ElemBytes)
	}
	if l.Unit >= blownUp*largest && sys.Config.Lending.Unit.Policy != elastic.PolicyLayerLCM {
		p.find(Warning, codeLCM, "lending.unit.policy", p.Policy,
			fmt.Sprintf("a unit of %s is %d of the largest blocks in it (%s): the blocks of %s and its masters have few factors in common",
				human(l.Unit), l.Unit/largest, human(largest), m.Config.Name), "layer-lcm, or padded")
	}
	if slices.Min(elem) != slices.Max(elem) {
		p.find(Note, codeMixedElement, path+".kv_dtype", m.Config.KVDtype, "its masters use another element type: units are counted in bytes, the LCM in elements", "")
	}
}

// powerOfTwo is the largest power of two that is not larger.
func powerOfTwo(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

func (p *Plan) findShares(m *planner.Model, path string, masters []*configs.Model) {
	if len(masters) < 2 {
		return
	}
	weights, quotas, names := map[int]bool{}, 0, []string{}
	for _, c := range masters {
		weight, quota := 1, m.Lendable
		for _, s := range m.Config.Shares {
			if s.Master == c.Name {
				weight, quota = s.Weight, m.Config.Quota(c.Name, m.Lendable)
			}
		}
		weights[weight] = true
		quotas += quota
		names = append(names, c.Name)
	}
	if quotas < m.Lendable {
		p.find(Warning, codeShares, path+".shares", "", fmt.Sprintf("the quotas of %s add up to %d of %d lendable units: the rest is never lent",
			strings.Join(names, ", "), quotas, m.Lendable), "larger quotas")
	}
	if quotas > m.Lendable && m.Lendable > 0 {
		p.find(Note, codeShared, path+".shares", "", fmt.Sprintf("%s may borrow the same units: K_i and the longest contexts count them for each, together they get %d",
			strings.Join(names, ", "), m.Lendable), "")
	}
	if len(weights) > 1 {
		p.find(Note, codeShares, path+".shares", "", "masters have unequal weights: when all want memory, they get it in that proportion", "")
	}
}

func (p *Plan) findStream(sys *planner.System, s Stream) {
	m, i := sys.Config.Model(s.Master)
	path := fmt.Sprintf("models[%d]", i)
	for _, l := range s.Lenders {
		if l.From == fromNVLink || l.From == fromPCIe {
			w, _ := sys.Config.Model(l.Worker)
			p.find(Note, codeLinkAssumed, "links", "", fmt.Sprintf("none between %s and %s: %s assumed, the %s", w.Device, m.Device, speed(l.Bandwidth), l.From), "describe it")
		}
	}
	if s.History == 0 {
		return
	}
	if s.Unknown != "" {
		p.find(Note, codeLinkUnknown, path+".device", m.Device, s.Unknown+": whether loads hide behind computation is not estimated", "")
		return
	}
	if wait := s.Load - s.Decode; wait > 0 {
		layers := float64(p.Model(s.Master).Layers)
		p.find(Note, codeDecode, path, "", fmt.Sprintf("a step of one new token behind %d streamed ones takes about %s longer than without them: decoding waits for the link", s.History, seconds(wait*layers)), "")
	}
	if s.HideTokens <= s.Step {
		return
	}
	hide := fmt.Sprintf("%d new tokens would hide them", s.HideTokens)
	if s.HideTokens > maxHide {
		hide = "no number of new tokens hides them"
	}
	advice := ""
	if b := p.Model(s.Master).Master.Buffers; b == 1 && s.other <= s.Step {
		advice = "with lsc.buffers: 2 attention hides them too"
	} else if s.HideTokens <= 1<<16 {
		advice = fmt.Sprintf("max_batch_tokens: %d, or a faster link", s.HideTokens)
	}
	p.find(Warning, codeLink, path+".max_batch_tokens", fmt.Sprint(s.Step),
		fmt.Sprintf("a layer of %d streamed tokens takes %s to load, the %s of a full step %s: steps wait for the link; %s", s.History, seconds(s.Load), s.HiddenBy, seconds(s.Compute), hide), advice)
}
