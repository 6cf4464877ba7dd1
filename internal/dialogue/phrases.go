package dialogue

import "strings"

// Phrases are written with these marks:
//
//	{n} {p} {o}  who or what it is about: "Mira", "Mira's", "Mira"; for the
//	             user "I", "my", "me", or "you", "your", "you" from the assistant
//	{v}          the value
//	[a|b|c]      a word that agrees with {n}: "Mira", "I", "you"
//	{s} {S}      in a frame: a phrase, and a phrase with a capital letter
//
// Those for evaluation are not used in training; their words are.
type phrases struct{ train, heldOut []string }

func (p *phrases) of(heldOut bool) []string {
	if heldOut {
		return p.heldOut
	}
	return p.train
}

// attribute is something that can be said of a person or a thing.
type attribute struct {
	name  string
	value func(*random) string
	// state is how the assistant says it, always in the same words; never
	// is what it says that it was not told.
	state, never string
	tell, ask    phrases
}

// personal are the attributes of people and of the user.
var personal = []*attribute{
	{
		name: "colour", value: drawColour,
		state: "{p} favourite colour is {v}", never: "{p} favourite colour",
		tell: phrases{
			[]string{"{p} favourite colour is {v}", "{v} is {p} favourite colour", "of all colours, {n} [likes|like|like] {v} best", "the colour that {n} [likes|like|like] best is {v}"},
			[]string{"{v} is the colour that {n} [likes|like|like] best", "when it comes to colours, {n} [likes|like|like] {v} best"},
		},
		ask: phrases{
			[]string{"what is {p} favourite colour?", "which colour [does|do|do] {n} like best?", "do you remember {p} favourite colour?", "what colour [does|do|do] {n} like most?"},
			[]string{"can you say which colour {n} [likes|like|like] best?", "which colour is {p} favourite?"},
		},
	},
	{
		name: "town", value: drawTown,
		state: "{n} [lives|live|live] in {v}", never: "where {n} [lives|live|live]",
		tell: phrases{
			[]string{"{n} [lives|live|live] in {v}", "{p} home town is {v}", "the town where {n} [lives|live|live] is {v}", "{p} home is in {v}"},
			[]string{"{v} is the town where {n} [lives|live|live]", "{v} is {p} home town"},
		},
		ask: phrases{
			[]string{"where [does|do|do] {n} live?", "what is {p} home town?", "in which town [does|do|do] {n} live?", "do you remember where {n} [lives|live|live]?"},
			[]string{"which town is {p} home?", "can you say where {n} [lives|live|live]?"},
		},
	},
	{
		name: "age", value: drawAge,
		state: "{n} [is|am|are] {v} years old", never: "{p} age",
		tell: phrases{
			[]string{"{n} [is|am|are] {v} years old", "{p} age is {v}", "{n} turned {v} this year", "this year {n} turned {v}"},
			[]string{"now {n} [is|am|are] {v} years old", "{v} is {p} age"},
		},
		ask: phrases{
			[]string{"how old [is|am|are] {n}?", "what is {p} age?", "do you remember how old {n} [is|am|are]?", "how many years old [is|am|are] {n}?"},
			[]string{"can you say how old {n} [is|am|are]?", "which age did I give for {o}?"},
		},
	},
	{
		name: "number", value: drawNumber,
		state: "{p} lucky number is {v}", never: "{p} lucky number",
		tell: phrases{
			[]string{"{p} lucky number is {v}", "{v} is {p} lucky number", "the number that brings {o} luck is {v}", "the lucky number of choice for {o} is {v}"},
			[]string{"{v} is the number that brings {o} luck", "for {o} the lucky number is {v}"},
		},
		ask: phrases{
			[]string{"what is {p} lucky number?", "which number brings {o} luck?", "do you remember {p} lucky number?", "what number is lucky for {o}?"},
			[]string{"can you say {p} lucky number?", "which number is {p} lucky number?"},
		},
	},
	{
		name: "code", value: drawCode,
		state: "{p} door code is {v}", never: "{p} door code",
		tell: phrases{
			[]string{"{p} door code is {v}", "the code of {p} door is {v}", "{p} door opens with the code {v}", "to open {p} door, you need the code {v}"},
			[]string{"the code to open {p} door is {v}", "with the code {v} you can open {p} door"},
		},
		ask: phrases{
			[]string{"what is {p} door code?", "which code opens {p} door?", "do you remember {p} door code?", "what code do I need for {p} door?"},
			[]string{"can you say {p} door code?", "with which code can I open {p} door?"},
		},
	},
	{
		name: "food", value: drawFood,
		state: "{p} favourite food is {v}", never: "{p} favourite food",
		tell: phrases{
			[]string{"{p} favourite food is {v}", "{v} is {p} favourite food", "of all food, {n} [likes|like|like] {v} best", "the food that {n} [likes|like|like] best is {v}"},
			[]string{"{v} is the food that {n} [likes|like|like] best", "when it comes to food, {n} [likes|like|like] {v} best"},
		},
		ask: phrases{
			[]string{"what is {p} favourite food?", "which food [does|do|do] {n} like best?", "do you remember {p} favourite food?", "what food [does|do|do] {n} like most?"},
			[]string{"can you say which food {n} [likes|like|like] best?", "which food is {p} favourite?"},
		},
	},
	petAttribute("dog"),
	petAttribute("cat"),
}

func petAttribute(kind string) *attribute {
	a := &attribute{
		name: kind, value: drawPet,
		state: "{p} KIND is called {v}", never: "the name of {p} KIND",
		tell: phrases{
			[]string{"{p} KIND is called {v}", "the name of {p} KIND is {v}", "{n} [has|have|have] a KIND called {v}", "{v} is the name of {p} KIND"},
			[]string{"{v} is what {n} [calls|call|call] the KIND", "for {p} KIND the name is {v}"},
		},
		ask: phrases{
			[]string{"what is the name of {p} KIND?", "what is {p} KIND called?", "do you remember the name of {p} KIND?", "what [does|do|do] {n} call the KIND?"},
			[]string{"can you say what {p} KIND is called?", "which name did I give for {p} KIND?"},
		},
	}
	for _, list := range [][]string{a.tell.train, a.tell.heldOut, a.ask.train, a.ask.heldOut} {
		for i := range list {
			list[i] = strings.ReplaceAll(list[i], "KIND", kind)
		}
	}
	a.state, a.never = strings.ReplaceAll(a.state, "KIND", kind), strings.ReplaceAll(a.never, "KIND", kind)
	return a
}

// material are the attributes of things.
var material = []*attribute{
	{
		name: "place", value: drawPlace,
		state: "{n} is in {v}", never: "where {n} is",
		tell: phrases{
			[]string{"{n} is in {v}", "I put {n} in {v}", "you can find {n} in {v}", "the place of {n} is in {v}"},
			[]string{"in {v} you can find {n}", "{v} is the place of {n}"},
		},
		ask: phrases{
			[]string{"where is {n}?", "where did I put {n}?", "do you remember where {n} is?", "in which place can I find {n}?"},
			[]string{"can you say where {n} is?", "which place did I give for {n}?"},
		},
	},
	{
		name: "weight", value: drawNumber,
		state: "{n} weighs {v} grams", never: "the weight of {n}",
		tell: phrases{
			[]string{"{n} weighs {v} grams", "the weight of {n} is {v} grams", "{v} grams is the weight of {n}", "at {v} grams we have the weight of {n}"},
			[]string{"in grams the weight of {n} is {v}", "we have the weight of {n}: it weighs {v} grams"},
		},
		ask: phrases{
			[]string{"what is the weight of {n}?", "how many grams does {n} weigh?", "do you remember the weight of {n}?", "how much does {n} weigh?"},
			[]string{"can you say how much {n} weighs?", "which weight did I give for {n}?"},
		},
	},
}

// Frames around what the user says.
var (
	tellFrames = phrases{
		[]string{"{S}.", "{S}.", "{S}.", "By the way, {s}.", "Please remember that {s}.", "You should know that {s}.", "Oh, and {s}.", "Here is something to keep: {s}.", "One more thing: {s}.", "Please keep this in mind: {s}."},
		[]string{"Please know that {s}.", "Oh, one more thing to remember: {s}.", "You should keep in mind that {s}."},
	}
	correctFrames = phrases{
		[]string{"No, {s}.", "I made a mistake: {s}.", "Sorry, that was wrong. {S}.", "I have to correct something: {s}.", "No, not {old}: {s}.", "It is not {old}. {S}."},
		[]string{"Sorry, I have to correct a mistake: {s}.", "Sorry, it is not {old}. {S}."},
	}
	askFrames = phrases{
		[]string{"{S}", "{S}", "{S}", "A question: {s}", "Tell me, {s}", "I forgot it. {S}", "Before we go on, {s}", "Let us see what you remember. {S}", "Please tell me: {s}"},
		[]string{"Please, before we go on: {s}", "Let us see: {s}", "I have a question. {S}"},
	}
	countAsks = phrases{
		[]string{"how many things have I told you about {o}?", "how many facts do you know about {o}?", "count the things I told you about {o}, how many are there?"},
		[]string{"about {o}, how many facts have I told you?", "can you count the facts you know about {o}?"},
	}
	aboutAsks = phrases{
		[]string{"what do you know about {o}?", "what have I told you about {o}?", "can you sum up what I told you about {o}?"},
		[]string{"about {o}, what do you remember?", "can you sum up the things you know about {o}?"},
	}
)

// What the assistant says to news; {s} stands for the facts as it states them.
// It always states them, in its own words: what an answer needs is then found
// by the very words that the answer begins with, however it was told. A
// correction says that it is one before it states the fact.
var (
	tellReplies    = []string{"Noted: {s}.", "I will remember that {s}.", "Good to know that {s}.", "So {s}.", "Thank you, {s}.", "I will keep in mind that {s}."}
	correctReplies = []string{"Thank you for the correction: {s}.", "Then {s}.", "I changed it: {s}."}
)

// person selects how phrases refer to an entity.
type person int

const (
	third person = iota
	first
	second
)

// entity is someone or something that facts are about.
type entity struct {
	name  string // "" for the user
	thing bool
	facts []*fact // told so far
}

// attributes are those that the entity can have.
func (e *entity) attributes() []*attribute {
	if e.thing {
		return material
	}
	return personal
}

// said fills a phrase in as the user (byUser) or the assistant says it.
func (e *entity) said(phrase, value string, byUser bool) string {
	who, n, p, o := third, e.name, e.name+"'s", e.name
	if e.name == "" {
		who, n, p, o = second, "you", "your", "you"
		if byUser {
			who, n, p, o = first, "I", "my", "me"
		}
	}
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(phrase, "[")
		b.WriteString(before)
		if !ok {
			break
		}
		choice, after, _ := strings.Cut(rest, "]")
		b.WriteString(strings.Split(choice, "|")[who])
		phrase = after
	}
	return strings.NewReplacer("{n}", n, "{p}", p, "{o}", o, "{v}", value).Replace(b.String())
}

// framed puts a phrase into a frame.
func framed(frame, phrase, old string) string {
	s := strings.NewReplacer("{s}", phrase, "{S}", capital(phrase), "{old}", old).Replace(frame)
	return capital(s)
}

// capital begins s with a capital letter. Phrases begin with ASCII.
func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
