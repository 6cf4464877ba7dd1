package api_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
)

// The benchmarks measure what the gateway itself costs: the model process is a
// script that answers at once. The baseline is the same HTTP server, connection
// and client around a handler that writes a fixed answer.

func post(b *testing.B, c *http.Client, url, body string) {
	resp, err := c.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
		b.Fatal(resp.StatusCode, err)
	}
	resp.Body.Close()
}

func BenchmarkRequest(b *testing.B) {
	gw, err := api.New(api.Options{Models: []*api.Model{apitest.Model("toy", apitest.New(apitest.Say("Hello", "stop")...))}})
	if err != nil {
		b.Fatal(err)
	}
	for name, h := range map[string]http.Handler{
		"gateway": gw.Handler(),
		"baseline": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, "{}")
		}),
	} {
		b.Run(name, func(b *testing.B) {
			srv := httptest.NewServer(h)
			defer srv.Close()
			for b.Loop() {
				post(b, srv.Client(), srv.URL+"/v1/chat/completions", chatBody(``))
			}
		})
	}
}

// BenchmarkStreamToken reports the cost of one streamed token.
func BenchmarkStreamToken(b *testing.B) {
	const tokens = 2000
	model := apitest.Model("toy", apitest.New(apitest.Say(strings.Repeat("x", tokens), "length")...))
	model.MaxTokens = func() int { return 1 << 20 }
	gw, err := api.New(api.Options{Models: []*api.Model{model}})
	if err != nil {
		b.Fatal(err)
	}
	srv := httptest.NewServer(gw.Handler())
	defer srv.Close()
	for b.Loop() {
		post(b, srv.Client(), srv.URL+"/v1/completions", textBody(`,"stream":true,"max_tokens":2000`))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/tokens, "ns/token")
}

// BenchmarkAuto compares naming a model with leaving the choice among three to
// the gateway, which then turns the prompt into each model's tokens.
func BenchmarkAuto(b *testing.B) {
	opt := api.Options{Auto: true}
	for _, name := range []string{"toy", "two", "three"} {
		m := apitest.Model(name, apitest.New(apitest.Say("Hello", "stop")...))
		m.MaxTokens = func() int { return 1 << 20 }
		opt.Models = append(opt.Models, m)
	}
	gw, err := api.New(opt)
	if err != nil {
		b.Fatal(err)
	}
	srv := httptest.NewServer(gw.Handler())
	defer srv.Close()
	prompt := strings.Repeat("The quick brown fox. ", 1000)
	for _, model := range []string{"toy", "auto"} {
		body := `{"model":"` + model + `","prompt":"` + prompt + `"}`
		b.Run(model, func(b *testing.B) {
			for b.Loop() {
				post(b, srv.Client(), srv.URL+"/v1/completions", body)
			}
		})
	}
}
