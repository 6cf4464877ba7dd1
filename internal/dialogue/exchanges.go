package dialogue

import (
	"slices"
	"strconv"
	"strings"
)

// tell states n new facts.
func (b *builder) tell(n int) *exchange {
	var news []*fact
	for len(news) < n {
		f := b.newFact()
		same := func(g *fact) bool { return g.entity.name == f.entity.name }
		if !slices.ContainsFunc(news, same) {
			news = append(news, f)
		}
	}
	return b.telling(news)
}

// telling states facts, sometimes after a sentence of small talk.
func (b *builder) telling(news []*fact) *exchange {
	var user, states []string
	if b.chance(12) {
		s, _ := smallTalk(b.random, 1, b.anyName)
		user = append(user, s)
	}
	for _, f := range news {
		user = append(user, framed(b.phrase(&tellFrames), f.entity.said(b.phrase(&f.attr.tell), f.value, true), ""))
		states = append(states, f.stated())
	}
	return &exchange{
		user: strings.Join(user, " "), reply: framed(pick(b.random, tellReplies), strings.Join(states, ", and "), ""),
		done: func() {
			for _, f := range news {
				b.learn(f)
			}
			// At once, as long as it is clear what is meant.
			if len(news) == 1 && b.corrects() && b.chance(8) {
				b.events = slices.Insert(b.events, 0, event{at: b.d.Tokens, make: func(b *builder) *exchange { return b.meant(news[0]) }})
			}
		},
	}
}

// corrects reports whether facts are corrected wherever that comes up.
func (b *builder) corrects() bool {
	return !b.opt.Quiet && b.opt.Distance == 0 && b.opt.Kind != Recall
}

// learn takes note of a new fact, told in the last exchange.
func (b *builder) learn(f *fact) {
	if !slices.Contains(b.entities, f.entity) {
		b.entities = append(b.entities, f.entity)
	}
	f.entity.facts = append(f.entity.facts, f)
	b.facts = append(b.facts, f)
	b.record(f, false)
}

// record writes down that the last exchange told a value.
func (b *builder) record(f *fact, corrects bool) {
	f.mentioned = b.d.Tokens
	b.d.Facts = append(b.d.Facts, Fact{f.entity.name, f.attr.name, f.value, len(b.d.Messages) - 2, corrects})
}

// stated is the fact in the assistant's words, without a full stop.
func (f *fact) stated() string { return f.entity.said(f.attr.state, f.value, false) }

// correct corrects any fact.
func (b *builder) correct() *exchange {
	if len(b.facts) == 0 {
		return nil
	}
	return b.correcting(pick(b.random, b.facts))
}

func (b *builder) correcting(f *fact) *exchange {
	ex, changed := b.changed(f)
	phrase := f.entity.said(b.phrase(&f.attr.tell), changed.value, true)
	ex.user = framed(b.phrase(&correctFrames), phrase, f.value)
	return ex
}

// changed gives a fact another value; what the user says is still to be chosen.
func (b *builder) changed(f *fact) (*exchange, *fact) {
	changed := *f
	for changed.value == f.value {
		changed.value = onSide(b.random, b.opt.HeldOut, f.attr.value)
	}
	return &exchange{
		reply: framed(pick(b.random, correctReplies), changed.stated(), ""),
		done: func() {
			f.value, f.corrected = changed.value, true
			b.record(f, true)
		},
	}, &changed
}

// ask asks any question.
func (b *builder) ask() *exchange {
	n := b.intn(100)
	switch {
	case n < 40:
		return b.askKind(Unknown)
	case n < 48:
		return b.askKind(Count)
	case n < 56:
		return b.askKind(About)
	case len(b.facts) == 0:
		return nil
	}
	// Answers bring facts back to mind: half of the questions look for one that
	// was not mentioned for long.
	f := pick(b.random, b.facts)
	if b.chance(50) {
		for range 3 {
			if g := pick(b.random, b.facts); g.mentioned < f.mentioned {
				f = g
			}
		}
	}
	return b.askFact(f)
}

// askKind asks a question of a kind; nil if nothing can be asked.
func (b *builder) askKind(k Kind) *exchange {
	switch k {
	case Unknown:
		return b.askUnknown()
	case Count:
		return b.askCount(b.anyone())
	case About:
		return b.askAbout(b.anyone())
	}
	var fit []*fact
	for _, f := range b.facts {
		if f.corrected == (k == Corrected) {
			fit = append(fit, f)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return b.askFact(pick(b.random, fit))
}

// question builds the exchange; the reply lacks its full stop.
func (b *builder) question(q Question, user, reply string, done func()) *exchange {
	q.Facts = len(b.facts)
	return &exchange{user: framed(b.phrase(&askFrames), user, ""), reply: capital(reply) + ".", question: &q, done: done}
}

func (b *builder) askFact(f *fact) *exchange {
	q := Question{Kind: Recall, Entity: f.entity.name, Attribute: f.attr.name, Value: f.value, Distance: b.d.Tokens - f.mentioned}
	if f.corrected {
		q.Kind = Corrected
	}
	return b.question(q, f.entity.said(b.phrase(&f.attr.ask), "", true), f.stated(),
		func() { f.mentioned = b.d.Tokens })
}

func (b *builder) askUnknown() *exchange {
	e := b.newEntity()
	if len(b.entities) > 0 && b.chance(50) {
		e = pick(b.random, b.entities)
	}
	free := e.untold()
	if len(free) == 0 {
		return nil
	}
	a := pick(b.random, free)
	reply := e.said(a.never, "", false)
	return b.question(Question{Kind: Unknown, Entity: e.name, Attribute: a.name, Value: capital(reply) + "."},
		e.said(b.phrase(&a.ask), "", true), reply, nil)
}

// anyone draws an entity, one that has no facts now and then.
func (b *builder) anyone() *entity {
	if len(b.entities) > 0 && b.chance(85) {
		return pick(b.random, b.entities)
	}
	return b.newEntity()
}

// distance is how long ago the oldest fact of e was last mentioned.
func (b *builder) distance(e *entity) int {
	d := 0
	for _, f := range e.facts {
		d = max(d, b.d.Tokens-f.mentioned)
	}
	return d
}

func (b *builder) askCount(e *entity) *exchange {
	value, things := strconv.Itoa(len(e.facts)), " things"
	switch len(e.facts) {
	case 0:
		value, things = "nothing", ""
	case 1:
		things = " thing"
	}
	return b.question(Question{Kind: Count, Entity: e.name, Value: value, Distance: b.distance(e)},
		e.said(b.phrase(&countAsks), "", true),
		"you have told me "+value+things+e.said(" about {o}", "", false), nil)
}

func (b *builder) askAbout(e *entity) *exchange {
	reply := e.said("you have told me nothing about {o}", "", false)
	if len(e.facts) > 0 {
		var states []string
		for _, f := range e.facts {
			states = append(states, capital(f.stated()))
		}
		reply = strings.Join(states, ". ")
	}
	return b.question(Question{Kind: About, Entity: e.name, Value: capital(reply) + ".", Distance: b.distance(e)},
		e.said(b.phrase(&aboutAsks), "", true), reply, func() {
			for _, f := range e.facts {
				f.mentioned = b.d.Tokens
			}
		})
}
