package plan

import (
	"cmp"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strings"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/elastic"
)

// RecommendSchema names the form of a Recommendation as JSON.
const RecommendSchema = "kvlend.recommend/1"

// Recommendation is a configuration that does better.
type Recommendation struct {
	Schema  string   `json:"schema"`
	Changes []Change `json:"changes"` // none: no change is needed
	// Config is the configuration's text with the changes, each with its reason
	// as a comment. What is not changed stands as it stood.
	Config string `json:"config"`
	Before *Plan  `json:"before"`
	After  *Plan  `json:"after"`
}

// Gains that make a change worth while.
const (
	leastGain  = 0.02 // of the masters' contexts together
	mostLoss   = 0.10 // of them, for a warning less
	growLimit  = 0.05 // of a device's memory that is left
	mostBatch  = 16384
	batchStep  = 256
	mostRounds = 32
)

// proposal is changes that belong together.
type proposal struct {
	changes []Change
	apply   func(cfg *configs.Config)
}

// rule proposes changes, in the order in which they are tried.
type rule func(cfg *configs.Config, p *Plan) []proposal

// rules in their order: what cannot work first, then what costs nothing, then
// what trades one thing for another.
func rules() []rule {
	return []rule{fitArenas, lowerFloors, unitPolicies, evenBlocks, growArenas, lscBuffers, freeStuck, largerBatches}
}

// Recommend looks for changes of the configuration whose text is given, one at
// a time, and keeps those that are better: fewer errors; or fewer warnings at
// little loss of context; or longer contexts without more warnings.
func Recommend(text []byte, name string, opt Options) (*Recommendation, error) {
	opt = opt.filled()
	cfg, err := configs.Parse(text, name)
	if err != nil {
		return nil, err
	}
	before, err := New(cfg, opt)
	if err != nil {
		return nil, err
	}
	r := &Recommendation{Schema: RecommendSchema, Changes: []Change{}, Config: string(text), Before: before, After: before}
	for range mostRounds {
		next, changes, after := improve(cfg, r.After, opt)
		if next == nil {
			break
		}
		cfg, r.After = next, after
		r.merge(changes)
	}
	if len(r.Changes) == 0 {
		return r, nil
	}
	out, err := rewrite(text, name, r.Changes, cfg)
	if err != nil {
		return nil, err
	}
	r.Config = string(out)
	return r, nil
}

// improve applies the best proposal of the first rule that has a better one.
func improve(cfg *configs.Config, p *Plan, opt Options) (*configs.Config, []Change, *Plan) {
	for _, rule := range rules() {
		var bestCfg *configs.Config
		var bestChanges []Change
		best := p
		for _, prop := range rule(cfg, p) {
			next := clone(cfg)
			prop.apply(next)
			if next.Check(opt.Find) != nil {
				continue
			}
			after, err := New(next, opt)
			if err != nil || !better(p, after) || bestCfg != nil && !better(best, after) {
				continue
			}
			bestCfg, best, bestChanges = next, after, prop.changes
		}
		if bestCfg != nil {
			for i := range bestChanges {
				bestChanges[i].Reason += effect(p, best)
			}
			return bestCfg, bestChanges, best
		}
	}
	return nil, nil, nil
}

// better says whether b is worth changing a into.
func better(a, b *Plan) bool {
	if d := b.Count(Error) - a.Count(Error); d != 0 {
		return d < 0
	}
	was, is := float64(a.total()), float64(b.total())
	switch d := b.Count(Warning) - a.Count(Warning); {
	case d > 0:
		return false
	case d < 0:
		return is >= was*(1-mostLoss)
	}
	return is > was*(1+leastGain)
}

// total is the sum of the masters' longest contexts.
func (p *Plan) total() int {
	n := 0
	for _, m := range p.Models {
		if m.Master != nil {
			n += m.MaxTokens
		}
	}
	return n
}

// effect says what a change does to the masters.
func effect(before, after *Plan) string {
	var b strings.Builder
	for _, m := range after.Models {
		if was := before.Model(m.Name); m.Master != nil && was.MaxTokens != m.MaxTokens {
			fmt.Fprintf(&b, "; %s: %d -> %d tokens", m.Name, was.MaxTokens, m.MaxTokens)
		}
	}
	for _, s := range []Severity{Error, Warning} {
		if d := before.Count(s) - after.Count(s); d > 0 {
			fmt.Fprintf(&b, "; %ss: %d less", s, d)
		}
	}
	return b.String()
}

// merge adds changes; one of a path that was changed before extends it.
func (r *Recommendation) merge(changes []Change) {
	for _, c := range changes {
		i := slices.IndexFunc(r.Changes, func(o Change) bool { return o.Path == c.Path })
		if i < 0 {
			r.Changes = append(r.Changes, c)
			continue
		}
		old := &r.Changes[i]
		old.New, old.Reason = c.New, old.Reason+"; then "+c.Reason
		if old.New == old.Old {
			r.Changes = slices.Delete(r.Changes, i, i+1)
		}
	}
}

// WriteText writes the changed configuration; why is a comment at its head and
// at every change. Without changes it is the configuration as it was.
func (r *Recommendation) WriteText(w io.Writer) error {
	var b strings.Builder
	if len(r.Changes) == 0 {
		fmt.Fprintf(&b, "# plan: no change is needed. %s\n", counts(r.Before))
	} else {
		fmt.Fprintf(&b, "# plan: changed settings: %d. Before: %s After: %s\n", len(r.Changes), counts(r.Before), counts(r.After))
	}
	for _, m := range r.After.Models {
		if m.Master != nil {
			fmt.Fprintf(&b, "# %s: longest context %d tokens before, %d after, %d without lending.\n",
				m.Name, r.Before.Model(m.Name).MaxTokens, m.MaxTokens, m.Master.Alone)
		}
	}
	for _, f := range r.After.Findings {
		if f.Severity != Note {
			fmt.Fprintf(&b, "# remaining %s: %s [%s]\n", f.Severity, f, f.Code)
		}
	}
	b.WriteString(r.Config)
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes the recommendation as indented JSON.
func (r *Recommendation) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

func modelPath(i int, key string) string { return fmt.Sprintf("models[%d].%s", i, key) }

func setArena(i int, old, size configs.Bytes, reason string) proposal {
	return proposal{
		changes: []Change{{modelPath(i, "arena"), old.String(), size.String(), reason}},
		apply:   func(cfg *configs.Config) { cfg.Models[i].Arena = size },
	}
}

func setFloor(i int, old, size configs.Bytes, reason string) proposal {
	return proposal{
		changes: []Change{{modelPath(i, "floor"), old.String(), size.String(), reason}},
		apply:   func(cfg *configs.Config) { cfg.Models[i].Floor = size },
	}
}

// join makes one proposal of several.
func join(all ...proposal) proposal {
	var out proposal
	for _, p := range all {
		out.changes = append(out.changes, p.changes...)
	}
	out.apply = func(cfg *configs.Config) {
		for _, p := range all {
			p.apply(cfg)
		}
	}
	return out
}

// roundDown makes a size that people would write, a little smaller.
func roundDown(n int64) configs.Bytes {
	step := int64(1) << max(0, bits.Len64(uint64(max(n, 1)))-8) // 128 to 255 steps
	return configs.Bytes(n / step * step)
}

// fitArenas shrinks the arenas on a device that is too small for them, all by
// the same factor.
func fitArenas(cfg *configs.Config, p *Plan) []proposal {
	var out []proposal
	for _, d := range p.Devices {
		if d.Left >= 0 || d.Room <= 0 {
			continue
		}
		var parts []proposal
		reason := fmt.Sprintf("%s has room for arenas of %s", d.Name, human(d.Room))
		for i := range cfg.Models {
			m := &cfg.Models[i]
			if m.Device != d.Name {
				continue
			}
			size := roundDown(int64(float64(m.Arena) * float64(d.Room) / float64(d.Arenas)))
			parts = append(parts, setArena(i, m.Arena, size, reason))
			if m.Role == configs.RoleWorker && m.Floor > size/2 {
				parts = append(parts, setFloor(i, m.Floor, size/2, reason+", and half of the arena stays home"))
			}
		}
		out = append(out, join(parts...))
	}
	return out
}

// lowerFloors makes room for a worker to lend: its floor becomes one request of
// the context it was trained for, or half of its arena if that is less.
func lowerFloors(cfg *configs.Config, p *Plan) []proposal {
	var out []proposal
	for i, m := range p.Models {
		if m.Lender == nil || m.Lender.Lendable > 0 {
			continue
		}
		floor := m.Arena / 2
		if one := int64(m.geometry.Blocks(m.Trained)) * m.FullBlock; m.Trained > 0 {
			floor = min(floor, one)
		}
		if size := configs.Bytes(floor); size < cfg.Models[i].Floor {
			out = append(out, setFloor(i, cfg.Models[i].Floor, size, "the floor left nothing to lend; this keeps one request of trained length, or half of the arena"))
		}
	}
	return out
}

func unitPolicies(cfg *configs.Config, _ *Plan) []proposal {
	var out []proposal
	for _, policy := range elastic.Policies() {
		if was := cfg.Lending.Unit.Policy; policy != was {
			out = append(out, proposal{
				changes: []Change{{"lending.unit.policy", string(was), string(policy), "units that suit these models better"}},
				apply:   func(cfg *configs.Config) { cfg.Lending.Unit.Policy = policy },
			})
		}
	}
	return out
}

// evenBlocks makes block sizes powers of two: each its own, or all 16.
func evenBlocks(cfg *configs.Config, _ *Plan) []proposal {
	var out []proposal
	for _, size := range []func(int) int{powerOfTwo, func(int) int { return 16 }} {
		var parts []proposal
		for i := range cfg.Models {
			was := cfg.Models[i].BlockTokens
			if is := size(was); is != was {
				parts = append(parts, proposal{
					changes: []Change{{modelPath(i, "block_tokens"), fmt.Sprint(was), fmt.Sprint(is), "blocks of all models fit into smaller units"}},
					apply:   func(cfg *configs.Config) { cfg.Models[i].BlockTokens = is },
				})
			}
		}
		if len(parts) > 0 {
			out = append(out, join(parts...))
		}
	}
	return out
}

// growArenas gives what is left on a device to a master on it, or else to its
// largest arena.
func growArenas(cfg *configs.Config, p *Plan) []proposal {
	var out []proposal
	for _, d := range p.Devices {
		if d.Memory == 0 || float64(d.Left) < growLimit*float64(d.Memory) {
			continue
		}
		best := -1
		for i, m := range p.Models {
			if m.Device == d.Name && (best < 0 || cmp.Compare(weight(m), weight(p.Models[best])) > 0) {
				best = i
			}
		}
		if best >= 0 {
			was := cfg.Models[best].Arena
			out = append(out, setArena(best, was, roundDown(int64(was)+d.Left), fmt.Sprintf("%s of %s are left on %s", human(d.Left), human(d.Memory), d.Name)))
		}
	}
	if len(out) > 1 {
		out = append([]proposal{join(out...)}, out...)
	}
	return out
}

// weight orders models by who should get memory.
func weight(m Model) int64 {
	if m.Master != nil {
		return m.Arena + 1<<62
	}
	return m.Arena
}

func lscBuffers(cfg *configs.Config, p *Plan) []proposal {
	var out []proposal
	for i, m := range p.Models {
		if m.Master == nil {
			continue
		}
		is, reason := 3-m.Master.Buffers, "with two buffers loads hide behind attention as well"
		if is == 1 {
			reason = "with one buffer the same arena streams twice as many blocks"
		}
		out = append(out, proposal{
			changes: []Change{{modelPath(i, "lsc.buffers"), fmt.Sprint(m.Master.Buffers), fmt.Sprint(is), reason}},
			apply:   func(cfg *configs.Config) { cfg.Models[i].LSC.Buffers = is },
		})
	}
	return out
}

// freeStuck completes a worker's last unit, with a larger arena or a lower floor.
func freeStuck(cfg *configs.Config, p *Plan) []proposal {
	var out []proposal
	for i, m := range p.Models {
		if m.Lender == nil || m.Lender.Stuck == 0 {
			continue
		}
		lack := configs.Bytes(m.Lender.Unit - m.Lender.Stuck)
		reason := fmt.Sprintf("completes a unit of %s, of which %s lay idle", human(m.Lender.Unit), human(m.Lender.Stuck))
		if d := p.device(m.Device); d.Memory == 0 || d.Left >= int64(lack) {
			out = append(out, setArena(i, cfg.Models[i].Arena, cfg.Models[i].Arena+lack, reason))
		}
		if floor := cfg.Models[i].Floor; floor >= lack {
			out = append(out, setFloor(i, floor, floor-lack, reason))
		}
	}
	return out
}

// largerBatches lets steps be long enough to hide loads.
func largerBatches(cfg *configs.Config, p *Plan) []proposal {
	var out []proposal
	for _, s := range p.Streams {
		m, i := cfg.Model(s.Master)
		if need := (s.HideTokens + batchStep - 1) / batchStep * batchStep; s.HideTokens > m.MaxBatchTokens && need <= mostBatch {
			out = append(out, proposal{
				changes: []Change{{modelPath(i, "max_batch_tokens"), fmt.Sprint(m.MaxBatchTokens), fmt.Sprint(need), "steps of so many tokens hide their loads"}},
				apply:   func(cfg *configs.Config) { cfg.Models[i].MaxBatchTokens = need },
			})
		}
	}
	return out
}
