package chat

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kvlend/kvlend/engine/chat/jinja"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

// modelDir writes files into a new directory.
func modelDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoad(t *testing.T) {
	in := Input{Messages: []Message{{Role: "user", Content: "x"}}}
	tools := in
	tools.Tools = []json.RawMessage{json.RawMessage(`{"a": 1}`)}
	for name, c := range map[string]struct {
		files map[string]string
		in    Input
		want  string
	}{
		"config":      {map[string]string{"tokenizer_config.json": `{"chat_template": "{{ bos_token }}{{ messages[0].content }}", "bos_token": "<s>"}`}, in, "<s>x"},
		"token":       {map[string]string{"tokenizer_config.json": `{"chat_template": "{{ eos_token }}{{ bos_token is defined }}", "eos_token": {"content": "</s>", "lstrip": false}, "bos_token": null}`}, in, "</s>False"},
		"file":        {map[string]string{"tokenizer_config.json": `{"chat_template": "no", "bos_token": "<s>"}`, "chat_template.jinja": "{{ bos_token }}!"}, in, "<s>!"},
		"file alone":  {map[string]string{"chat_template.jinja": "{{ messages | length }}"}, in, "1"},
		"list":        {map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "{{ tools | tojson }}"}]}`}, in, "d"},
		"list, tools": {map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "{{ tools | tojson }}"}]}`}, tools, `[{"a": 1}]`},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Load(modelDir(t, c.files))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := tmpl.Render(c.in); err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestLoadErrors(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
		none  bool
	}{
		"empty":      {nil, "no chat template", true},
		"no entry":   {map[string]string{"tokenizer_config.json": `{}`}, "no chat template", true},
		"null":       {map[string]string{"tokenizer_config.json": `{"chat_template": null}`}, "no chat template", true},
		"no default": {map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "rag", "template": "x"}]}`}, "called default", true},
		"number":     {map[string]string{"tokenizer_config.json": `{"chat_template": 5}`}, "must be a string or a list", false},
		"JSON":       {map[string]string{"tokenizer_config.json": `{`}, "tokenizer_config.json", false},
		"token":      {map[string]string{"tokenizer_config.json": `{"bos_token": 5}`}, "bos_token is 5", false},
		"syntax":     {map[string]string{"chat_template.jinja": "\n{{ x"}, "line 2", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(modelDir(t, c.files))
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrNoTemplate) != c.none {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

// The tokenizer's file of a new model and the built-in template agree.
func TestLoadWritten(t *testing.T) {
	dir := t.TempDir()
	if err := tokenizer.WriteByteLevel(dir); err != nil {
		t.Fatal(err)
	}
	tmpl, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	in := Input{Messages: []Message{{Role: "user", Content: "x"}, {Role: "assistant", Content: "y"}}, AddGenerationPrompt: true}
	want, err := Builtin().Render(in)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tmpl.Render(in); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestMessageJSON(t *testing.T) {
	tmpl, err := New("{% for m in messages %}{{ m | tojson }}{% endfor %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		`{"role": "user", "content": "x"}`: `{"role": "user", "content": "x"}`,
		`{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "role": "user"}`: `{"role": "user", "content": "a\nb"}`,
		`{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}`:             `{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}`,
		`{"role": "assistant", "content": null, "z": {"b": 1, "a": 2}, "name": "n"}`:                  `{"role": "assistant", "content": null, "z": {"b": 1, "a": 2}, "name": "n"}`,
	} {
		var m Message
		if err := json.Unmarshal([]byte(in), &m); err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got, err := tmpl.Render(Input{Messages: []Message{m}}); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", in, got, err, want)
		}
	}
	for _, bad := range []string{`[]`, `{}`, `{"role": 5}`, `{"role": "u", "content": 5}`, `"x"`} {
		var m Message
		if err := json.Unmarshal([]byte(bad), &m); err == nil {
			t.Errorf("%s became %+v", bad, m)
		}
	}
}

func TestRenderErrors(t *testing.T) {
	tmpl, err := New("{{ messages[0].content + '' }}{% for i in range(n) %}{% endfor %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		in   Input
		want string
	}{
		"null content":  {Input{Messages: []Message{{Role: "user"}}, Extra: map[string]any{"n": 1}}, "cannot apply \"+\" to none and a string"},
		"bad extra":     {Input{Messages: []Message{{Role: "user", Content: "x"}}, Extra: map[string]any{"n": make(chan int)}}, "n: cannot use a value of type chan int"},
		"bad tool":      {Input{Messages: []Message{{Role: "user", Content: "x"}}, Tools: []json.RawMessage{[]byte("{")}}, "tools[0]"},
		"no messages":   {Input{Extra: map[string]any{"n": 1}}, "line 1"},
		"long loop":     {Input{Messages: []Message{{Role: "user", Content: "x"}}, Extra: map[string]any{"n": int64(1) << 60}}, "limit"},
		"bad content":   {Input{Messages: []Message{{Role: "user", Content: struct{}{}}}}, "messages[0]: content"},
		"unknown count": {Input{Messages: []Message{{Role: "user", Content: "x"}}}, "range takes"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tmpl.Render(c.in)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q, %v, want an error with %q", got, err, c.want)
			}
			if errors.Is(err, jinja.ErrLimit) != (name == "long loop") {
				t.Errorf("ErrLimit is wrong for %v", err)
			}
		})
	}
}

func TestConcurrentRender(t *testing.T) {
	tmpl := Builtin()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				if _, err := tmpl.Render(Input{Messages: []Message{{Role: "user", Content: "x"}}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkRender(b *testing.B) {
	source, err := os.ReadFile("testdata/templates/qwen3.jinja")
	if err != nil {
		b.Fatal(err)
	}
	tmpl, err := New(string(source), nil)
	if err != nil {
		b.Fatal(err)
	}
	var in Input
	for range 100 {
		in.Messages = append(in.Messages, Message{Role: "user", Content: "Hello"}, Message{Role: "assistant", Content: "World"})
	}
	for b.Loop() {
		if _, err := tmpl.Render(in); err != nil {
			b.Fatal(err)
		}
	}
}
