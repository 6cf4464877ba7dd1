package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/bench/serve"
)

// TestPromptsFlag: a wrong kind of prompts is told with the flag, the value and
// what is accepted, before anything is started.
func TestPromptsFlag(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"unknown": {[]string{"--prompts", "poems"}, []string{"--prompts", `"poems"`, `"dialogue"`, `"random"`}},
		"empty":   {[]string{"--prompts", ""}, []string{"--prompts", `""`, `"dialogue"`, `"random"`}},
		"both":    {[]string{"--prompts", "dialogue", "--vocab", "9"}, []string{"--vocab", "--prompts", `"dialogue"`}},
	} {
		_, errs, code := runCommand(t, benchServeCmd(), tc.args...)
		if code != exitUsage {
			t.Errorf("%s: exit %d, want %d", name, code, exitUsage)
		}
		for _, want := range tc.want {
			if !strings.Contains(errs, want) {
				t.Errorf("%s: %q does not say %s", name, errs, want)
			}
		}
	}
}

// TestReadPrompts: the default is the benchmark's to choose, but for a vocabulary
// that somebody names.
func TestReadPrompts(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want serve.Prompts
	}{
		{nil, ""},
		{[]string{"--prompts", "dialogue"}, serve.PromptsDialogue},
		{[]string{"--prompts", "random"}, serve.PromptsRandom},
		{[]string{"--prompts", "random", "--vocab", "9"}, serve.PromptsRandom},
		{[]string{"--vocab", "9"}, serve.PromptsRandom},
	} {
		f := &serveFlags{}
		c := &cobra.Command{}
		f.register(c.Flags())
		if err := c.ParseFlags(tc.args); err != nil {
			t.Fatal(err)
		}
		if got, err := f.readPrompts(c.Flags()); err != nil || got != tc.want {
			t.Errorf("%q: %q, %v; want %q", tc.args, got, err, tc.want)
		}
	}
}
