package trace

// mix is splitmix64's finaliser (Steele, Lea and Flood, 2014): a bijection
// that spreads every bit.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// kinds of spans: equal numbers of different kinds are different text.
const (
	kindBlock  uint64 = iota + 1 // a block of a trace, by its hash id
	kindOwn                      // text that occurs once
	kindSystem                   // a system prompt
	kindAnswer                   // what stands in for an answer that did not come
)

// spanID is the identity of a piece of text: its kind, whose it is and its number.
func spanID(kind, owner, number uint64) uint64 {
	return mix(mix(kind<<56^owner) ^ number)
}

// Content makes tokens. The zero value makes tokens of a vocabulary of one.
type Content struct {
	Seed uint64
	// Text is what tokens are slices of; nil: they are random.
	Text  *Text
	Vocab int // random tokens are from 0 to Vocab-1
}

// Add appends a span's tokens.
func (c Content) Add(to []int32, s Span) []int32 {
	base := mix(c.Seed ^ mix(s.ID))
	if c.Text != nil {
		return c.Text.add(to, base, s.Tokens)
	}
	vocab := uint64(max(1, c.Vocab))
	for i := range uint64(s.Tokens) {
		to = append(to, int32(mix(base+i)%vocab))
	}
	return to
}

// Prompt makes a turn's prompt from that of the turn before it and from the
// answer to that.
func (c Content) Prompt(t *Turn, prompt, answer []int32) []int32 {
	n := 0
	for _, s := range t.Append {
		n += s.Tokens
	}
	var out []int32
	if t.Keep == KeepAll {
		out = make([]int32, 0, len(prompt)+len(answer)+n)
		out = append(append(out, prompt...), answer...)
	} else {
		out = append(make([]int32, 0, t.Keep+n), prompt[:t.Keep]...)
	}
	for _, s := range t.Append {
		out = c.Add(out, s)
	}
	return out
}

// Stand makes what takes the place of an answer that did not come, or came
// without its tokens: a conversation goes on with the length it should have.
func (c Content) Stand(prompt []int32, n int) []int32 {
	id := uint64(len(prompt))
	for _, tok := range prompt[max(0, len(prompt)-64):] {
		id = mix(id ^ uint64(uint32(tok)))
	}
	return c.Add(nil, Span{ID: spanID(kindAnswer, 0, id), Tokens: n})
}
