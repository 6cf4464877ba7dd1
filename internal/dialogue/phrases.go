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
	// is what it says where it was not told. They begin alike: whether there
	// is a value is then decided where it would stand, behind the words that
	// lead to it.
	state, never string
	tell, ask    phrases
}

// personal are the attributes of people and of the user.
var personal = []*attribute{
	{
		name: "colour", value: drawColour,
		state: "{p} favourite colour is {v}", never: "{p} favourite colour is something you have not told me",
		tell: phrases{
			[]string{"{p} favourite colour is {v}", "{v} is {p} favourite colour", "of all colours, {n} [likes|like|like] {v} best", "the colour that {n} [likes|like|like] best is {v}", "{n} [likes|like|like] the colour {v} best", "{v} is what {n} [calls|call|call] the best colour"},
			[]string{"{v} is the colour that {n} [likes|like|like] best", "when it comes to colours, {n} [likes|like|like] {v} best"},
		},
		ask: phrases{
			[]string{"what is {p} favourite colour?", "which colour [does|do|do] {n} like best?", "do you remember {p} favourite colour?", "what colour [does|do|do] {n} like most?", "can you say {p} favourite colour?", "tell me {p} favourite colour.", "which favourite colour did I give for {o}?", "which colour is the one {n} [likes|like|like] best?", "do you know which colour {n} [likes|like|like]?", "{p} favourite colour, what was it?"},
			[]string{"can you say which colour {n} [likes|like|like] best?", "which colour is {p} favourite?"},
		},
	},
	{
		name: "town", value: drawTown,
		state: "{n} [lives|live|live] in {v}", never: "{n} [lives|live|live] in a town you have not told me",
		tell: phrases{
			[]string{"{n} [lives|live|live] in {v}", "{p} home town is {v}", "the town where {n} [lives|live|live] is {v}", "{p} home is in {v}", "in {v} is {p} home", "{n} [has|have|have] a home in {v}"},
			[]string{"{v} is the town where {n} [lives|live|live]", "{v} is {p} home town"},
		},
		ask: phrases{
			[]string{"where [does|do|do] {n} live?", "what is {p} home town?", "in which town [does|do|do] {n} live?", "do you remember where {n} [lives|live|live]?", "can you say {p} home town?", "tell me where {n} [lives|live|live].", "which home town did I give for {o}?", "which town [does|do|do] {n} live in?", "do you know {p} home town?", "{p} home town, which one was it?"},
			[]string{"which town is {p} home?", "can you say where {n} [lives|live|live]?"},
		},
	},
	{
		name: "age", value: drawAge,
		state: "{n} [is|am|are] {v} years old", never: "{n} [is|am|are] of an age you have not told me",
		tell: phrases{
			[]string{"{n} [is|am|are] {v} years old", "{p} age is {v}", "{n} turned {v} this year", "this year {n} turned {v}", "{v} years is {p} age", "at the moment {n} [is|am|are] {v} years old"},
			[]string{"now {n} [is|am|are] {v} years old", "{v} is {p} age"},
		},
		ask: phrases{
			[]string{"how old [is|am|are] {n}?", "what is {p} age?", "do you remember how old {n} [is|am|are]?", "how many years old [is|am|are] {n}?", "can you say {p} age?", "tell me {p} age.", "do you know how old {n} [is|am|are]?", "{p} age, what was it?", "which age [does|do|do] {n} have?"},
			[]string{"can you say how old {n} [is|am|are]?", "which age did I give for {o}?"},
		},
	},
	{
		name: "number", value: drawNumber,
		state: "{p} lucky number is {v}", never: "{p} lucky number is something you have not told me",
		tell: phrases{
			[]string{"{p} lucky number is {v}", "{v} is {p} lucky number", "the number that brings {o} luck is {v}", "the lucky number of choice for {o} is {v}", "it is {v} that brings {o} luck", "{n} [has|have|have] the lucky number {v}"},
			[]string{"{v} is the number that brings {o} luck", "for {o} the lucky number is {v}"},
		},
		ask: phrases{
			[]string{"what is {p} lucky number?", "which number brings {o} luck?", "do you remember {p} lucky number?", "what number is lucky for {o}?", "which lucky number did I give for {o}?", "tell me {p} lucky number.", "can you say which number brings {o} luck?", "do you know {p} lucky number?", "{p} lucky number, which one was it?", "which number is lucky for {o}?"},
			[]string{"can you say {p} lucky number?", "which number is {p} lucky number?"},
		},
	},
	{
		name: "code", value: drawCode,
		state: "{p} door code is {v}", never: "{p} door code is something you have not told me",
		tell: phrases{
			[]string{"{p} door code is {v}", "the code of {p} door is {v}", "{p} door opens with the code {v}", "to open {p} door, you need the code {v}", "{v} is {p} door code", "the code {v} opens {p} door"},
			[]string{"the code to open {p} door is {v}", "with the code {v} you can open {p} door"},
		},
		ask: phrases{
			[]string{"what is {p} door code?", "which code opens {p} door?", "do you remember {p} door code?", "what code do I need for {p} door?", "which door code did I give for {o}?", "tell me {p} door code.", "can you say which code opens {p} door?", "do you know {p} door code?", "{p} door code, what was it?", "with which code does {p} door open?"},
			[]string{"can you say {p} door code?", "with which code can I open {p} door?"},
		},
	},
	{
		name: "food", value: drawFood,
		state: "{p} favourite food is {v}", never: "{p} favourite food is something you have not told me",
		tell: phrases{
			[]string{"{p} favourite food is {v}", "{v} is {p} favourite food", "of all food, {n} [likes|like|like] {v} best", "the food that {n} [likes|like|like] best is {v}", "{n} [likes|like|like] to eat {v} best", "{v} is what {n} [calls|call|call] the best food"},
			[]string{"{v} is the food that {n} [likes|like|like] best", "when it comes to food, {n} [likes|like|like] {v} best"},
		},
		ask: phrases{
			[]string{"what is {p} favourite food?", "which food [does|do|do] {n} like best?", "do you remember {p} favourite food?", "what food [does|do|do] {n} like most?", "can you say {p} favourite food?", "tell me {p} favourite food.", "which favourite food did I give for {o}?", "which food is the one {n} [likes|like|like] best?", "do you know which food {n} [likes|like|like]?", "{p} favourite food, what was it?"},
			[]string{"can you say which food {n} [likes|like|like] best?", "which food is {p} favourite?"},
		},
	},
	petAttribute("dog"),
	petAttribute("cat"),
}

func petAttribute(kind string) *attribute {
	a := &attribute{
		name: kind, value: drawPet,
		state: "{p} KIND is called {v}", never: "{p} KIND is called something you have not told me",
		tell: phrases{
			[]string{"{p} KIND is called {v}", "the name of {p} KIND is {v}", "{n} [has|have|have] a KIND called {v}", "{v} is the name of {p} KIND", "{n} [calls|call|call] the KIND {v}", "{p} KIND has the name {v}"},
			[]string{"{v} is what {n} [calls|call|call] the KIND", "for {p} KIND the name is {v}"},
		},
		ask: phrases{
			[]string{"what is the name of {p} KIND?", "what is {p} KIND called?", "do you remember the name of {p} KIND?", "what [does|do|do] {n} call the KIND?", "can you say the name of {p} KIND?", "tell me the name of {p} KIND.", "which name [has|have|have] {p} KIND?", "do you know what {p} KIND is called?", "{p} KIND, what was its name?", "how is {p} KIND called?"},
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
		state: "{n} is in {v}", never: "{n} is in a place you have not told me",
		tell: phrases{
			[]string{"{n} is in {v}", "I put {n} in {v}", "you can find {n} in {v}", "the place of {n} is in {v}", "in {v} there is {n}", "{v} is where I put {n}"},
			[]string{"in {v} you can find {n}", "{v} is the place of {n}"},
		},
		ask: phrases{
			[]string{"where is {n}?", "where did I put {n}?", "do you remember where {n} is?", "in which place can I find {n}?", "can you say the place of {n}?", "tell me where {n} is.", "which place has {n}?", "do you know where I put {n}?", "{n}, where was it?", "where can I find {n}?"},
			[]string{"can you say where {n} is?", "which place did I give for {n}?"},
		},
	},
	{
		name: "weight", value: drawNumber,
		state: "{n} weighs {v} grams", never: "{n} weighs something you have not told me",
		tell: phrases{
			[]string{"{n} weighs {v} grams", "the weight of {n} is {v} grams", "{v} grams is the weight of {n}", "at {v} grams we have the weight of {n}", "{n} has a weight of {v} grams", "it is {v} grams that {n} weighs"},
			[]string{"in grams the weight of {n} is {v}", "we have the weight of {n}: it weighs {v} grams"},
		},
		ask: phrases{
			[]string{"what is the weight of {n}?", "how many grams does {n} weigh?", "do you remember the weight of {n}?", "how much does {n} weigh?", "can you say the weight of {n}?", "tell me the weight of {n}.", "how heavy is {n}?", "do you know how much {n} weighs?", "{n}, what was its weight?", "which weight has {n}?"},
			[]string{"can you say how much {n} weighs?", "which weight did I give for {n}?"},
		},
	},
}

// Frames around what the user says.
var (
	tellFrames = phrases{
		[]string{"{S}.", "{S}.", "{S}.", "By the way, {s}.", "Please remember that {s}.", "You should know that {s}.", "Oh, and {s}.", "Here is something to keep: {s}.", "One more thing: {s}.", "Please keep this in mind: {s}.", "Remember this: {s}.", "I want you to know that {s}.", "Well, {s}.", "Did I say that {s}?"},
		[]string{"Please know that {s}.", "Oh, one more thing to remember: {s}.", "You should keep in mind that {s}."},
	}
	correctFrames = phrases{
		[]string{"No, {s}.", "I made a mistake: {s}.", "Sorry, that was wrong. {S}.", "I have to correct something: {s}.", "No, not {old}: {s}.", "It is not {old}. {S}.", "I have to change something. {S}.", "That was not right: {s}.", "Forget what I said: {s}."},
		[]string{"Sorry, I have to correct a mistake: {s}.", "Sorry, it is not {old}. {S}."},
	}
	askFrames = phrases{
		[]string{"{S}", "{S}", "{S}", "A question: {s}", "Tell me, {s}", "I forgot it. {S}", "Before we go on, {s}", "Let us see what you remember. {S}", "Please tell me: {s}", "Please, {s}", "Well, {s}", "One question: {s}", "Just to be sure: {s}", "Let me ask you: {s}", "Before I forget: {s}", "I have to know. {S}", "Now, {s}"},
		[]string{"Please, before we go on: {s}", "Let us see: {s}", "I have a question. {S}"},
	}
	countAsks = phrases{
		[]string{"how many things have I told you about {o}?", "how many facts do you know about {o}?", "count the things I told you about {o}, how many are there?", "how much do you know about {o}, how many things?", "can you count the things I told you about {o}?", "tell me how many facts you know about {o}.", "of {o}, how many things do you know?"},
		[]string{"about {o}, how many facts have I told you?", "can you count the facts you know about {o}?"},
	}
	aboutAsks = phrases{
		[]string{"what do you know about {o}?", "what have I told you about {o}?", "can you sum up what I told you about {o}?", "tell me what you know about {o}.", "can you tell me the things you know about {o}?", "sum up what you know about {o}."},
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
