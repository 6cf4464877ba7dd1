package dialogue

import (
	"fmt"
	"slices"
)

// fact is a Fact with what the builder needs to ask about it.
type fact struct {
	entity    *entity
	attr      *attribute
	value     string
	corrected bool
	mentioned int // tokens of the dialogue when it was last mentioned
}

// event is something that is to happen at a place in the dialogue.
type event struct {
	at   int // tokens
	need int // tokens kept free for it; 0: it happens if there is room
	make func(*builder) *exchange
}

// tellTokens is about what stating a fact takes.
const tellTokens = 36

// tries is how often words are drawn anew that did not fit.
const tries = 32

// exchange is a message of the user and the assistant's reply. done, if set,
// takes note of what it said once it is part of the dialogue.
type exchange struct {
	user, reply string
	done        func()
	question    *Question
}

// builder writes one dialogue.
type builder struct {
	*random
	opt      Options
	d        Dialogue
	events   []event // by place
	promised int     // tokens that the events need
	entities []*entity
	facts    []*fact
	target   *fact // what the last question asks for, with Options.Distance
}

// newBuilder decides when what happens.
func newBuilder(r *random, o Options) *builder {
	b := &builder{random: r, opt: o}
	if o.Casual {
		r.odd = 15
	}
	facts := o.Facts
	if facts == 0 {
		// About as many short lists as long ones.
		facts = 1 << r.intn(7)
		facts = min(facts+r.intn(facts), o.mostFacts())
	}
	end := o.Tokens - finalTokens
	switch {
	case o.Quiet:
		b.planQuiet(facts, end)
	case o.Distance > 0:
		if o.Facts == 0 {
			facts = min(facts, 1+max(o.mostFacts()-o.Distance/factTokens, 0)/2)
		}
		b.planTarget(facts-1, end)
	default:
		b.planFree(facts, end)
	}
	slices.SortStableFunc(b.events, func(x, y event) int { return x.at - y.at })
	return b
}

// plan puts an event at a place. A promise is one that must happen.
func (b *builder) plan(at, promise int, make func(*builder) *exchange) {
	at = max(at, 0)
	b.events = append(b.events, event{at, promise, make})
	b.promised += promise
}

// planTold spreads n facts from the first token to the last, some of them in
// pairs.
func (b *builder) planTold(n, first, last int) {
	for n > 0 {
		k := 1
		if n > 1 && b.chance(20) {
			k = 2
		}
		b.plan(b.between(first, last), k*factTokens, func(b *builder) *exchange { return b.tell(k) })
		n -= k
	}
}

// planFree spreads facts, corrections and questions.
func (b *builder) planFree(facts, end int) {
	last := end
	if b.chance(40) {
		last = end / 3 // all facts early
	}
	if b.chance(20) {
		b.plan(0, 0, func(b *builder) *exchange {
			user, reply := politely(b.random, true)
			return &exchange{user: user, reply: reply}
		})
	}
	b.plan(0, factTokens, func(b *builder) *exchange { return b.tell(1) })
	b.planTold(facts-1, 0, last)
	if b.opt.Kind == Corrected {
		b.plan(b.intn(end), factTokens, (*builder).correct)
	}
	if b.opt.Kind != Recall && b.chance(60) {
		for range b.between(1, 1+facts/4) {
			b.plan(b.intn(end), 0, (*builder).correct)
		}
	}
	every := b.between(30, 150) // tokens for each question
	for range end / every {
		b.plan(b.intn(end), 0, (*builder).ask)
	}
}

// planTarget puts the fact that the last question asks for at its distance,
// and the others before and after it.
func (b *builder) planTarget(others, end int) {
	at := end - b.opt.Distance - tellTokens
	after := min(others*b.opt.Distance/end, b.opt.Distance/(2*factTokens))
	b.planTold(others-after, 0, at-1)
	b.planTold(after, at+1, end)
	target := func(b *builder) *exchange {
		f := b.newFact()
		ex := b.telling([]*fact{f})
		b.target = f
		return ex
	}
	if b.opt.Kind != Corrected {
		b.plan(at, factTokens, target)
		return
	}
	b.plan(b.intn(max(at-factTokens, 1)), factTokens, target)
	b.plan(at, factTokens, func(b *builder) *exchange { return b.correcting(b.target) })
}

// run writes the dialogue: events when they are due, small talk in between.
func (b *builder) run() error {
	end := b.opt.Tokens - finalTokens
	for b.d.Tokens < end {
		next := end
		if len(b.events) > 0 {
			next = min(b.events[0].at, end)
		}
		if room := min(next, end-b.promised) - b.d.Tokens; room > 0 && b.fill(room) {
			continue
		}
		if len(b.events) == 0 {
			break
		}
		ev := b.events[0]
		b.events = b.events[1:]
		b.promised -= ev.need
		if !b.happen(ev, end-b.promised) {
			return fmt.Errorf("no room for a fact: %d of %d tokens are taken", b.d.Tokens, b.opt.Tokens)
		}
	}
	if b.promised > 0 {
		return fmt.Errorf("no room for all the facts: %d of %d tokens are taken", b.d.Tokens, b.opt.Tokens)
	}
	return b.finish()
}

// happen adds an event's exchange. One that was promised is drawn anew where
// its words are too long; it reports false if no draw fits.
func (b *builder) happen(ev event, limit int) bool {
	for range tries {
		ex := ev.make(b)
		if ex == nil || b.add(ex, limit) || ev.need == 0 {
			return true
		}
	}
	return false
}

// fill adds small talk of up to room tokens.
func (b *builder) fill(room int) bool {
	for n := b.between(1, min(8, max(1, room/12))); n > 0; n /= 2 {
		user, reply := smallTalk(b.random, n, b.anyName)
		if b.chance(12) {
			user, reply = politely(b.random, false)
		}
		if b.add(&exchange{user: user, reply: reply}, b.d.Tokens+room) {
			return true
		}
	}
	return false
}

// anyName is a name for small talk, often one that facts are about.
func (b *builder) anyName() string {
	if len(b.entities) > 0 && b.chance(60) {
		if e := pick(b.random, b.entities); e.name != "" && !e.thing {
			return e.name
		}
	}
	return onSide(b.random, b.opt.HeldOut, drawName)
}

// finish asks the last question.
func (b *builder) finish() error {
	if b.opt.Quiet {
		return nil
	}
	for range tries {
		var ex *exchange
		switch {
		case b.target != nil:
			ex = b.askFact(b.target)
		case b.opt.Kind != "":
			ex = b.askKind(b.opt.Kind)
		default:
			ex = b.ask()
		}
		if ex == nil || !b.add(ex, b.opt.Tokens) {
			continue
		}
		if b.opt.Kind != "" || b.opt.Distance > 0 {
			return nil
		}
		// Any question may be the last one: there may be room for more.
	}
	// A dialogue that promises nothing of its last question is good without.
	if b.opt.Kind == "" && b.opt.Distance == 0 {
		return nil
	}
	return fmt.Errorf("no room for the last question, of kind %q: %d of %d tokens are taken", b.opt.Kind, b.d.Tokens, b.opt.Tokens)
}

// add appends an exchange if the dialogue then has at most limit tokens.
func (b *builder) add(ex *exchange, limit int) bool {
	user, reply := Message{"user", ex.user}, Message{"assistant", ex.reply}
	if b.opt.Casual {
		user.Content = casually(b.random, user.Content)
	}
	asked := b.d.Tokens
	n := asked + b.opt.Count(user.Text()) + b.opt.Count(reply.Text())
	if n > limit {
		return false
	}
	b.d.Tokens = n
	b.d.Messages = append(b.d.Messages, user, reply)
	if q := ex.question; q != nil {
		q.Message, q.Answer = len(b.d.Messages)-1, ex.reply
		b.d.Questions = append(b.d.Questions, *q)
	}
	if ex.done != nil {
		ex.done()
	}
	return true
}

// newFact draws something that was not told yet, often about someone who was
// mentioned before.
func (b *builder) newFact() *fact {
	e := &entity{}
	if len(b.entities) > 0 && b.chance(55) {
		e = pick(b.random, b.entities)
	} else if b.chance(85) {
		e = b.newEntity()
	}
	for _, known := range b.entities {
		if known.name == e.name {
			e = known
		}
	}
	free := e.untold()
	if len(free) == 0 || len(e.facts) >= 5 {
		e = b.newEntity()
		free = e.attributes()
	}
	a := pick(b.random, free)
	return &fact{entity: e, attr: a, value: onSide(b.random, b.opt.HeldOut, a.value)}
}

// newEntity draws someone or something that was not mentioned yet.
func (b *builder) newEntity() *entity {
	for {
		e := &entity{thing: b.chance(25)}
		draw := drawName
		if e.thing {
			draw = drawThing
		}
		e.name = onSide(b.random, b.opt.HeldOut, draw)
		if !slices.ContainsFunc(b.entities, func(x *entity) bool { return x.name == e.name }) {
			return e
		}
	}
}

// untold are the attributes that no fact has told.
func (e *entity) untold() []*attribute {
	var free []*attribute
	for _, a := range e.attributes() {
		if !slices.ContainsFunc(e.facts, func(f *fact) bool { return f.attr == a }) {
			free = append(free, a)
		}
	}
	return free
}

func (b *builder) phrase(p *phrases) string { return pick(b.random, p.of(b.opt.HeldOut)) }
