package dialogue

import (
	"fmt"
	"slices"
)

// Probe is a question that may be asked at the end of a dialogue, instead of
// any other. A dialogue has many: each is asked with the same dialogue before
// it, so that what a server keeps of the dialogue serves them all.
type Probe struct {
	Kind      Kind   `json:"kind"`
	Question  string `json:"question"` // the user's words
	Entity    string `json:"entity"`   // "" is the user
	Attribute string `json:"attribute,omitempty"`
	// Values are what an answer must contain, all of them, to be right. There
	// are none of the kind Unknown.
	Values []string `json:"values"`
	Answer string   `json:"answer"` // in the assistant's own words
	// Old are values that were told and corrected.
	Old []string `json:"old,omitempty"`
	// Distance is the number of tokens from the end of the exchange that last
	// told what the answer needs (of several facts, the one longest ago) to the
	// question. It is 0 where there is no such fact.
	Distance int `json:"distance"`
	// Position is where that exchange ends: 0 the dialogue's begin, 1 its end.
	Position float64 `json:"position"`
	Facts    int     `json:"facts"` // told in the dialogue, corrections not counted
}

// nothing is how the assistant says that no fact was told.
const nothing = "nothing"

// leastUnknown is how many questions about what was never told there are at
// least, where there is room.
const leastUnknown = 4

// Probes makes dialogue number n of a seed, one without questions
// (Options.Quiet is set), and the questions that can be asked at its end: one
// for each fact, some for what was never told, and how many and which facts
// were told about each entity and about one that was never mentioned, in any
// order. With any of them and its answer the dialogue has at most
// Options.Tokens tokens. It is deterministic and safe for concurrent use if
// Options.Count is.
func Probes(seed, n uint64, o Options) (*Dialogue, []Probe, error) {
	o.Quiet = true
	if err := o.Validate(); err != nil {
		return nil, nil, err
	}
	if o.Count == nil {
		o.Count = Estimate
	}
	b := newBuilder(newRandom(seed, n), o)
	if err := b.run(); err != nil {
		return nil, nil, fmt.Errorf("dialogue %d of seed %d: %w", n, seed, err)
	}
	var out []Probe
	for _, f := range b.facts {
		out = b.probe(out, func() *exchange { return b.askFact(f) })
	}
	for range max(leastUnknown, len(b.facts)) {
		out = b.probe(out, b.askUnknown)
	}
	for _, e := range append(slices.Clone(b.entities), b.newEntity()) {
		out = b.probe(out, func() *exchange { return b.askCount(e) })
		out = b.probe(out, func() *exchange { return b.askAbout(e) })
	}
	for i := range out {
		j := b.between(i, len(out)-1)
		out[i], out[j] = out[j], out[i]
	}
	return &b.d, out, nil
}

// planQuiet spreads facts and corrections.
func (b *builder) planQuiet(facts, end int) {
	b.planTold(facts, 0, end)
	if b.opt.Kind == Recall {
		return
	}
	first := end
	for _, ev := range b.events {
		first = min(first, ev.at)
	}
	if b.opt.Kind == Corrected {
		b.plan(b.between(first, end), factTokens, (*builder).correct)
	}
	for range facts {
		if b.chance(25) {
			b.plan(b.between(first, end), 0, (*builder).correct)
		}
	}
}

// tokens is what an exchange takes.
func (b *builder) tokens(ex *exchange) int {
	return b.opt.Count(Message{"user", ex.user}.Text()) + b.opt.Count(Message{"assistant", ex.reply}.Text())
}

// probe appends the probe of a question, if there is room for it and it is not
// there yet.
func (b *builder) probe(list []Probe, ask func() *exchange) []Probe {
	for range tries {
		ex := ask()
		if ex == nil || b.d.Tokens+b.tokens(ex) > b.opt.Tokens {
			continue
		}
		p := b.probeOf(ex)
		same := func(q Probe) bool {
			return q.Kind == p.Kind && q.Entity == p.Entity && q.Attribute == p.Attribute
		}
		if slices.ContainsFunc(list, same) {
			continue
		}
		return append(list, p)
	}
	return list
}

func (b *builder) probeOf(ex *exchange) Probe {
	q := ex.question
	p := Probe{
		Kind: q.Kind, Question: ex.user, Entity: q.Entity, Attribute: q.Attribute, Answer: ex.reply,
		Distance: q.Distance, Facts: q.Facts, Values: []string{},
	}
	told := false
	for _, f := range b.facts {
		if f.entity.name != q.Entity {
			continue
		}
		told = told || q.Kind != Unknown
		if q.Kind == About {
			p.Values = append(p.Values, f.value)
		}
	}
	switch {
	case q.Kind == About && !told:
		p.Values = append(p.Values, nothing)
	case q.Kind != About && q.Kind != Unknown:
		p.Values = append(p.Values, q.Value)
	}
	if told {
		p.Position = float64(b.d.Tokens-q.Distance) / float64(b.d.Tokens)
	}
	for _, f := range b.d.Facts {
		if q.Kind == Corrected && f.Entity == q.Entity && f.Attribute == q.Attribute && f.Value != q.Value {
			p.Old = append(p.Old, f.Value)
		}
	}
	return p
}
