package tokenizer

import (
	"fmt"
	"sync"
)

// The tokens of the built-in tokenizer after the 256 bytes.
const (
	BuiltinEndOfText int32 = 256 + iota // <|endoftext|>
	BuiltinIMStart                      // <|im_start|>
	BuiltinIMEnd                        // <|im_end|>
)

// chatML is the chat template of tokenizers that WriteByteLevel writes.
const chatML = `{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// builtinJSON returns the built-in tokenizer.json.
func builtinJSON() ([]byte, error) {
	type object = map[string]any
	vocab := make(map[string]int, 256)
	for b := range 256 {
		vocab[string(byteRune(byte(b)))] = b
	}
	byteLevel := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
	return tokenizerJSON(vocab, [][2]string{}, byteLevel, byteLevel)
}

// Builtin returns the byte-level tokenizer of the built-in models: ids 0 to
// 255 are the bytes, so that any text, valid UTF-8 or not, is one id for each
// byte; 256 to 258 are <|endoftext|>, <|im_start|> and <|im_end|>.
func Builtin() *Tokenizer { return builtin() }

var builtin = sync.OnceValue(func() *Tokenizer {
	data, err := builtinJSON()
	if err != nil {
		panic("BUG: built-in tokenizer: " + err.Error())
	}
	t, err := Parse(data)
	if err != nil {
		panic("BUG: built-in tokenizer: " + err.Error())
	}
	return t
})

// WriteByteLevel writes the built-in tokenizer to dir as tokenizer.json and
// tokenizer_config.json, with ChatML as its chat template.
func WriteByteLevel(dir string) error {
	data, err := builtinJSON()
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	return Write(dir, data)
}
