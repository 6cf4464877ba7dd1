package tokenizer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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
	var added []addedToken
	for i, name := range []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"} {
		added = append(added, addedToken{ID: int64(256 + i), Content: name, Special: true})
	}
	byteLevel := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
	return json.MarshalIndent(object{
		"version": "1.0", "truncation": nil, "padding": nil,
		"added_tokens": added, "normalizer": nil,
		"pre_tokenizer": byteLevel, "post_processor": nil, "decoder": byteLevel,
		"model": object{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil,
			"end_of_word_suffix": nil, "fuse_unk": false, "byte_fallback": false,
			"ignore_merges": false, "vocab": vocab, "merges": []string{},
		},
	}, "", " ")
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
	config, err := json.MarshalIndent(map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": nil, "eos_token": "<|im_end|>",
		"pad_token": "<|endoftext|>", "unk_token": nil, "chat_template": chatML,
		"clean_up_tokenization_spaces": false,
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	for name, content := range map[string][]byte{"tokenizer.json": data, "tokenizer_config.json": config} {
		if err := os.WriteFile(filepath.Join(dir, name), append(content, '\n'), 0o644); err != nil {
			return fmt.Errorf("tokenizer: %w", err)
		}
	}
	return nil
}
