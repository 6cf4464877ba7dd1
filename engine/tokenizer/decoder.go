package tokenizer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decoderSpec is one step of the decoder, in order.
type decoderSpec struct {
	kind    string
	mark    metaspace // Metaspace
	content string    // Strip: one character; Replace: the new text
	start   int       // Strip
	stop    int       // Strip
	replace *replace  // Replace
}

func parseDecoder(raw json.RawMessage, depth int) ([]decoderSpec, error) {
	if isNull(raw) {
		return nil, nil
	}
	kind, err := component(raw, depth)
	if err != nil {
		return nil, err
	}
	d := decoderSpec{kind: kind}
	switch kind {
	case "ByteLevel", "ByteFallback", "Fuse":
	case "Metaspace":
		d.mark, err = parseMetaspace(raw)
	case "Replace":
		d.replace, err = parseReplace(raw)
	case "Strip":
		var c struct {
			Content     string `json:"content"`
			Start, Stop int
		}
		if err := unmarshal(raw, kind, &c); err != nil {
			return nil, err
		}
		if utf8.RuneCountInString(c.Content) != 1 || c.Start < 0 || c.Stop < 0 {
			return nil, fmt.Errorf("in Strip: content is %q, start %d, stop %d: they must be one character and at least 0", c.Content, c.Start, c.Stop)
		}
		d.content, d.start, d.stop = c.Content, c.Start, c.Stop
	case "Sequence":
		var c struct {
			Decoders []json.RawMessage `json:"decoders"`
		}
		if err := unmarshal(raw, kind, &c); err != nil {
			return nil, err
		}
		// A Sequence of none joins without spaces, unlike no decoder; so does Fuse.
		all := []decoderSpec{}
		for _, r := range c.Decoders {
			part, err := parseDecoder(r, depth+1)
			if err != nil {
				return nil, err
			}
			all = append(all, part...)
		}
		if len(all) == 0 {
			all = append(all, decoderSpec{kind: "Fuse"})
		}
		return all, nil
	default:
		return nil, unsupported(kind)
	}
	return []decoderSpec{d}, err
}

// piece applies what the step does to a token in the middle of a text.
func (d *decoderSpec) piece(token string) string {
	switch d.kind {
	case "ByteLevel":
		if raw, ok := unmapBytes(token); ok {
			return raw
		}
	case "ByteFallback":
		if b, ok := fallbackByte(token); ok {
			return string([]byte{b})
		}
	case "Metaspace":
		return strings.ReplaceAll(token, d.mark.mark, " ")
	case "Replace":
		return d.replace.text(token)
	}
	return token
}

// fallbackByte returns the byte that a token such as <0x0A> stands for.
func fallbackByte(token string) (byte, bool) {
	if len(token) != 6 || !strings.HasPrefix(token, "<0x") || token[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(token[3:5], 16, 8)
	return byte(b), err == nil
}

// chunk is text on its way through the steps: a token or, if more is set, the
// continuation of the one before.
type chunk struct {
	text string
	more bool
}

// step is a decoder step at work. It hands what is certain to the next one.
type step interface {
	push(chunk)
	flush()
}

// newSteps builds the chain that ends in out.
func newSteps(specs []decoderSpec, out func(chunk)) step {
	var next step = &sink{out}
	if specs == nil {
		return &joiner{next: next}
	}
	// Built from the end, but what a step receives depends on those before it.
	fused := make([]bool, len(specs))
	for i := 1; i < len(specs); i++ {
		fused[i] = fused[i-1] || specs[i-1].kind == "Fuse" || specs[i-1].kind == "ByteLevel"
	}
	for i := len(specs) - 1; i >= 0; i-- {
		d := &specs[i]
		switch d.kind {
		case "Fuse":
			next = &fuser{next: next}
			continue // takes continuations as they are
		case "ByteLevel":
			next = &byteDecoder{next: next}
		case "ByteFallback":
			next = &fallbackDecoder{next: next}
		case "Strip":
			next = &stripper{spec: d, next: next}
			if d.stop == 0 {
				continue // takes continuations as they are
			}
		case "Metaspace":
			next = &mapper{next: next, apply: func(s string, first bool) string {
				if first && d.mark.scheme != "never" {
					return strings.ReplaceAll(s, d.mark.mark, "")
				}
				return d.piece(s)
			}}
		default:
			next = &mapper{next: next, apply: func(s string, _ bool) string { return d.piece(s) }}
		}
		if fused[i] {
			next = &collector{next: next}
		}
	}
	return next
}

type sink struct{ out func(chunk) }

func (s *sink) push(c chunk) { s.out(c) }
func (s *sink) flush()       {}

// joiner is what happens without a decoder: spaces between tokens.
type joiner struct {
	next step
	some bool
}

func (j *joiner) push(c chunk) {
	if j.some {
		c = chunk{" " + c.text, true}
	}
	j.some = true
	j.next.push(c)
}

func (j *joiner) flush() { j.next.flush() }

// mapper rewrites token by token.
type mapper struct {
	next  step
	apply func(s string, first bool) string
	some  bool
}

func (m *mapper) push(c chunk) {
	c.text = m.apply(c.text, !m.some)
	m.some = true
	m.next.push(c)
}

func (m *mapper) flush() { m.next.flush() }

// fuser makes one token of all.
type fuser struct {
	next step
	some bool
}

func (f *fuser) push(c chunk) {
	c.more = f.some
	f.some = true
	f.next.push(c)
}

func (f *fuser) flush() { f.next.flush() }

// collector gathers a fused token for a step that needs the whole of it; such
// decoders cannot stream.
type collector struct {
	next step
	text strings.Builder
	some bool
}

func (c *collector) push(x chunk) {
	if !x.more && c.some {
		c.next.push(chunk{text: c.text.String()})
		c.text.Reset()
	}
	c.some = true
	c.text.WriteString(x.text)
}

func (c *collector) flush() {
	if c.some {
		c.next.push(chunk{text: c.text.String()})
	}
	c.next.flush()
}

// stripper removes up to start and stop leading and trailing characters of a
// token. With stop 0 it takes continuations.
type stripper struct {
	spec *decoderSpec
	next step
	left int // leading characters that may still go
}

func (s *stripper) push(c chunk) {
	if !c.more {
		s.left = s.spec.start
	}
	whole := c.text
	for s.left > 0 && c.text != "" {
		rest, ok := strings.CutPrefix(c.text, s.spec.content)
		if !ok {
			s.left = 0
			break
		}
		s.left--
		c.text = rest
	}
	// The two ends are cut from the whole token, independently.
	cut := len(whole)
	for range s.spec.stop {
		rest, ok := strings.CutSuffix(whole[:cut], s.spec.content)
		if !ok {
			break
		}
		cut = len(rest)
	}
	c.text = c.text[:max(0, len(c.text)-(len(whole)-cut))]
	s.next.push(c)
}

func (s *stripper) flush() { s.next.flush() }

// byteDecoder turns byte symbols into text, holding back a sequence that the
// next token may complete. It makes one token of all.
type byteDecoder struct {
	next    step
	pending []byte
	some    bool
}

func (d *byteDecoder) push(c chunk) {
	before := len(d.pending)
	for _, r := range c.text {
		b, ok := runeByte(r)
		if !ok { // such a token stands for itself
			d.pending = append(d.pending[:before], c.text...)
			break
		}
		d.pending = append(d.pending, b)
	}
	d.emit(false)
}

// emit hands on what is complete, or everything.
func (d *byteDecoder) emit(all bool) {
	n, clean := 0, true
	for n < len(d.pending) {
		size, ok, partial := sequence(d.pending[n:])
		if partial && !all {
			break
		}
		clean = clean && ok
		n += size
	}
	if n > 0 {
		text := string(d.pending[:n])
		if !clean {
			text = lossy(text)
		}
		d.next.push(chunk{text, d.some})
		d.some = true
		d.pending = d.pending[:copy(d.pending, d.pending[n:])]
	}
}

func (d *byteDecoder) flush() {
	d.emit(true)
	d.next.flush()
}

// fallbackDecoder turns runs of tokens like <0x0A> into text. One bad byte
// makes the whole run U+FFFD, so a run is held back until it ends.
type fallbackDecoder struct {
	next    step
	pending []byte
}

func (d *fallbackDecoder) push(c chunk) {
	if b, ok := fallbackByte(c.text); ok {
		d.pending = append(d.pending, b)
		return
	}
	d.emit()
	d.next.push(c)
}

func (d *fallbackDecoder) emit() {
	if len(d.pending) == 0 {
		return
	}
	if utf8.Valid(d.pending) {
		d.next.push(chunk{text: string(d.pending)})
	} else {
		for range d.pending {
			d.next.push(chunk{text: string(utf8.RuneError)})
		}
	}
	d.pending = d.pending[:0]
}

func (d *fallbackDecoder) flush() {
	d.emit()
	d.next.flush()
}
