package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/api/apitest"
	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/coordinator/wire"
)

// answered is what a test looks for in any of the four forms of an answer.
type answered struct {
	Usage  *openai.Usage              `json:"usage"`
	Kvlend map[string]json.RawMessage `json:"kvlend"`
}

// lastOf is the answer, or the last event of a stream before [DONE].
func lastOf(t *testing.T, body string) answered {
	t.Helper()
	if !strings.HasPrefix(body, "data: ") {
		return decode[answered](t, body)
	}
	events := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
	return decode[answered](t, strings.TrimPrefix(events[len(events)-2], "data: "))
}

// account is a process's last word with all of a receipt.
func account() *wire.Finished {
	return &wire.Finished{Reason: "stop", Tokens: 2, Prompt: 4, Cached: 3, LogitsHash: 1, Preemptions: 6, Borrowed: 7,
		QueueMS: 8.5, PrefillMS: 9.5, TotalMS: 10.5,
		Receipt: wire.Receipt{Local: 1, Borrowed: 2, Declined: 1, PredictedMS: 4.5, RecomputeMS: 5.5}}
}

const wantReceipt = `{"local":1,"borrowed":2,"host":0,"pool":0,"declined":1,"predicted_ms":4.5,"recompute_ms":5.5,` +
	`"queue_ms":8.5,"prefill_ms":9.5,"total_ms":10.5,"preemptions":6,"borrowed_blocks":7}`

// TestReceipt: every form of answer tells the cached tokens, and the receipt
// to those who ask, however they ask.
func TestReceipt(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Text: "ok"}, apitest.Step{Event: account()}))
	for _, form := range []struct{ path, body string }{
		{"/v1/chat/completions", chatBody(`,`)}, {"/v1/completions", textBody(`,`)},
		{"/v1/chat/completions", chatBody(`,"stream":true,"stream_options":{"include_usage":true},`)},
		{"/v1/completions", textBody(`,"stream":true,"stream_options":{"include_usage":true},`)},
	} {
		for _, ask := range []struct {
			field, header    string
			account, receipt bool
		}{
			{`"kvlend":{"receipt":true}`, "", false, true},
			{`"kvlend":{"receipt":false}`, "", false, false},
			{`"kvlend":{}`, "", false, false},
			{`"kvlend":null`, "", false, false},
			{`"kvlend":false`, "", false, false},
			{`"kvlend":true`, "", true, true},
			{`"user":"u"`, "X-Kvlend-Receipt", false, true},
			{`"user":"u"`, "X-Kvlend", true, true},
			{`"kvlend":{"receipt":true}`, "X-Kvlend-Receipt", false, true},
			{`"user":"u"`, "", false, false},
		} {
			h := http.Header{}
			if ask.header != "" {
				h.Set(ask.header, "1")
			}
			body := strings.Replace(form.body, ",}", ","+ask.field+"}", 1)
			status, _, text := s.do(http.MethodPost, form.path, strings.NewReader(body), h)
			if status != 200 {
				t.Fatal(status, text)
			}
			got := lastOf(t, text)
			if got.Usage == nil || got.Usage.PromptTokensDetails.CachedTokens != 3 {
				t.Errorf("%s %v: usage %+v", body, h, got.Usage)
			}
			if _, account := got.Kvlend["logits_hash"]; account != ask.account {
				t.Errorf("%s %v: %s", body, h, text)
			}
			if r := string(got.Kvlend["receipt"]); ask.receipt && r != wantReceipt || !ask.receipt && r != "" {
				t.Errorf("%s %v: receipt %s", body, h, r)
			}
		}
	}
	// Without usage the receipt still comes last.
	_, _, text := s.post("/v1/completions", textBody(`,"stream":true,"kvlend":{"receipt":true}`))
	if got := lastOf(t, text); got.Usage != nil || string(got.Kvlend["receipt"]) != wantReceipt {
		t.Error(text)
	}
}

func TestReceiptRefusals(t *testing.T) {
	s := start(t, apitest.New())
	for _, tc := range []struct{ field, code, param, says string }{
		{`7`, "invalid_type", "kvlend", "true, false"},
		{`"receipt"`, "invalid_type", "kvlend", "true, false"},
		{`[]`, "invalid_type", "kvlend", "true, false"},
		{`{"recepit":true}`, "unknown_parameter", "kvlend", `"recepit"`},
		{`{"receipt":true,"trace":true}`, "unknown_parameter", "kvlend", `"trace"`},
		{`{"receipt":1}`, "invalid_type", "kvlend.receipt", "true or false"},
	} {
		for path, body := range map[string]string{
			"/v1/completions": textBody(`,"kvlend":` + tc.field), "/v1/chat/completions": chatBody(`,"kvlend":` + tc.field),
		} {
			status, _, text := s.post(path, body)
			e := wantError(t, status, text, 400, tc.code)
			if e.Param == nil || *e.Param != tc.param || !strings.Contains(e.Message, tc.says) {
				t.Errorf("%s: %s", tc.field, text)
			}
		}
	}
}

// TestReceiptOfChoices: each choice has its own.
func TestReceiptOfChoices(t *testing.T) {
	s := start(t, apitest.NewFunc(func(sub *wire.Submit) []apitest.Step {
		f := account()
		if strings.HasSuffix(sub.ID, "-1") {
			f.Receipt.Local = 3
		}
		return []apitest.Step{{Text: "ok"}, {Event: f}}
	}))
	_, _, body := s.post("/v1/completions", textBody(`,"n":2,"kvlend":{"receipt":true}`))
	k := decode[openai.Completion](t, body).Kvlend
	if k == nil || len(k.Choices) != 2 || k.Receipt.Local != 1 || k.Choices[0].Receipt.Local != 1 || k.Choices[1].Receipt.Local != 3 || k.Account != nil {
		t.Error(body)
	}
}

// TestCachedIsOfThePrompt: a sequence that was preempted finds again what it
// had generated, too, which is no prompt.
func TestCachedIsOfThePrompt(t *testing.T) {
	f := account()
	f.Cached = 9
	s := start(t, apitest.New(apitest.Step{Text: "ok"}, apitest.Step{Event: f}))
	_, _, body := s.post("/v1/completions", textBody(``))
	if got := lastOf(t, body); got.Usage.PromptTokensDetails.CachedTokens != 4 {
		t.Error(body)
	}
}

func TestReceiptMetrics(t *testing.T) {
	slow := account() // 9.5 ms, 5.5 without the cache
	quick := account()
	quick.PrefillMS, quick.Cached, quick.Receipt = 6.5, 2, wire.Receipt{Host: 1, Pool: 1, PredictedMS: 6.5, RecomputeMS: 5.5}
	cold := account()
	cold.Cached, cold.Receipt = 0, wire.Receipt{RecomputeMS: 1}
	next := []*wire.Finished{slow, quick, cold}
	s := start(t, apitest.NewFunc(func(*wire.Submit) []apitest.Step {
		f := next[0]
		next = next[1:]
		return []apitest.Step{{Text: "ok"}, {Event: f}}
	}))
	want := func(lines ...string) {
		t.Helper()
		_, _, body := s.get("/metrics")
		for _, line := range lines {
			if !strings.Contains(body, line+"\n") {
				t.Errorf("missing: %s", line)
			}
		}
	}
	want(`kvlend_cache_slower_total{model_name="toy"} 0`, `kvlend_prompt_tokens_by_source_total{model_name="toy",source="pool"} 0`)
	for range 3 {
		if status, _, body := s.post("/v1/completions", textBody(``)); status != 200 {
			t.Fatal(status, body)
		}
	}
	want(`kvlend_prompt_tokens_by_source_total{model_name="toy",source="local"} 1`,
		`kvlend_prompt_tokens_by_source_total{model_name="toy",source="borrowed"} 2`,
		`kvlend_prompt_tokens_by_source_total{model_name="toy",source="host"} 1`,
		`kvlend_prompt_tokens_by_source_total{model_name="toy",source="pool"} 1`,
		`kvlend_prompt_tokens_by_source_total{model_name="toy",source="computed"} 7`,
		`kvlend_declined_prompt_tokens_total{model_name="toy"} 1`,
		`kvlend_cache_slower_total{model_name="toy"} 1`,
		`kvlend_prefill_seconds_count{model_name="toy"} 3`,
		`kvlend_prefill_prediction_ratio_count{model_name="toy"} 2`)
}
