package api

import (
	"fmt"
	"time"
)

// plan is a request as one model would serve it.
type plan struct {
	m       *Model
	set     *settings
	prompts []prompt
	most    []int // tokens of an answer, by prompt
}

// newPlan checks that the model can hold the request. field names the prompts
// in errors.
func (g *Gateway) newPlan(m *Model, set *settings, field string, prompts []prompt) (*plan, *apiError) {
	if len(prompts)*set.n > g.opt.MaxChoices {
		return nil, outOfRange("n", fmt.Sprintf("%d for %d prompts", set.n, len(prompts)),
			fmt.Sprintf("at most %d choices in all", g.opt.MaxChoices))
	}
	if m.MaxTokens() <= 0 {
		return nil, unavailable(m.Name, "is not ready yet")
	}
	p := &plan{m: m, set: set, prompts: prompts}
	for _, pr := range prompts {
		most, e := m.tokenLimit(field, len(pr.ids), set)
		if e != nil {
			return nil, e
		}
		p.most = append(p.most, most)
	}
	return p, nil
}

// newJob prepares n choices for each of the plan's prompts.
func (g *Gateway) newJob(p *plan, id string, own *tenant, salt []byte) *job {
	j := &job{g: g, m: p.m, set: p.set, id: id, tenant: own, salt: salt, started: time.Now()}
	for i, pr := range p.prompts {
		for range p.set.n {
			j.choices = append(j.choices, newChoice(j, len(j.choices), pr, p.most[i]))
		}
	}
	j.box = newMailbox(g.opt.StreamBuffer * len(j.choices))
	j.pending, j.open = len(j.choices), len(j.choices)
	return j
}
