package api_test

import (
	"context"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/sampling"
)

// panicking is an upstream with a bug.
type panicking struct{ *apitest.Upstream }

func (panicking) Submit(context.Context, *wire.Submit) (<-chan api.Event, error) { panic("a bug") }

// TestPanic costs its own client an error and nobody else anything.
func TestPanic(t *testing.T) {
	up := apitest.New(apitest.Say("ok", "stop")...)
	s := start(t, up, func(o *api.Options) { o.Models = append(o.Models, apitest.Model("bad", panicking{up})) })
	status, _, body := s.post("/v1/completions", `{"model":"bad","prompt":"x"}`)
	if e := wantError(t, status, body, 500, "internal_error"); strings.Contains(e.Message, "a bug") {
		t.Errorf("the message tells internals: %s", e.Message)
	}
	if status, _, body = s.post("/v1/completions", textBody(``)); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

// deaf is an upstream that does not hear cancellations.
type deaf struct{ *apitest.Upstream }

func (deaf) Cancel(string) {}

// TestStopStringNeedsNoReceipt: once a stop string was found the answer is
// complete, even if the model process never acknowledges its end.
func TestStopStringNeedsNoReceipt(t *testing.T) {
	release := make(chan struct{})
	up := apitest.New(apitest.Step{Text: "Hello"}, apitest.Step{Wait: release}, apitest.Step{Finish: "length"})
	s := start(t, up, func(o *api.Options) { o.Models[0].Upstream = deaf{up} })
	status, _, body := s.post("/v1/completions", textBody(`,"stop":"l","kvlend":true`))
	close(release)
	r := decode[openai.Completion](t, body)
	if status != 200 || r.Choices[0].Text != "He" || *r.Choices[0].FinishReason != "stop" || r.Kvlend.LogitsHash != "" {
		t.Errorf("%d %s", status, body)
	}
	if u := decode[openai.Usage](t, string(r.Usage)); u.CompletionTokens != 3 {
		t.Errorf("usage %+v: the tokens up to the stop string are 3", u)
	}
}

// TestStopStringAcrossChunks: the text does not depend on how tokens were
// grouped, and a beginning that did not go on is given out.
func TestStopStringAcrossChunks(t *testing.T) {
	for _, cut := range []int{1, 2, 3, 5, 12} {
		var script []apitest.Step
		for text := "aENaENDtail!"; text != ""; {
			n := min(cut, len(text))
			script = append(script, apitest.Step{Text: text[:n]})
			text = text[n:]
		}
		s := start(t, apitest.New(append(script, apitest.Step{Finish: "length"})...))
		_, _, body := s.post("/v1/completions", textBody(`,"stop":["END"]`))
		r := decode[openai.Completion](t, body)
		if u := decode[openai.Usage](t, string(r.Usage)); r.Choices[0].Text != "aENa" || u.CompletionTokens != 7 {
			t.Errorf("chunks of %d: %s", cut, body)
		}
	}
}

// TestStopInTheLastWord: a stop string may be completed by what the decoder
// held back until the end.
func TestStopInTheLastWord(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Tokens: []int32{'a', 0xc3}}, apitest.Step{Finish: "length"}))
	_, _, body := s.post("/v1/completions", textBody(`,"stop":["�"]`))
	if c := decode[openai.Completion](t, body).Choices[0]; c.Text != "a" || *c.FinishReason != "stop" {
		t.Error(body)
	}
}

func TestNotReady(t *testing.T) {
	s := start(t, apitest.New(), func(o *api.Options) { o.Models[0].MaxTokens = func() int { return 0 } })
	status, h, body := s.post("/v1/completions", textBody(``))
	if wantError(t, status, body, 503, "model_unavailable"); h.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// TestDefaults: a model's own defaults hold where the request says nothing.
func TestDefaults(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Finish: "length"}), func(o *api.Options) {
		o.Models[0].Defaults = sampling.Params{Temperature: 0.25, TopK: 20, TopP: 0.5, RepetitionPenalty: 1.25}
	})
	s.post("/v1/completions", textBody(``))
	if got := receive(t, "submission", s.up.Submitted).Sampling; got.Temperature != 0.25 || got.TopK != 20 || got.TopP != 0.5 || got.RepetitionPenalty != 1.25 || got.Logprobs != -1 {
		t.Errorf("%+v", got)
	}
	s.post("/v1/completions", textBody(`,"temperature":0,"top_k":0`))
	if got := receive(t, "submission", s.up.Submitted).Sampling; got.Temperature != 0 || got.TopK != 0 || got.TopP != 0.5 {
		t.Errorf("%+v", got)
	}
}

// TestModelWithoutTemplate completes text and says why it cannot chat.
func TestModelWithoutTemplate(t *testing.T) {
	s := start(t, apitest.New(apitest.Say("ok", "stop")...), func(o *api.Options) { o.Models[0].Template = nil })
	status, _, body := s.post("/v1/chat/completions", chatBody(``))
	wantError(t, status, body, 400, "unsupported_model")
	if status, _, body = s.post("/v1/completions", textBody(``)); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}
