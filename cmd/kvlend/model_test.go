package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/internal/dialogue"
)

func runModel(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	return runCommand(t, modelCmd(), args...)
}

func TestModelDialogues(t *testing.T) {
	args := []string{"dialogues", "--seed", "4", "--count", "3", "--tokens", "600", "--facts", "2", "--kind", "corrected"}
	out, errs, code := runModel(t, args...)
	if code != exitOK || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines, want 3", len(lines))
	}
	for n, line := range lines {
		var d dialogue.Dialogue
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatal(err)
		}
		if last := d.Questions[len(d.Questions)-1]; last.Kind != dialogue.Corrected || last.Facts != 2 {
			t.Errorf("dialogue %d ends with %+v", n, last)
		}
	}
	// The same dialogue can be had by its number.
	if again, _, _ := runModel(t, append(args, "--first", "2", "--count", "1")...); again != lines[2]+"\n" {
		t.Errorf("dialogue 2 is %s, want %s", again, lines[2])
	}
}

func TestModelTokenizerAndRows(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tok")
	if out, errs, code := runModel(t, "tokenizer", dir, "--vocab", "600", "--count", "50"); code != exitOK || !strings.Contains(out, "600 entries") {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	out, errs, code := runModel(t, "dialogues", "--tokenizer", dir, "--rows", "--tokens", "300", "--count", "5")
	if code != exitOK || len(out) != 5*300*2 {
		t.Fatalf("exit %d: %s, %d bytes, want 5 rows of 300 tokens", code, errs, len(out))
	}
}

func TestModelDialoguesRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"--rows needs --tokenizer":        {"--rows"},
		"tokens is 20, want at least 224": {"--tokens", "20"},
		`kind is "guess", want one of`:    {"--kind", "guess"},
	} {
		_, errs, code := runModel(t, append([]string{"dialogues"}, args...)...)
		if code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%v: exit %d, %q, want %q", args, code, errs, want)
		}
	}
	if _, errs, code := runModel(t, "dialogues", "--tokenizer", t.TempDir()); code != exitRefused {
		t.Errorf("a directory without a tokenizer: exit %d, %q", code, errs)
	}
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	for _, args := range [][]string{{"dialogues", "--tokenizer", nowhere}, {"inspect", nowhere}, {"verify", nowhere}} {
		if _, errs, code := runModel(t, args...); code != exitUsage || !strings.Contains(errs, nowhere) {
			t.Errorf("%v: exit %d, %q", args, code, errs)
		}
	}
	bad := filepath.Join(t.TempDir(), "bad")
	if _, errs, code := runModel(t, "new", bad, "--like", "cedar"); code != exitOK {
		t.Fatalf("exit %d, %q", code, errs)
	}
	if err := os.WriteFile(filepath.Join(bad, "tokenizer_config.json"), []byte(`{"chat_template": "{% bad"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := runModel(t, "verify", bad); code != exitRefused || !strings.Contains(errs, "chat template") {
		t.Errorf("a damaged chat template: exit %d, %q", code, errs)
	}
	for _, check := range []string{"inspect", "verify"} {
		if _, errs, code := runModel(t, check, t.TempDir()); code != exitRefused {
			t.Errorf("%s of an empty directory: exit %d, %q", check, code, errs)
		}
	}
	if _, errs, code := runModel(t, "tokenizer", t.TempDir(), "--vocab", "20"); code != exitUsage || !strings.Contains(errs, "want 259 to 65536") {
		t.Errorf("a vocabulary of 20: exit %d, %q", code, errs)
	}
}
