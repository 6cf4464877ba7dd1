package api_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/coordinator/wire"
)

// fleet is a gateway with a master of 1,000 tokens, "big", and the workers
// "mid" (500) and "toy" (200), each with its own upstream.
type fleet struct {
	*system
	ups map[string]*apitest.Upstream
}

func startFleet(t *testing.T, change ...func(*api.Options)) *fleet {
	t.Helper()
	f := &fleet{ups: map[string]*apitest.Upstream{}}
	var models []*api.Model
	for _, m := range []struct {
		name, role string
		tokens     int
	}{{"big", "master", 1000}, {"mid", "worker", 500}, {"toy", "worker", 200}} {
		up := apitest.New(apitest.Say("ok", "stop")...)
		f.ups[m.name] = up
		model := apitest.Model(m.name, up)
		model.Role, model.MaxTokens = m.role, func() int { return m.tokens }
		if m.role == "worker" {
			model.MaxWaiting = 6
		}
		models = append(models, model)
	}
	f.system = start(t, f.ups["toy"], append([]func(*api.Options){func(o *api.Options) { o.Models, o.Auto = models, true }}, change...)...)
	t.Cleanup(func() {
		for _, up := range f.ups {
			up.Wait()
		}
	})
	f.idle("big", 10)
	f.idle("mid", 20)
	f.idle("toy", 12)
	return f
}

// idle sets a model's free blocks.
func (f *fleet) idle(name string, blocks int) { f.set(name, blocks, 0, false) }

func (f *fleet) set(name string, blocks, waiting int, draining bool) {
	f.ups[name].SetStatus(wire.Status{Waiting: waiting, Draining: draining, Blocks: wire.BlockStatus{LocalFree: blocks}})
}

// served says which model answered a completion.
func (f *fleet) served(prompt string, maxTokens int) string {
	f.t.Helper()
	status, _, body := f.post("/v1/completions", map[string]any{"model": "auto", "prompt": prompt, "max_tokens": maxTokens})
	if status != 200 {
		f.t.Fatal(status, body)
	}
	name := decode[openai.Completion](f.t, body).Model
	receive(f.t, "submission to "+name, f.ups[name].Submitted)
	return name
}

func TestAuto(t *testing.T) {
	for _, tc := range []struct {
		name          string
		prompt, limit int
		prepare       func(*fleet)
		want          string
	}{
		{"fits the smallest worker", 50, 40, func(*fleet) {}, "toy"},
		{"long for the smallest", 50, 60, func(*fleet) {}, "mid"},
		{"no free memory in the smallest", 50, 40, func(f *fleet) { f.idle("toy", 5) }, "mid"},
		{"waiting at the smallest", 50, 40, func(f *fleet) { f.set("toy", 12, 1, false) }, "mid"},
		{"no free memory in any worker", 50, 40, func(f *fleet) { f.idle("toy", 5); f.idle("mid", 5) }, "big"},
		{"long for all workers", 250, 10, func(*fleet) {}, "big"},
		{"too long for all workers", 450, 100, func(*fleet) {}, "big"},
		{"memory that is kept gives way", 50, 40, func(f *fleet) {
			f.ups["toy"].SetStatus(wire.Status{Blocks: wire.BlockStatus{LocalKept: 11, LocalFree: 1}})
		}, "toy"},
		{"drained", 50, 40, func(f *fleet) { f.set("toy", 12, 0, true) }, "mid"},
		{"queues full", 50, 40, func(f *fleet) {
			f.set("mid", 20, 6, false)
			f.set("toy", 12, 7, false)
			f.set("big", 12, 9, false)
		}, "big"},
		{"dead", 50, 40, func(f *fleet) { f.ups["toy"].SetAlive(false) }, "mid"},
		{"all wait", 50, 40, func(f *fleet) { f.set("big", 9, 3, false); f.set("mid", 9, 2, false); f.set("toy", 9, 5, false) }, "mid"},
		{"only the smallest lives", 100, 90, func(f *fleet) { f.ups["big"].SetAlive(false); f.ups["mid"].SetAlive(false) }, "toy"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := startFleet(t)
			tc.prepare(f)
			if got := f.served(strings.Repeat("x", tc.prompt), tc.limit); got != tc.want {
				t.Errorf("served by %s, want %s", got, tc.want)
			}
		})
	}
}

// TestAutoNames: streams, too, name the model that answers.
func TestAutoNames(t *testing.T) {
	f := startFleet(t)
	status, _, body := f.post("/v1/chat/completions", `{"model":"auto","messages":[{"role":"user","content":"hi"}],"max_tokens":5,"stream":true}`)
	if status != 200 || strings.Count(body, `"model":"toy"`) != 4 || strings.Contains(body, `"model":"auto"`) {
		t.Errorf("%d %s", status, body)
	}
	_, _, body = f.get("/metrics")
	if !strings.Contains(body, `kvlend_requests_total{model_name="toy",outcome="ok"} 1`) || strings.Contains(body, `"auto"`) {
		t.Error("the request is not counted for the model that served it")
	}
}

// TestAutoStays: a conversation stays where it was, also when the rule would
// send it elsewhere, until it cannot; another tenant's is not affected.
func TestAutoStays(t *testing.T) {
	f := startFleet(t, withKeys(api.APIKey{Key: "a"}, api.APIKey{Key: "b"}))
	say := func(key, salt string, texts ...string) string {
		t.Helper()
		req := openai.ChatRequest{Model: "auto"}
		most := 5
		req.MaxTokens = &most
		if salt != "" {
			req.CacheSalt = &salt
		}
		for i, text := range texts {
			req.Messages = append(req.Messages, openai.TextMessage([]string{"user", "assistant"}[i%2], text))
		}
		status, _, body := f.do("POST", "/v1/chat/completions", strings.NewReader(jsonOf(req)), map[string][]string{"X-Api-Key": {key}})
		if status != 200 {
			t.Fatal(status, body)
		}
		return decode[openai.ChatResponse](t, body).Model
	}
	long := strings.Repeat("y", 300)
	var got []string
	got = append(got, say("a", "", long)) // long for the workers
	got = append(got, say("a", "", "hi")) // short
	got = append(got, say("a", "", "hi", "ok", "more"))
	got = append(got, say("a", "", "hi", "ok", long)) // too long for where it was
	got = append(got, say("a", "", "hi", "ok", long, "ok", "more"))
	want := []string{"big", "toy", "toy", "big", "big"}
	if !slices.Equal(got, want) {
		t.Errorf("served by %v, want %v", got, want)
	}
	for name, blocks := range map[string]int{"toy": 1, "mid": 20} {
		f.idle(name, blocks)
	}
	// What the gateway knows is at most 20 ms old.
	until := func(model string, ask func(i int) string) {
		t.Helper()
		for i := 0; ask(i) != model; i++ {
			if i > 10_000 {
				t.Fatal("new figures are never seen")
			}
		}
	}
	until("mid", func(i int) string { return say("b", fmt.Sprint(i), "hi") })
	if a, b, c := say("a", "", "hi", "ok", "more"), say("b", "", "hi", "ok", "more"), say("a", "s", "hi", "ok", "more"); a != "toy" || b != "mid" || c != "mid" {
		t.Errorf("the conversation is at %s, another tenant's at %s, that with another salt at %s", a, b, c)
	}
	// It leaves a model whose queue is full.
	f.set("toy", 12, 6, false)
	f.idle("mid", 0)
	until("big", func(int) string { return say("a", "", "hi", "ok", "again") })
}

// TestAutoSpreads: requests that come faster than figures do are not all sent
// to memory and places that the first of them take. Time stands still meanwhile,
// until the last one.
func TestAutoSpreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opt := api.Options{Auto: true}
		for _, m := range []struct {
			name, role   string
			tokens, free int
		}{{"big", "master", 1000, 0}, {"mid", "worker", 500, 20}, {"toy", "worker", 200, 12}} {
			up := apitest.New(apitest.Say("ok", "stop")...)
			up.SetStatus(wire.Status{Blocks: wire.BlockStatus{LocalFree: m.free}})
			model := apitest.Model(m.name, up)
			model.Role, model.MaxTokens, model.MaxRunning = m.role, func() int { return m.tokens }, 4
			opt.Models = append(opt.Models, model)
		}
		g, err := api.New(opt)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range 14 {
			if i == 13 {
				time.Sleep(time.Second) // of the bubble's clock: the figures are asked for again
			}
			rec := httptest.NewRecorder()
			body := fmt.Sprintf(`{"model":"auto","prompt":"%d%s","max_tokens":40}`, i, strings.Repeat("x", 50))
			g.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body)))
			got = append(got, decode[openai.Completion](t, rec.Body.String()).Model)
		}
		if want := strings.Fields("toy toy mid mid mid big big big big big mid mid toy toy"); !slices.Equal(got, want) {
			t.Errorf("served by %v, want %v", got, want)
		}
	})
}

func TestAutoRefuses(t *testing.T) {
	f := startFleet(t)
	for _, tc := range []struct {
		body        string
		code, param string
		parts       []string
	}{
		{`{"model":"auto","prompt":[1,2]}`, "unsupported_parameter", "prompt", []string{"name the model"}},
		{`{"model":"auto","prompt":"x","stop_token_ids":[1]}`, "unsupported_parameter", "stop_token_ids", nil},
		{`{"model":"auto","prompt":"x","logit_bias":{"1":1}}`, "unsupported_parameter", "logit_bias", nil},
		{`{"model":"auto","prompt":"x","temperature":-1}`, "invalid_value", "temperature", nil},
		{`{"model":"auto","prompt":""}`, "invalid_value", "prompt", nil},
		{`{"model":"auto","prompt":"` + strings.Repeat("x", 990) + `","max_tokens":11}`, "context_length_exceeded", "prompt", []string{"big", "1000", "1001"}},
	} {
		status, _, body := f.post("/v1/completions", tc.body)
		e := wantError(t, status, body, 400, tc.code)
		if e.Param == nil || *e.Param != tc.param {
			t.Errorf("param of %s, want %s", body, tc.param)
		}
		for _, part := range tc.parts {
			if !strings.Contains(e.Message, part) {
				t.Errorf("%q does not say %s", e.Message, part)
			}
		}
	}
	for _, up := range f.ups {
		up.SetAlive(false)
	}
	status, h, body := f.post("/v1/completions", `{"model":"auto","prompt":"x"}`)
	if wantError(t, status, body, 503, "model_unavailable"); h.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// TestAutoChats: a model without a template gets no chats.
func TestAutoChats(t *testing.T) {
	f := startFleet(t, func(o *api.Options) { o.Models[2].Template = nil })
	status, _, body := f.post("/v1/chat/completions", `{"model":"auto","messages":[{"role":"user","content":"hi"}],"max_tokens":5}`)
	if r := decode[openai.ChatResponse](t, body); status != 200 || r.Model != "mid" {
		t.Errorf("%d %s", status, body)
	}
	none := startFleet(t, func(o *api.Options) {
		for _, m := range o.Models {
			m.Template = nil
		}
	})
	status, _, body = none.post("/v1/chat/completions", `{"model":"auto","messages":[{"role":"user","content":"hi"}]}`)
	wantError(t, status, body, 400, "unsupported_model")
}

func TestAutoIsListed(t *testing.T) {
	f := startFleet(t)
	_, _, body := f.get("/v1/models")
	list := decode[openai.ModelList](t, body)
	if n := len(list.Data); n != 4 || list.Data[3].ID != "auto" || list.Data[3].MaxModelLen != 1000 || list.Data[3].Role != "auto" {
		t.Error(body)
	}
	status, _, body := f.get("/v1/models/auto")
	if card := decode[openai.ModelCard](t, body); status != 200 || card.ID != "auto" {
		t.Errorf("%d %s", status, body)
	}
	off := startFleet(t, func(o *api.Options) { o.Auto = false })
	if _, _, body := off.get("/v1/models"); strings.Contains(body, "auto") {
		t.Error(body)
	}
	status, _, body = off.post("/v1/completions", `{"model":"auto","prompt":"x"}`)
	wantError(t, status, body, 404, "model_not_found")
}

func TestNewRefusesAuto(t *testing.T) {
	for name, change := range map[string]func(*api.Options){
		"no models":              func(o *api.Options) { o.Models = nil },
		"a model called auto":    func(o *api.Options) { o.Models[0].Name = "auto" },
		"blocks of unknown size": func(o *api.Options) { o.Models[0].BlockTokens = 0 },
		"unknown concurrency":    func(o *api.Options) { o.Models[0].MaxRunning = 0 },
	} {
		opt := api.Options{Auto: true, Models: []*api.Model{apitest.Model("toy", apitest.New())}}
		change(&opt)
		if _, err := api.New(opt); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
