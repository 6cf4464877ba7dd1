package dialogue

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/engine/chat"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

// trained is a small tokenizer of dialogues.
func trained(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	data, err := tokenizer.Train(func(yield func(string) bool) {
		for n := range uint64(20) {
			d, err := Generate(1, n, Options{Tokens: 500})
			noError(t, err)
			for _, m := range d.Messages {
				if !yield(m.Content) {
					return
				}
			}
		}
	}, 500)
	noError(t, err)
	tok, err := tokenizer.Parse(data)
	noError(t, err)
	return tok
}

// TestRowsAreWhatAServedModelSees compares a row with what the chat template
// and the tokenizer make of the same messages.
func TestRowsAreWhatAServedModelSees(t *testing.T) {
	tok := trained(t)
	e, err := NewEncoder(tok)
	noError(t, err)
	const size = 900
	d, err := Generate(3, 4, Options{Tokens: size, Count: e.Count})
	noError(t, err)
	row, err := e.AppendRow(nil, d, size)
	noError(t, err)
	must(t, len(row) == 2*size, "the row has %d bytes", len(row))
	var in chat.Input
	for _, m := range d.Messages {
		in.Messages = append(in.Messages, chat.Message{Role: m.Role, Content: m.Content})
	}
	prompt, err := chat.Builtin().Render(in)
	noError(t, err)
	want, err := tok.Encode(prompt, tokenizer.EncodeOptions{ParseSpecial: true})
	noError(t, err)
	must(t, len(want) == d.Tokens, "the dialogue says that it has %d tokens, it has %d", d.Tokens, len(want))

	var ids, answers []int32
	for i := range size {
		x := binary.LittleEndian.Uint16(row[2*i:])
		id, class := int32(x&(1<<classShift-1)), Class(x>>classShift)
		must(t, (class == ClassPad) == (i >= len(want)), "element %d has class %d", i, class)
		if class != ClassPad {
			ids = append(ids, id)
		}
		if class == ClassAnswer {
			answers = append(answers, id)
		}
	}
	must(t, slices.Equal(ids, want), "the row's ids are not the prompt's")
	var told strings.Builder
	for _, q := range d.Questions {
		told.WriteString(q.Answer + "<|im_end|>")
	}
	must(t, tok.Decode(answers, false) == told.String(), "the answers in the row are %q", tok.Decode(answers, false))

	_, err = e.AppendRow(nil, d, 100)
	must(t, err != nil && strings.Contains(err.Error(), "longer than its row of 100"), "%v", err)
}

func TestEncoderNeedsChatML(t *testing.T) {
	data := `{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": [],
		"pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"}}`
	tok, err := tokenizer.Parse([]byte(data))
	noError(t, err)
	_, err = NewEncoder(tok)
	must(t, err != nil && strings.Contains(err.Error(), "no special token <|im_start|>"), "%v", err)
}
