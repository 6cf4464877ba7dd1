package plan

import (
	"fmt"
	"slices"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/planner"
)

// clone copies what planning changes: models, devices and the lending section.
func clone(cfg *configs.Config) *configs.Config {
	c := *cfg
	c.Models = slices.Clone(cfg.Models)
	c.Devices = slices.Clone(cfg.Devices)
	return &c
}

// policies fills in the pairs and the masters' contexts under every unit
// policy. A policy that cannot work says why.
func (p *Plan) policies(sys *planner.System, opt Options) error {
	for _, m := range sys.Models {
		for _, l := range m.Lenders {
			pair, err := newPair(m, l.Worker)
			if err != nil {
				return err
			}
			p.Pairs = append(p.Pairs, pair)
		}
	}
	for _, policy := range elastic.Policies() {
		cfg := clone(sys.Config)
		cfg.Lending.Unit.Policy = policy
		configured := policy == sys.Config.Lending.Unit.Policy
		other, err := planner.Resolve(cfg, opt.Find)
		if err == nil {
			err = tooManyUnits(other)
		}
		if err != nil {
			p.refused(string(policy), configured, err)
			continue
		}
		p.underPolicy(other, string(policy), configured)
	}
	return nil
}

// tooManyUnits refuses arenas of more units than a unit table holds.
func tooManyUnits(sys *planner.System) error {
	for _, m := range sys.Models {
		if m.Unit.Bytes > 0 && m.Arena/m.Unit.Bytes > elastic.MaxUnits {
			return fmt.Errorf("%s would have %d units of %s, at most %d are possible",
				m.Config.Name, m.Arena/m.Unit.Bytes, configs.Bytes(m.Unit.Bytes), elastic.MaxUnits)
		}
	}
	return nil
}

// newPair computes Eq. 6 to 9.
func newPair(m, w *planner.Model) (Pair, error) {
	be, bi := m.Geometry.BlockElems(), w.Geometry.BlockElems()
	lcm, err := elastic.LCM(be, bi)
	if err != nil {
		return Pair{}, fmt.Errorf("blocks of %s and %s: %w", m.Config.Name, w.Config.Name, err)
	}
	return Pair{
		Master: m.Config.Name, Worker: w.Config.Name, BEMaster: be, BEWorker: bi,
		LCM: lcm, MEUm: lcm / be, MEUi: lcm / bi, Policies: []PairPolicy{},
	}, nil
}

func (p *Plan) refused(policy string, configured bool, err error) {
	for i := range p.Pairs {
		p.Pairs[i].Policies = append(p.Pairs[i].Policies, PairPolicy{Policy: policy, Configured: configured, Error: err.Error()})
	}
	for _, m := range p.Models {
		if m.Master != nil {
			m.Master.ByPolicy = append(m.Master.ByPolicy, PolicyContext{Policy: policy, Configured: configured, Error: err.Error()})
		}
	}
}

func (p *Plan) underPolicy(sys *planner.System, policy string, configured bool) {
	for _, m := range sys.Models {
		if m.Config.Role != configs.RoleMaster {
			continue
		}
		c := m.Capacity
		r := p.Model(m.Config.Name).Master
		r.ByPolicy = append(r.ByPolicy, PolicyContext{
			Policy: policy, Configured: configured, KWorkers: c.KWorkers, NLSC: c.NLSC, NRC: c.NRC,
			MaxTokens: c.Tokens, Ratio: ratio(c.Tokens, c.AloneTokens),
		})
		for _, l := range m.Lenders {
			i := slices.IndexFunc(p.Pairs, func(x Pair) bool { return x.Master == m.Config.Name && x.Worker == l.Worker.Config.Name })
			p.Pairs[i].Policies = append(p.Pairs[i].Policies, pairPolicy(m, l, policy, configured))
		}
	}
}

func pairPolicy(m *planner.Model, l planner.Lender, policy string, configured bool) PairPolicy {
	w := l.Worker
	idle := w.Arena - int64(w.Config.Floor)
	out := PairPolicy{
		Policy: policy, Configured: configured, Unit: w.Unit.Bytes,
		MasterPer: w.Unit.PerUnit[m.Config.Name], WorkerPer: w.Unit.PerUnit[w.Config.Name],
		LayerBlocks: w.Unit.Policy == elastic.PolicyLayerLCM,
		Units:       w.Units, Lendable: l.Units, K: l.Blocks, Stuck: idle - int64(w.Lendable)*w.Unit.Bytes,
		Table: elastic.UnitTableBytes(w.Units),
	}
	for name, g := range map[string]elastic.Geometry{m.Config.Name: m.Geometry, w.Config.Name: w.Geometry} {
		piece := g.FullBlockBytes()
		if out.LayerBlocks {
			piece = g.LayerBlockBytes()
		}
		used := int64(w.Unit.PerUnit[name]) * piece
		out.Waste = max(out.Waste, float64(w.Unit.Bytes-used)/float64(w.Unit.Bytes))
	}
	return out
}
