package tokenizer

import "strings"

// Stream decodes token by token. It serves one goroutine.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	steps       step
	text        strings.Builder
	flushed     bool
}

// NewStream returns a stream that has seen no tokens; skipSpecial leaves
// special tokens out.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	s := &Stream{t: t, skipSpecial: skipSpecial}
	s.steps = newSteps(t.decoders, func(c chunk) { s.text.WriteString(c.text) })
	return s
}

// Push adds a token and returns the text that is certain now: it is valid
// UTF-8, and all returned texts with Flush's are Decode's of the same ids.
// With byte fallback a run of byte tokens is certain when it ends. A decoder
// that has a step other than Strip after Fuse or ByteLevel returns everything
// from Flush.
func (s *Stream) Push(id int32) string {
	s.feed(id)
	return s.take()
}

// Flush returns the rest. The stream must not be used afterwards.
func (s *Stream) Flush() string {
	if !s.flushed {
		s.flushed = true
		s.steps.flush()
	}
	return s.take()
}

func (s *Stream) take() string {
	out := s.text.String()
	s.text.Reset()
	return out
}

func (s *Stream) feed(id int32) {
	token, ok := s.t.IDToToken(id)
	if !ok || s.skipSpecial && s.t.added.special[token] {
		return
	}
	s.steps.push(chunk{text: token})
}
