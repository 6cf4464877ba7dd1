package api_test

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
	"github.com/kvlend/kvlend/coordinator/wire"
)

func withKeys(keys ...api.APIKey) func(*api.Options) {
	return func(o *api.Options) { o.APIKeys = keys }
}

// submitted posts a completion with a key and returns what reached the model.
func (s *system) submitted(key, extra string) *wire.Submit {
	s.t.Helper()
	status, _, body := s.postAs(key, textBody(extra))
	if status != 200 {
		s.t.Fatal(status, body)
	}
	return receive(s.t, "submission", s.up.Submitted)
}

func (s *system) postAs(key, body string) (int, http.Header, string) {
	s.t.Helper()
	h := http.Header{}
	if key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
	return s.do(http.MethodPost, "/v1/completions", strings.NewReader(body), h)
}

// TestSalts: a client's salt selects within its own tenant's space, and
// nothing that a client can write selects another's.
func TestSalts(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Finish: "length"}), withKeys(
		api.APIKey{Key: "acme-1", Tenant: "acme"}, api.APIKey{Key: "acme-2", Tenant: "acme"},
		api.APIKey{Key: "bolt-1", Tenant: "bolt"}, api.APIKey{Key: "alone-1"}, api.APIKey{Key: "alone-2"}))
	seen := map[string]string{} // who, by salt
	for _, key := range []string{"acme-1", "bolt-1", "alone-1", "alone-2"} {
		for _, salt := range []string{``, `,"cache_salt":"s"`, `,"cache_salt":"s2"`, `,"cache_salt":"\u0000"`, `,"cache_salt":"acme"`, `,"cache_salt":"bolt-1"`} {
			sub := s.submitted(key, salt)
			if n := len(sub.Salt); n < 16 || n > wire.MaxSalt {
				t.Errorf("a salt of %d bytes", n)
			}
			who := key + salt
			if other := seen[string(sub.Salt)]; other != "" {
				t.Errorf("%s and %s share a space", who, other)
			}
			seen[string(sub.Salt)] = who
			if again := s.submitted(key, salt); !bytes.Equal(again.Salt, sub.Salt) {
				t.Errorf("%s has two spaces", who)
			}
		}
	}
	for _, salt := range []string{``, `,"cache_salt":"s"`} {
		if a, b := s.submitted("acme-1", salt), s.submitted("acme-2", salt); !bytes.Equal(a.Salt, b.Salt) || a.Tenant != "acme" || b.Tenant != "acme" {
			t.Errorf("keys of one tenant: %s, %s", jsonOf(a), jsonOf(b))
		}
	}
	if a, b := s.submitted("alone-1", ``).Tenant, s.submitted("alone-2", ``).Tenant; a == b || a == "" || b == "" {
		t.Errorf("keys without a tenant are called %q and %q", a, b)
	}
}

// TestSaltsWithoutKeys: everybody is one tenant, which is none of the named.
func TestSaltsWithoutKeys(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Finish: "length"}))
	a, b, c := s.submitted("", ``), s.submitted("any", ``), s.submitted("", `,"cache_salt":"s"`)
	if !bytes.Equal(a.Salt, b.Salt) || a.Tenant != "" || bytes.Equal(a.Salt, c.Salt) {
		t.Errorf("%s, %s, %s", jsonOf(a), jsonOf(b), jsonOf(c))
	}
	other := start(t, apitest.New(apitest.Step{Finish: "length"}))
	if again := other.submitted("", ``); !bytes.Equal(a.Salt, again.Salt) {
		t.Error("another gateway of the same configuration uses other spaces")
	}
}

func TestPriority(t *testing.T) {
	s := start(t, apitest.New(apitest.Step{Finish: "length"}))
	for extra, want := range map[string]int{``: 0, `,"priority":null`: 0, `,"priority":-7`: -7, `,"priority":1048576`: wire.MaxPriority} {
		if got := s.submitted("", extra).Priority; got != want {
			t.Errorf("%s: priority %d", extra, got)
		}
	}
}

// TestTenantLimit: the limit holds over all keys of a tenant and all choices
// of a request, for it alone, and ends with the answers.
func TestTenantLimit(t *testing.T) {
	wait := make(chan struct{})
	s := start(t, apitest.New(apitest.Step{Wait: wait}, apitest.Step{Finish: "length"}), withKeys(
		api.APIKey{Key: "a1", Tenant: "a", MaxInflight: 3}, api.APIKey{Key: "a2", Tenant: "a"}, api.APIKey{Key: "b"}))
	done := make(chan int, 2)
	for _, extra := range []string{``, `,"stream":true`} {
		go func() {
			status, _, _ := s.postAs("a1", textBody(extra))
			done <- status
		}()
		receive(t, "submission", s.up.Submitted)
	}
	for _, stream := range []string{``, `,"stream":true`} {
		status, h, body := s.postAs("a2", textBody(`,"n":2`+stream))
		e := wantError(t, status, body, 429, "rate_limit_exceeded")
		if h.Get("Retry-After") != "1" || e.Type != "rate_limit_error" || !strings.Contains(e.Message, "3 answers") {
			t.Errorf("%v %s", h, body)
		}
	}
	status, _, body := s.postAs("a2", textBody(`,"n":4`)) // never fits
	wantError(t, status, body, 400, "invalid_value")
	close(wait)
	for range 2 {
		if status := receive(t, "answer", done); status != 200 {
			t.Errorf("status %d", status)
		}
	}
	for _, key := range []string{"a2", "b"} {
		if status, _, body := s.postAs(key, textBody(`,"n":3`)); status != 200 {
			t.Errorf("%s, with nothing under way: %d %s", key, status, body)
		}
	}
	_, _, body = s.do(http.MethodGet, "/metrics", nil, http.Header{"X-Api-Key": {"b"}})
	if line := `kvlend_requests_total{model_name="toy",outcome="limited"} 2`; !strings.Contains(body, line) {
		t.Errorf("missing: %s", line)
	}
}

func TestNewRefusesKeys(t *testing.T) {
	for text, keys := range map[string][]api.APIKey{
		"is empty":                      {{Key: "a"}, {Tenant: "t"}},
		"there twice":                   {{Key: "a"}, {Key: "a", Tenant: "t"}},
		"not begin with #":              {{Key: "a", Tenant: "#1"}},
		"at most 256":                   {{Key: "a", Tenant: strings.Repeat("t", wire.MaxName+1)}},
		"must not be negative":          {{Key: "a", MaxInflight: -1}},
		"and 2 for another key of the ": {{Key: "a", Tenant: "t", MaxInflight: 2}, {Key: "b", Tenant: "t", MaxInflight: 3}},
	} {
		_, err := api.New(api.Options{Models: []*api.Model{apitest.Model("toy", apitest.New())}, APIKeys: keys})
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}

func TestHead(t *testing.T) {
	up := apitest.New()
	s := start(t, up)
	for _, path := range []string{"/health", "/version", "/v1/models", "/v1/models/toy"} {
		status, h, body := s.do(http.MethodHead, path, nil, nil)
		if status != 200 || body != "" || h.Get("Content-Type") != "application/json" {
			t.Errorf("HEAD %s: %d %v %q", path, status, h, body)
		}
	}
	up.SetAlive(false)
	if status, _, _ := s.do(http.MethodHead, "/health", nil, nil); status != 503 {
		t.Errorf("HEAD /health of a dead system: %d", status)
	}
	status, h, _ := s.do(http.MethodHead, "/v1/completions", nil, nil)
	if status != 405 || !slices.Contains(h.Values("Allow"), http.MethodPost) {
		t.Errorf("HEAD /v1/completions: %d %v", status, h)
	}
}

func TestRestartsMetric(t *testing.T) {
	s := start(t, apitest.New(), func(o *api.Options) { o.Restarts = 3 })
	if _, _, body := s.get("/metrics"); !strings.Contains(body, fmt.Sprintf("kvlend_gateway_restarts_total %d\n", 3)) {
		t.Error(body)
	}
}
