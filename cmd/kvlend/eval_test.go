package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/internal/dialogue"
	"github.com/kvlend/kvlend/internal/recall"
)

func runEval(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	return runCommand(t, evalCmd(), append([]string{"recall"}, args...)...)
}

// forgetful is a server of the OpenAI protocol whose model was never told
// anything. It is kvlend's if it tells a role, and busy for a while.
type forgetful struct {
	role   string
	count  bool // has /tokenize
	answer string
	busy   atomic.Int32 // requests that are refused at first
	most   int          // messages
}

func (s *forgetful) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reply := func(status int, v any) {
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(v)
	}
	fails := func(status int, code string) {
		reply(status, openai.ErrorBody{Error: openai.Error{Message: "so it is", Code: &code}})
	}
	switch {
	case r.URL.Path == "/v1/models":
		reply(http.StatusOK, openai.ModelList{Data: []openai.ModelCard{{ID: "other", Role: s.role}, {ID: "m", Role: "master"}}})
	case r.URL.Path == "/tokenize" && s.count:
		var q openai.TokenizeRequest
		json.NewDecoder(r.Body).Decode(&q)
		reply(http.StatusOK, openai.TokenizeResponse{Count: 2 * dialogue.Estimate(*q.Prompt)})
	case r.URL.Path == "/v1/chat/completions":
		var q openai.ChatRequest
		json.NewDecoder(r.Body).Decode(&q)
		switch {
		case s.busy.Add(-1) >= 0:
			w.Header().Set("Retry-After", "0")
			fails(http.StatusServiceUnavailable, "overloaded")
		case s.most > 0 && len(q.Messages) > s.most:
			fails(http.StatusBadRequest, "context_length_exceeded")
		case *q.Temperature != 0 || *q.MaxTokens < 1 || len(q.Messages)%2 != 1:
			fails(http.StatusBadRequest, "unexpected")
		default:
			res := openai.ChatResponse{Choices: []openai.ChatChoice{{Message: openai.ChatMessage{Content: s.answer}}}}
			res.Usage.PromptTokens, res.Usage.PromptTokensDetails.CachedTokens = 100, 60
			if len(q.Kvlend) > 0 {
				res.Kvlend = &openai.Kvlend{Account: &openai.Account{LogitsHash: "7"}, Receipt: &openai.Receipt{Local: 20, Borrowed: 40}}
			}
			reply(http.StatusOK, res)
		}
	default:
		fails(http.StatusNotFound, "not_found")
	}
}

func serveRecall(t *testing.T, s *forgetful) (url string) {
	t.Helper()
	if s.answer == "" {
		s.answer = "You have not told me that."
	}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return h.URL
}

// brief are flags of a run that takes no time.
func brief(url string, more ...string) []string {
	return append([]string{"--url", url, "--lengths", "500,1500", "--facts", "1,4", "--dialogues", "2", "--probes", "8"}, more...)
}

func TestEvalRecall(t *testing.T) {
	url := serveRecall(t, &forgetful{role: "master", count: true})
	dir := t.TempDir()
	before, picture := filepath.Join(dir, "before.json"), filepath.Join(dir, "map.svg")
	data, errs, code := runEval(t, brief(url, "--json")...)
	if code != exitOK || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	r, err := recall.Read(strings.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	u := r.Underneath
	if r.Model != "other" || r.All.Asked == 0 || r.Single.Right != 0 || r.False.False != 0 || r.Probes[0].Hash != "7" || u.Local*2 != u.Borrowed {
		t.Errorf("model %s, all %+v, underneath %+v", r.Model, r.All, u)
	}
	if err := os.WriteFile(before, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	// The yardstick gives the flags that are missing here.
	out, errs, code := runEval(t, "--url", url, "--compare", before, "--svg", picture, "--max-false", "0")
	if code != exitOK || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	for _, want := range []string{"unknown", "Against the yardstick, of other: ", " answers the same, 0 changed; 0 were asked only here, 0 only there\n", "60.0 % not computed again"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	if svg, err := os.ReadFile(picture); err != nil || !strings.HasSuffix(string(svg), "</svg>\n") {
		t.Errorf("%v, %.100s", err, svg)
	}
	other := serveRecall(t, &forgetful{role: "master", count: true, answer: "It is red."})
	out, errs, code = runEval(t, "--url", other, "--compare", before)
	if code != exitFailed || !strings.Contains(errs, "answers are not those of the yardstick") || !strings.Contains(out, `is  false   "It is red."`) {
		t.Errorf("exit %d: %s\n%s", code, errs, out)
	}
}

func TestRecallMetrics(t *testing.T) {
	const text = `# HELP kvlend_units Elastic units by peer and state.
# TYPE kvlend_units gauge
kvlend_units{model_name="m",peer="w",state="lent"} 5
kvlend_units{model_name="w",peer="m",state="lent"} 5
kvlend_units{model_name="w",peer="m",state="local"} 29
kvlend_units_granted_total{model_name="w",peer="m"} 7
kvlend_units_granted_total{model_name="m",peer="w"} 7
kvlend_borrowed_loaded_bytes_total{model_name="m"} 1.5e+06
kvlend_evacuated_blocks_total{destination="borrowed",model_name="m"} 3
kvlend_evacuated_blocks_total{destination="local",model_name="m"} 4
process_cpu_seconds_total 1.5
`
	roles := map[string]string{"m": "master", "w": "worker"}
	got, err := parseRecallMetrics(strings.NewReader(text), roles)
	if want := (map[string]recall.System{"w": {UnitsLent: 5, Granted: 7}, "m": {Loaded: 1500000, Moved: 7}}); err != nil || !maps.Equal(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got, err := parseRecallMetrics(strings.NewReader("vllm_units{a=\"b\"} 1\n"), roles); got != nil || err != nil {
		t.Errorf("%+v, %v of another server", got, err)
	}
	if _, err := parseRecallMetrics(strings.NewReader("kvlend_units{a=\"b\"} many\n"), roles); err == nil || !strings.Contains(err.Error(), "many") {
		t.Errorf("%v", err)
	}
}

func TestEvalRecallThresholds(t *testing.T) {
	url := serveRecall(t, &forgetful{role: "master", count: true})
	_, errs, code := runEval(t, brief(url, "--min-accuracy", "0.9")...)
	if code != exitFailed || !strings.Contains(errs, "of the answers are right, at least 90.0 % are wanted") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if _, errs, code := runEval(t, brief(url, "--kinds", "unknown", "--min-accuracy", "1")...); code != exitOK {
		t.Errorf("exit %d: %s", code, errs)
	}
	talks := serveRecall(t, &forgetful{answer: "It is red."})
	_, errs, code = runEval(t, brief(talks, "--max-false", "0.05")...)
	if code != exitFailed || !strings.Contains(errs, "100.0 % of the questions about what was never told have an answer, at most 5.0 % are wanted") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// TestEvalRecallOfOtherServers: one that is not kvlend's, is busy at first, and
// tells only when asked how long its context is.
func TestEvalRecallOfOtherServers(t *testing.T) {
	s := &forgetful{most: 40}
	s.busy.Store(1)
	out, errs, code := runEval(t, brief(serveRecall(t, s), "--model", "other", "--dialogues", "1")...)
	if code != exitOK || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	for _, want := range []string{"The server does not count tokens", "longer than the model's context: so it is", "no fit"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
}

func TestEvalRecallRefuses(t *testing.T) {
	url := serveRecall(t, &forgetful{role: "master", count: true})
	notOne := file(t, "x.json", "{}")
	data, errs, code := runEval(t, brief(url, "--json")...)
	if code != exitOK {
		t.Fatal(errs)
	}
	before := file(t, "before.json", data)
	for want, args := range map[string][]string{
		"lengths has 10, want 224 to":                           {"--lengths", "10"},
		`kinds has "guess", want some of`:                       {"--kinds", "guess"},
		"--min-accuracy is 99: want 0 to 1":                     {"--min-accuracy", "99"},
		"--max-false is -1: want 0 to 1":                        {"--max-false", "-1"},
		"want one of them":                                      {"--url", url, "-c", "x.yaml"},
		`--model is "nobody": the configuration has no such`:    {"--model", "nobody"},
		`--model is "nobody": the server has ["other" "m"]`:     {"--url", url, "--model", "nobody"},
		"no such file":                                          {"-c", "/does/not/exist.yaml"},
		"--compare " + notOne + ": recall: no result of kvlend": {"--compare", notOne},
		"the seed is 2, and 1 of the other run":                 {"--compare", before, "--seed", "2"},
		"it must be an address":                                 {"--url", "nowhere"},
		"/does/not/exist/a.svg":                                 {"--svg", "/does/not/exist/a.svg"},
		"takes no arguments":                                    {"now"},
	} {
		if _, errs, code := runEval(t, args...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%v: exit %d: %s, want %q", args, code, errs, want)
		}
	}
	if _, errs, code := runEval(t, "--url", "http://127.0.0.1:1"); code != exitFailed || !strings.Contains(errs, "list the server's models") {
		t.Errorf("exit %d: %s", code, errs)
	}
}
