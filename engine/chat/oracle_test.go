package chat

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvlend/kvlend/engine/chat/jinja"
)

// oracleCase is an entry of testdata/oracle.json.gz, which testdata/oracle.py
// wrote with Jinja2.
type oracleCase struct {
	Messages            []json.RawMessage
	Tools               []json.RawMessage
	AddGenerationPrompt bool `json:"add_generation_prompt"`
	Extra               map[string]json.RawMessage
	Want                map[string]json.RawMessage // by template: a string or {"error": message}
}

func loadOracle(t *testing.T) []oracleCase {
	t.Helper()
	f, err := os.Open("testdata/oracle.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var cases []oracleCase
	if err := json.NewDecoder(z).Decode(&cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 200 {
		t.Fatalf("the oracle has %d cases, want 200 at least", len(cases))
	}
	return cases
}

// oracleNow is the time that testdata/oracle.py pretends.
var oracleNow = time.Date(2025, 3, 4, 5, 6, 7, 0, time.UTC)

func TestAgainstJinja2(t *testing.T) {
	cases := loadOracle(t)
	paths, err := filepath.Glob("testdata/templates/*.jinja")
	if err != nil || len(paths) < 5 {
		t.Fatalf("templates: %v, %v", paths, err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			tmpl, err := New(string(source), map[string]string{"bos_token": "<s>", "eos_token": "</s>"})
			if err != nil {
				t.Fatal(err)
			}
			tmpl.now = func() time.Time { return oracleNow }
			for i := range cases {
				checkCase(t, tmpl, &cases[i], cases[i].Want[name])
			}
		})
	}
}

func checkCase(t *testing.T, tmpl *Template, c *oracleCase, want json.RawMessage) {
	t.Helper()
	in := Input{Tools: c.Tools, AddGenerationPrompt: c.AddGenerationPrompt, Extra: map[string]any{}}
	for _, raw := range c.Messages {
		var m Message
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		in.Messages = append(in.Messages, m)
	}
	for k, v := range c.Extra {
		in.Extra[k] = v
	}
	got, err := tmpl.Render(in)
	var text string
	var failure struct{ Error string }
	if json.Unmarshal(want, &text) == nil {
		if err != nil || got != text {
			t.Errorf("messages %s:\n got %q, %v\nwant %q", c.Messages, got, err, text)
		}
		return
	}
	if err := json.Unmarshal(want, &failure); err != nil {
		t.Fatal(err)
	}
	var raised *jinja.RaisedError
	switch {
	case err == nil:
		t.Errorf("messages %s: got %q, want the error %q", c.Messages, got, failure.Error)
	case errors.As(err, &raised) && raised.Message != failure.Error:
		t.Errorf("messages %s: got the error %q, want %q", c.Messages, raised.Message, failure.Error)
	}
}
