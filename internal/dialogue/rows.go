package dialogue

import (
	"encoding/binary"
	"fmt"

	"github.com/kvlend/kvlend/engine/tokenizer"
)

// Class says what a token of a row is to a model in training.
type Class uint16

// The classes.
const (
	ClassText   Class = iota // the user's words and the marks of ChatML
	ClassReply               // the assistant's words, but for answers
	ClassAnswer              // the assistant's answer to a question
	ClassPad                 // nothing
)

// classShift is where a row's element has its class; the id is below.
const classShift = 14

// Encoder writes dialogues as rows of tokens. A row is one dialogue, so that
// attention needs no mask but the causal one; what is left of it is padding.
// An element has 16 bits, little-endian: the id in the low 14 and the Class of
// the token above. An Encoder is safe for concurrent use.
type Encoder struct {
	tok *tokenizer.Tokenizer
	pad int32
}

// NewEncoder needs a tokenizer with <|endoftext|>, which pads, the marks of
// ChatML and at most 16384 entries.
func NewEncoder(tok *tokenizer.Tokenizer) (*Encoder, error) {
	if n := tok.VocabSize(); n > 1<<classShift {
		return nil, fmt.Errorf("dialogue: the tokenizer has %d entries, want at most %d", n, 1<<classShift)
	}
	for _, name := range []string{"<|im_start|>", "<|im_end|>", "<|endoftext|>"} {
		if id, ok := tok.TokenToID(name); !ok || !tok.IsSpecial(id) {
			return nil, fmt.Errorf("dialogue: the tokenizer has no special token %s", name)
		}
	}
	pad, _ := tok.TokenToID("<|endoftext|>")
	return &Encoder{tok, pad}, nil
}

// Count is for Options.Count.
func (e *Encoder) Count(text string) int {
	ids, err := e.tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
	if err != nil {
		// Only custom patterns can fail, by taking too long.
		return Estimate(text)
	}
	return len(ids)
}

// AppendRow appends d as a row of n tokens.
func (e *Encoder) AppendRow(dst []byte, d *Dialogue, n int) ([]byte, error) {
	questions := d.Questions
	used := 0
	for i, m := range d.Messages {
		class := ClassText
		if m.Role == "assistant" {
			class = ClassReply
			if len(questions) > 0 && questions[0].Message == i {
				class, questions = ClassAnswer, questions[1:]
			}
		}
		for _, part := range []struct {
			text  string
			class Class
		}{
			{"<|im_start|>" + m.Role + "\n", ClassText},
			{m.Content + "<|im_end|>", class},
			{"\n", ClassText},
		} {
			ids, err := e.tok.Encode(part.text, tokenizer.EncodeOptions{ParseSpecial: true})
			if err != nil {
				return nil, err
			}
			for _, id := range ids {
				dst = binary.LittleEndian.AppendUint16(dst, uint16(id)|uint16(part.class)<<classShift)
			}
			used += len(ids)
		}
	}
	if used > n {
		return nil, fmt.Errorf("dialogue: a dialogue of %d tokens is longer than its row of %d", used, n)
	}
	for range n - used {
		dst = binary.LittleEndian.AppendUint16(dst, uint16(e.pad)|uint16(ClassPad)<<classShift)
	}
	return dst, nil
}
