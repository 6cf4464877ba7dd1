package dialogue

import "strings"

// courtesy is what people say that is neither a fact nor small talk about
// something, and what the assistant says to it.
type courtesy struct{ said, replies []string }

var courtesies = []courtesy{
	{
		[]string{"Hello.", "Hello!", "Hi.", "Hi!", "Hi there!", "Hey!", "Hey there.", "Good morning.", "Good evening!", "Hello there, how are you?", "Hi, how is it going?"},
		[]string{"Hello. Tell me something, and I will remember it.", "Hello. What should I remember?"},
	},
	{
		[]string{"Thank you.", "Thanks!", "Thanks a lot.", "Thank you very much!", "That is kind of you."},
		[]string{"You are welcome.", "With pleasure."},
	},
	{
		[]string{"OK.", "Okay.", "Good.", "Fine.", "Right.", "I see.", "Yes.", "Very well.", "Well done!", "Great!", "No.", "Hm.", "Wow!"},
		[]string{"Tell me more when you like.", "Take your time."},
	},
	{
		[]string{"Who are you?", "What are you?", "Hello, who are you?", "What is your name?", "Do you have a name?"},
		[]string{"I am a small model that remembers what it is told."},
	},
	{
		[]string{"What can you do?", "What can I tell you?", "What should I say?", "Help!", "Can you help me?", "How does this work?"},
		[]string{"Tell me about people and things, and ask me later."},
	},
	{
		[]string{"What is the weather?", "Tell me a joke.", "What time is it?", "What do you think?", "Why is the sky blue?", "Can you write a poem?", "What is two and two?"},
		[]string{"I know only what you tell me."},
	},
	{
		[]string{"Goodbye.", "Bye!", "Good night.", "See you.", "I have to go now."},
		[]string{"Goodbye. I will be here."},
	},
}

// politely makes an exchange of courtesies. The first kind opens dialogues.
func politely(r *random, opening bool) (user, reply string) {
	c := &courtesies[0]
	if !opening {
		c = &courtesies[r.intn(len(courtesies))]
	}
	return pick(r, c.said), pick(r, c.replies)
}

// What the user says to correct what was said last, without saying of whom.
var meantFrames = phrases{
	[]string{"No, it is {v}.", "It is not {old}, it is {v}.", "No, not {old}. It is {v}.", "Sorry, {v}.", "No, {v}.", "I meant {v}.", "Wait, it is {v}.", "Not {old}, but {v}.", "Sorry, it is {v}."},
	[]string{"Sorry, I meant {v}.", "Wait, not {old}. It is {v}."},
}

// meant corrects the fact that the last exchange told.
func (b *builder) meant(f *fact) *exchange {
	if f.mentioned != b.d.Tokens || f.corrected {
		return nil
	}
	ex, changed := b.changed(f)
	ex.user = capital(strings.NewReplacer("{v}", changed.value, "{old}", f.value).Replace(b.phrase(&meantFrames)))
	return ex
}

// lowerable are words that begin sentences and are no names.
var lowerable = func() map[string]bool {
	words := map[string]bool{}
	for _, w := range strings.Fields(`My I The No Please Tell By You Here One Remember Well Did Oh It Of At This In Sorry Forget That
		What Where Which Who How Do Can Count Before Let A Just Now We To Not With For When Hello Hi Hey Thank Thanks Wait Good`) {
		words[w] = true
	}
	return words
}()

// casually writes a message as people type: in small letters, without the last
// full stop, or in American spelling.
func casually(r *random, s string) string {
	if r.chance(15) {
		s = strings.TrimSuffix(s, ".")
	}
	if r.chance(8) {
		s = strings.TrimSuffix(s, "?")
	}
	if first, rest, ok := strings.Cut(s, " "); ok && lowerable[first] && r.chance(20) {
		s = strings.ToLower(first) + " " + rest
	}
	if r.chance(15) {
		s = strings.NewReplacer("favourite", "favorite", "colour", "color", "Favourite", "Favorite", "Colour", "Color").Replace(s)
	}
	return s
}
