// Package chat turns the messages of a conversation into the prompt that a
// model was trained on, by rendering the chat template that comes with it.
// Rendering is byte for byte what Hugging Face's apply_chat_template returns.
package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/kvlend/kvlend/engine/chat/jinja"
)

// maxFile bounds the files that Load reads.
const maxFile = 16 << 20

// ErrNoTemplate is wrapped by Load's error for a model that has no chat
// template.
var ErrNoTemplate = errors.New("the model has no chat template")

// chatML is the built-in template.
const chatML = `{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// Template is a model's chat template. It is immutable and safe for
// concurrent use.
type Template struct {
	plain     *jinja.Template
	withTools *jinja.Template // what renders inputs with tools
	tokens    map[string]any  // bos_token and the like
	now       func() time.Time
	limits    jinja.Limits
}

// Builtin returns ChatML, the template of the built-in models.
func Builtin() *Template {
	t, err := New(chatML, nil)
	if err != nil {
		panic("BUG: built-in chat template: " + err.Error())
	}
	return t
}

// New parses a template; tokens are the special tokens by their names, such
// as bos_token.
func New(source string, tokens map[string]string) (*Template, error) {
	parsed, err := jinja.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	t := &Template{plain: parsed, withTools: parsed, tokens: map[string]any{}, now: time.Now, limits: jinja.DefaultLimits}
	for k, v := range tokens {
		t.tokens[k] = v
	}
	return t, nil
}

// configJSON is the part of tokenizer_config.json that concerns templates.
type configJSON struct {
	ChatTemplate json.RawMessage `json:"chat_template"`
}

// tokenNames are the special tokens that templates may name.
var tokenNames = [...]string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// Load reads the chat template of the model in dir: chat_template.jinja if
// there is one, else chat_template in tokenizer_config.json, a string or a
// list of named templates of which "default" and "tool_use" count.
func Load(dir string) (*Template, error) {
	config, err := readFile(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	tokens := map[string]string{}
	var c configJSON
	if err == nil {
		if err := json.Unmarshal(config, &c); err != nil {
			return nil, fmt.Errorf("chat template: tokenizer_config.json: %w", err)
		}
		if tokens, err = specialTokens(config); err != nil {
			return nil, fmt.Errorf("chat template: tokenizer_config.json: %w", err)
		}
	}
	source, err := readFile(filepath.Join(dir, "chat_template.jinja"))
	switch {
	case err == nil:
		return New(string(source), tokens)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("chat template: %w", err)
	}
	return fromConfig(c.ChatTemplate, tokens, dir)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is larger than %d MiB", path, maxFile>>20)
	}
	return data, err
}

// specialTokens reads the tokens, each a string or an object with content.
func specialTokens(config []byte) (map[string]string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(config, &fields); err != nil {
		return nil, err
	}
	tokens := map[string]string{}
	for _, name := range tokenNames {
		raw, ok := fields[name]
		if !ok || bytes.Equal(raw, []byte("null")) {
			continue
		}
		var object struct {
			Content *string `json:"content"`
		}
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			if err := json.Unmarshal(raw, &object); err != nil || object.Content == nil {
				return nil, fmt.Errorf("%s is %s: it must be a string or an object with a content", name, raw)
			}
			text = *object.Content
		}
		tokens[name] = text
	}
	return tokens, nil
}

func fromConfig(raw json.RawMessage, tokens map[string]string, dir string) (*Template, error) {
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil, fmt.Errorf("%w: neither chat_template.jinja nor chat_template in tokenizer_config.json is in %s", ErrNoTemplate, dir)
	}
	var source string
	if json.Unmarshal(raw, &source) == nil {
		return New(source, tokens)
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, errors.New("chat template: chat_template must be a string or a list of templates with names")
	}
	named := map[string]*Template{}
	for _, each := range list {
		t, err := New(each.Template, tokens)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", each.Name, err)
		}
		named[each.Name] = t
	}
	t := named["default"]
	if t == nil {
		return nil, fmt.Errorf("%w: chat_template has no template called default", ErrNoTemplate)
	}
	if tools := named["tool_use"]; tools != nil {
		t.withTools = tools.plain
	}
	return t, nil
}

// Message is one message of a conversation.
type Message struct {
	Role string
	// Content is a string, nil, or a list of parts as in the OpenAI API.
	Content any
	// More are further fields, such as name, tool_calls, tool_call_id and
	// reasoning_content, in order. A json.RawMessage keeps its objects' order.
	More []Field
}

// Field is a named value.
type Field struct {
	Name  string
	Value any
}

// UnmarshalJSON reads a message of the OpenAI API, with all its fields in
// their order. Content that is a list of text parts only becomes one string,
// the texts joined by newlines, since templates of text models expect that.
func (m *Message) UnmarshalJSON(raw []byte) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return errors.New("message must be an object")
	}
	*m = Message{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return err
		}
		switch key {
		case "role":
			if err := json.Unmarshal(value, &m.Role); err != nil {
				return errors.New("role must be a string")
			}
		case "content":
			if m.Content, err = content(value); err != nil {
				return err
			}
		default:
			m.More = append(m.More, Field{key.(string), value})
		}
	}
	if m.Role == "" {
		return errors.New("role is missing")
	}
	return nil
}

func content(raw json.RawMessage) (any, error) {
	var text *string
	if json.Unmarshal(raw, &text) == nil {
		if text == nil {
			return nil, nil
		}
		return *text, nil
	}
	var parts []struct {
		Type string
		Text *string
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return nil, errors.New("content must be a string, null or a list of parts")
	}
	var all []byte
	for i, p := range parts {
		if p.Type != "text" || p.Text == nil {
			return raw, nil // the template may know what to do with it
		}
		if i > 0 {
			all = append(all, '\n')
		}
		all = append(all, *p.Text...)
	}
	return string(all), nil
}

// Input is what a template renders.
type Input struct {
	Messages []Message
	// Tools are the OpenAI API's tools, whose fields keep their order.
	Tools []json.RawMessage
	// AddGenerationPrompt ends the prompt with the beginning of an answer.
	AddGenerationPrompt bool
	// Extra are more variables, such as enable_thinking: JSON's types,
	// integers, json.RawMessage, and slices and maps of these.
	Extra map[string]any
}

// Render returns the prompt. Errors are the template's own complaint (a
// *jinja.RaisedError), a template that exceeds its limits (jinja.ErrLimit),
// or a fault in the template or its input, with the template's line.
func (t *Template) Render(in Input) (string, error) {
	vars, err := t.variables(in)
	if err != nil {
		return "", fmt.Errorf("chat template: %w", err)
	}
	tmpl := t.plain
	if len(in.Tools) > 0 {
		tmpl = t.withTools
	}
	out, err := tmpl.Render(vars, t.now(), t.limits)
	if err != nil {
		return "", fmt.Errorf("chat template: %w", err)
	}
	return out, nil
}

func (t *Template) variables(in Input) (map[string]any, error) {
	vars := maps.Clone(t.tokens)
	vars["documents"] = nil
	vars["tools"] = nil
	for name, v := range in.Extra {
		value, err := jinja.FromGo(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		vars[name] = value
	}
	vars["add_generation_prompt"] = in.AddGenerationPrompt
	messages := &jinja.List{}
	for i, m := range in.Messages {
		d, err := m.value()
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		messages.Items = append(messages.Items, d)
	}
	vars["messages"] = messages
	if len(in.Tools) > 0 {
		tools := &jinja.List{}
		for i, raw := range in.Tools {
			v, err := jinja.FromGo(raw)
			if err != nil {
				return nil, fmt.Errorf("tools[%d]: %w", i, err)
			}
			tools.Items = append(tools.Items, v)
		}
		vars["tools"] = tools
	}
	return vars, nil
}

func (m *Message) value() (*jinja.Dict, error) {
	d := jinja.NewDict()
	d.Set("role", m.Role)
	for _, f := range append([]Field{{"content", m.Content}}, m.More...) {
		v, err := jinja.FromGo(f.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		d.Set(f.Name, v)
	}
	return d, nil
}
