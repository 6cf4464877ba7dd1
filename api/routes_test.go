package api_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/coordinator/wire"
)

func decode[T any](t *testing.T, body string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return v
}

func TestModels(t *testing.T) {
	up := apitest.New()
	s := start(t, up, func(o *api.Options) { o.Models = append(o.Models, apitest.Model("org/big", up)) })
	status, _, body := s.get("/v1/models")
	list := decode[openai.ModelList](t, body)
	if status != 200 || list.Object != "list" || len(list.Data) != 2 || list.Data[0].ID != "toy" || list.Data[0].MaxModelLen != 256 {
		t.Errorf("%d %s", status, body)
	}
	status, _, body = s.get("/v1/models/org/big")
	if card := decode[openai.ModelCard](t, body); status != 200 || card.ID != "org/big" || card.Object != "model" || card.Created == 0 {
		t.Errorf("%d %s", status, body)
	}
	status, _, body = s.get("/v1/models/none")
	wantError(t, status, body, 404, "model_not_found")
}

func TestTokenize(t *testing.T) {
	s := start(t, apitest.New())
	status, _, body := s.post("/tokenize", `{"model":"toy","prompt":"hé<|im_end|>","return_token_strs":true}`)
	if want := `{"count":4,"max_model_len":256,"tokens":[104,195,169,258],"token_strs":["h","bytes:\\xc3","bytes:\\xa9","<|im_end|>"]}`; status != 200 || strings.TrimSpace(body) != want {
		t.Errorf("%d %s", status, body)
	}
	status, _, body = s.post("/tokenize", `{"model":"toy","messages":[{"role":"user","content":"a"}],"add_generation_prompt":false}`)
	if r := decode[openai.TokenizeResponse](t, body); status != 200 || r.Count != len("<user>a") {
		t.Errorf("%d %s", status, body)
	}
	status, _, body = s.post("/tokenize", `{"model":"toy","prompt":""}`)
	if status != 200 || !strings.Contains(body, `"tokens":[]`) {
		t.Errorf("%d %s", status, body)
	}
	status, _, body = s.post("/detokenize", `{"model":"toy","tokens":[104,195,169,258]}`)
	if status != 200 || strings.TrimSpace(body) != `{"prompt":"hé<|im_end|>"}` {
		t.Errorf("%d %s", status, body)
	}
	status, _, body = s.post("/detokenize", `{"model":"toy","tokens":[]}`)
	if status != 200 || strings.TrimSpace(body) != `{"prompt":""}` {
		t.Errorf("%d %s", status, body)
	}
}

func TestHealthAndVersion(t *testing.T) {
	up, other := apitest.New(), apitest.New()
	s := start(t, up, func(o *api.Options) { o.Models = append(o.Models, apitest.Model("two", other)) })
	for _, tc := range []struct {
		a, b   bool
		status int
		body   string
	}{
		{true, true, 200, `{"models":"2/2","status":"ok"}`},
		{true, false, 200, `{"models":"1/2","status":"degraded"}`},
		{false, false, 503, `{"models":"0/2","status":"unavailable"}`},
	} {
		up.SetAlive(tc.a)
		other.SetAlive(tc.b)
		if status, _, body := s.get("/health"); status != tc.status || strings.TrimSpace(body) != tc.body {
			t.Errorf("%d %s", status, body)
		}
	}
	if status, _, body := s.get("/version"); status != 200 || !strings.Contains(body, `"version":"test"`) {
		t.Errorf("%d %s", status, body)
	}
}

func TestKeys(t *testing.T) {
	s := start(t, apitest.New(apitest.Say("ok", "stop")...), func(o *api.Options) { o.APIKeys = []api.APIKey{{Key: "first"}, {Key: "second"}} })
	for _, tc := range []struct {
		header, value string
		ok            bool
	}{
		{"", "", false},
		{"Authorization", "Bearer first", true},
		{"Authorization", "bearer second", true},
		{"Authorization", "Basic first", false},
		{"Authorization", "first", false},
		{"Authorization", "Bearer ", false},
		{"Authorization", "Bearer third", false},
		{"Authorization", "Bearer firstx", false},
		{"X-Api-Key", "first", true},
		{"X-Api-Key", "firs", false},
	} {
		h := http.Header{}
		if tc.header != "" {
			h.Set(tc.header, tc.value)
		}
		for _, path := range []string{"/v1/models", "/v1/models/toy", "/metrics", "/version"} {
			status, rh, body := s.do(http.MethodGet, path, nil, h)
			if tc.ok {
				if status != 200 {
					t.Errorf("%s with %v: %d", path, h, status)
				}
				continue
			}
			wantError(t, status, body, 401, "invalid_api_key")
			if rh.Get("WWW-Authenticate") != "Bearer" {
				t.Error("no WWW-Authenticate")
			}
		}
		status, _, body := s.do(http.MethodPost, "/v1/completions", strings.NewReader(textBody(``)), h)
		if (status == 200) != tc.ok {
			t.Errorf("completions with %v: %d %s", h, status, body)
		}
		// Without a key even the existence of routes is not told.
		if status, _, _ = s.do(http.MethodGet, "/nowhere", nil, h); (status == 404) != tc.ok {
			t.Errorf("an unknown route with %v: %d", h, status)
		}
	}
	if status, _, _ := s.get("/health"); status != 200 {
		t.Errorf("health needs no key, got %d", status)
	}
}

func testStatus() wire.Status {
	return wire.Status{Running: 2, Waiting: 3, Preempted: 4, Loaded: 5, Stored: 6,
		Interference: wire.Interference{Decode: wire.StepTimes{WithSteps: 64, WithoutSteps: 65, WithMS: 12, WithoutMS: 10, Ratio: 1.25},
			Prefill: wire.StepTimes{WithoutSteps: 3, WithoutMS: 2}, Backoffs: 7, BackingOff: true}, LinkBudget: 1e9,
		Model:  wire.ModelStatus{Name: "toy", MaxTokens: 256},
		Blocks: wire.BlockStatus{LocalUsed: 1, LocalKept: 1, LocalFree: 1, BorrowedUsed: 2, BorrowedKept: 1, BorrowedFree: 2, HostKept: 8, HostFree: 9},
		Units:  []wire.UnitCount{{Peer: "two", Local: 1, Lent: 7}, {Peer: "two"}}}
}

func TestMetrics(t *testing.T) {
	up := apitest.New(apitest.Say("Hello", "stop")...)
	s := start(t, up)
	up.SetStatus(testStatus())
	s.post("/v1/completions", textBody(``))
	s.post("/v1/completions", textBody(`,"stream":true`))
	s.post("/v1/completions", textBody(`,"n":0`))
	s.post("/v1/completions", `{"model":"nope","prompt":"x"}`)
	status, _, body := s.get("/metrics")
	if status != 200 {
		t.Fatal(status, body)
	}
	for _, line := range []string{
		`kvlend_requests_running{model_name="toy"} 2`,
		`kvlend_requests_waiting{model_name="toy"} 3`,
		`kvlend_step_seconds{lending="true",model_name="toy",phase="decode"} 0.012`,
		`kvlend_step_seconds{lending="false",model_name="toy",phase="prefill"} 0.002`,
		`kvlend_lending_slowdown_ratio{model_name="toy",phase="decode"} 1.25`,
		`kvlend_lending_backoffs_total{model_name="toy"} 7`,
		`kvlend_lending_backing_off{model_name="toy"} 1`,
		`kvlend_link_budget_bytes_per_second{model_name="toy"} 1e+09`,
		`kvlend_kv_cache_usage_ratio{model_name="toy"} 0.375`,
		`kvlend_kv_blocks{model_name="toy",place="borrowed",state="free"} 2`,
		`kvlend_kv_blocks{model_name="toy",place="local",state="kept"} 1`,
		`kvlend_kv_blocks{model_name="toy",place="host",state="kept"} 8`,
		`kvlend_units{model_name="toy",peer="two",state="lent"} 7`,
		`kvlend_model_up{model_name="toy"} 1`,
		`kvlend_requests_total{model_name="toy",outcome="ok"} 2`,
		`kvlend_requests_total{model_name="toy",outcome="rejected"} 1`,
		`kvlend_prompt_tokens_total{model_name="toy"} 8`,
		`kvlend_generation_tokens_total{model_name="toy"} 10`,
		`kvlend_cached_prompt_tokens_total{model_name="toy"} 4`,
		`kvlend_time_to_first_token_seconds_count{model_name="toy"} 2`,
		`kvlend_time_per_output_token_seconds_count{model_name="toy"} 2`,
		`kvlend_request_duration_seconds_count{model_name="toy"} 2`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
	if strings.Contains(body, "nope") {
		t.Error("a client's text became a label")
	}
	up.SetAlive(false)
	if _, _, body = s.get("/metrics"); !strings.Contains(body, `kvlend_model_up{model_name="toy"} 0`) || strings.Contains(body, "kvlend_requests_running{") {
		t.Errorf("a dead model still has figures:\n%s", body)
	}
}

func TestAdmin(t *testing.T) {
	up := apitest.New()
	s := start(t, up, func(o *api.Options) { o.APIKeys = []api.APIKey{{Key: "k"}} })
	up.SetStatus(testStatus())
	get := func(path string) (int, string) {
		rec := httptest.NewRecorder()
		s.gw.AdminHandler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		return rec.Code, rec.Body.String()
	}
	status, body := get("/admin/status")
	st := decode[api.AdminStatus](t, body)
	if status != 200 || st.Version != "test" || len(st.Models) != 1 || !st.Models[0].Alive || st.Models[0].Status.Running != 2 {
		t.Errorf("%d %s", status, body)
	}
	up.SetAlive(false)
	if _, body = get("/admin/status"); decode[api.AdminStatus](t, body).Models[0].Status != nil {
		t.Errorf("%s", body)
	}
	status, body = get("/v1/models")
	wantError(t, status, body, 404, "not_found")
}

func TestNewRefuses(t *testing.T) {
	good := func() *api.Model { return apitest.Model("toy", apitest.New()) }
	for name, change := range map[string]func(*api.Options){
		"same name twice":  func(o *api.Options) { o.Models = append(o.Models, good()) },
		"nil model":        func(o *api.Options) { o.Models[0] = nil },
		"no name":          func(o *api.Options) { o.Models[0].Name = "" },
		"no tokenizer":     func(o *api.Options) { o.Models[0].Tokenizer = nil },
		"no upstream":      func(o *api.Options) { o.Models[0].Upstream = nil },
		"no vocabulary":    func(o *api.Options) { o.Models[0].Vocab = 0 },
		"invalid defaults": func(o *api.Options) { o.Models[0].Defaults.TopP = 7 },
	} {
		opt := api.Options{Models: []*api.Model{good()}}
		change(&opt)
		if _, err := api.New(opt); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestReceiptHeader: the header asks for the receipt as the field does.
func TestReceiptHeader(t *testing.T) {
	s := start(t, apitest.New(apitest.Say("ok", "stop")...))
	_, _, body := s.do(http.MethodPost, "/v1/completions", strings.NewReader(textBody(``)), http.Header{"X-Kvlend": {"true"}})
	if c := decode[openai.Completion](t, body); c.Kvlend == nil || c.Kvlend.LogitsHash != "0000000000000abc" {
		t.Error(body)
	}
}
