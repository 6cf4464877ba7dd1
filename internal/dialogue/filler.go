package dialogue

import "strings"

// topic is small talk: sentences of the user with slots, and what the
// assistant may say to them. No sentence states a fact, though some hold the
// kind of words that facts are made of.
type topic struct{ sentences, replies []string }

var topics = []topic{
	{
		[]string{
			"The weather {day} was {feel}.", "It rained for {count} hours {day}.", "There was {feel} wind on the {way}.",
			"I hope that the sun comes out {day}.", "When it comes to rain, we had {feel} weeks.", "The sky over the {way} looked {feel} {day}.",
			"We stayed at home because of the rain.", "The {season} is {feel} here.",
		},
		[]string{"I hope that the weather gets better.", "Rain is good for the garden.", "That is how the weather is.", "Stay warm and dry."},
	},
	{
		[]string{
			"I worked for {count} hours {day}.", "The meeting {day} was {feel}.", "We have to write {count} letters before {day}.",
			"My desk is full of paper.", "Somebody calls every {count} minutes.", "The new printer is {feel}.",
			"We moved the meeting to {day}.", "They give us too much work in the {season}.",
		},
		[]string{"That sounds like a lot of work.", "Take a break when you can.", "Work can be like that.", "I hope that the day gets easier."},
	},
	{
		[]string{
			"We baked {count} loaves {day}.", "The soup {day} was {feel}.", "I want to cook something {feel} {day}.",
			"The market had {count} kinds of fruit.", "We ate by the {way} {day}.", "The tea is {feel}, but I drink it.",
			"I burned the toast {day}.", "There is nothing better than a {feel} breakfast.",
		},
		[]string{"Enjoy your meal.", "That sounds good.", "Cooking takes some time.", "Now I wish that I could eat."},
	},
	{
		[]string{
			"I saw {count} birds by the {way}.", "We walked along the {way} {day}.", "The trees near the {way} are {feel} in the {season}.",
			"The river was {feel} {day}.", "A {feel} walk does me good.", "We found {count} mushrooms in the forest.",
			"The {way} is {feel} in the {season}.", "I counted {count} boats on the lake.",
		},
		[]string{"A walk is good for you.", "It is good to be outside.", "That must have been a fine day.", "The forest is quiet in the {season}."},
	},
	{
		[]string{
			"I read {count} pages {day}.", "The book is {feel}.", "We saw a {feel} film {day}.",
			"The story begins on a ship in the {season}.", "I listened to music for {count} minutes.", "The song was {feel}.",
			"The story ends with a {feel} storm.", "We played cards {day}.",
		},
		[]string{"I like a good story.", "Music makes the day better.", "Tell me how it ends.", "That is a good way to spend the day."},
	},
	{
		[]string{
			"I met {name} by the {way} {day}.", "{name} says hello.", "{name} came to visit {day}.",
			"{name} told a {feel} joke {day}.", "I wrote to {name} {day}.", "{name} and I talked for {count} minutes.",
			"We had {feel} news from {name}.", "{name} was late {day}.",
		},
		[]string{"It is good to have friends.", "That was kind.", "I hope that all is well.", "Say hello from me."},
	},
	{
		[]string{
			"The train was {count} minutes late {day}.", "We drove for {count} hours {day}.", "The road by the {way} is closed.",
			"The bus was {feel} {day}.", "I need {count} tickets for {day}.", "Our trip in the {season} was {feel}.",
			"The bridge is {feel} at night.", "I gave {count} coins to the driver.",
		},
		[]string{"I hope that you had a good trip.", "Travel takes time.", "Have a safe trip.", "At least you arrived."},
	},
	{
		[]string{
			"Never mind, it was {feel}.", "How are you {day}?", "Let me think for {count} minutes.",
			"I feel {feel} {day}.", "That is a {feel} thought.", "Do you like the {season}?",
			"I have nothing more to say about it now.", "Time goes by.",
		},
		[]string{"I am fine, thank you.", "Take your time.", "I am here when you need me.", "Let us talk on."},
	},
}

var (
	fillDays    = []string{"today", "yesterday", "this morning", "last night", "on Monday", "on Tuesday", "on Wednesday", "on Thursday", "on Friday", "on Saturday", "on Sunday"}
	fillFeels   = strings.Fields(`bad calm cold dry fine good great kind loud nice odd quiet rough sad slow soft strange strong sweet terrible warm wet wild`)
	fillWays    = strings.Fields(`beach bridge canal church field forest garden harbour hill lake market park river road school station wood`)
	fillSeasons = strings.Fields(`spring summer autumn winter`)
	fillCounts  = strings.Fields(`two three four five six seven eight nine ten twelve 15 20 25 30 45 60`)
)

// smallTalk makes an exchange of up to sentences sentences.
func smallTalk(r *random, sentences int, name func() string) (user, reply string) {
	t := &topics[r.intn(len(topics))]
	var b strings.Builder
	last := -1
	for i := range sentences {
		n := r.intn(len(t.sentences))
		if n == last {
			n = (n + 1) % len(t.sentences)
		}
		last = n
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(capital(fillSlots(r, t.sentences[n], name)))
	}
	return b.String(), fillSlots(r, pick(r, t.replies), name)
}

func fillSlots(r *random, s string, name func() string) string {
	for {
		before, rest, ok := strings.Cut(s, "{")
		if !ok {
			return s
		}
		slot, after, _ := strings.Cut(rest, "}")
		var word string
		switch slot {
		case "day":
			word = pick(r, fillDays)
		case "feel":
			word = pick(r, fillFeels)
		case "way":
			word = pick(r, fillWays)
		case "season":
			word = pick(r, fillSeasons)
		case "count":
			word = pick(r, fillCounts)
		case "name":
			word = name()
		default:
			panic("BUG: no words for the slot " + slot)
		}
		s = before + word + after
	}
}
