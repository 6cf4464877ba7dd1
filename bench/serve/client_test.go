package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/bench/serve/report"
)

const done = "data: [DONE]\n\n"

func event(text string) string { return "data: " + text + "\n\n" }

// TestStreams: what a stream's end makes of an answer.
func TestStreams(t *testing.T) {
	text := event(`{"choices":[{"index":0,"text":"\"error\":{\"usage\":{","finish_reason":null}],"usage":null}`)
	last := event(`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}},` +
		`"kvlend":{"logits_hash":"ab","token_ids":[4,5],"receipt":{"local":1,"host":2.5,"new_field":{}},"other":[]}}`)
	for name, tc := range map[string]struct {
		stream string
		code   string
	}{
		"whole":              {text + text + last + done, report.CodeOK},
		"comments and CRLF":  {": ping\r\n\r\n" + strings.ReplaceAll(text+last, "\n", "\r\n") + "data:[DONE]\r\n", report.CodeOK},
		"cut off":            {text + last, codeCutOff},
		"no text":            {last + done, codeImproper},
		"no usage":           {text + done, codeImproper},
		"error":              {text + event(`{"error":{"message":"m","code":"overloaded"}}`) + done, "overloaded"},
		"error without code": {event(`{"error":{"message":"m"}}`) + done, "error"},
		"damaged":            {text + event(`{"usage":{`) + done, codeImproper},
		"damaged receipt":    {text + event(`{"kvlend":{"token_ids":"x"}}`) + done, codeImproper},
	} {
		t.Run(name, func(t *testing.T) {
			a := readStream(t.Context(), strings.NewReader(tc.stream))
			if a.code != tc.code {
				t.Fatalf("code %q (%s), want %q", a.code, a.text, tc.code)
			}
			if a.code != report.CodeOK {
				return
			}
			if a.output != 2 || a.cached != 1 || a.hash != "ab" || !slices.Equal(a.tokens, []int32{4, 5}) || a.first.IsZero() || a.end.Before(a.first) {
				t.Errorf("answer %+v", a)
			}
			if a.tiers == nil || a.tiers.Local != 1 || a.tiers.Host != 2.5 {
				t.Errorf("tiers %+v", a.tiers)
			}
		})
	}
}

// TestOtherServers: one that knows nothing of kvlend has no tokens and no tiers.
func TestOtherServers(t *testing.T) {
	a := readStream(t.Context(), strings.NewReader(event(`{"choices":[{"text":"x"}]}`)+event(`{"choices":[],"usage":{"completion_tokens":1}}`)+done))
	if a.code != report.CodeOK || a.tokens != nil || a.tiers != nil {
		t.Errorf("answer %+v", a)
	}
}

func TestAsk(t *testing.T) {
	bodies := make(chan map[string]any, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		var body map[string]any
		if err := json.Unmarshal(raw, &body); err != nil {
			t.Error(err)
		}
		body["key"] = r.Header.Get("Authorization")
		bodies <- body
		switch body["max_tokens"].(float64) {
		case 1:
			fmt.Fprint(w, event(`{"choices":[{"text":"x"}]}`)+event(`{"choices":[],"usage":{"completion_tokens":1}}`)+done)
		case 2:
			w.Header().Set("Retry-After", "3")
			w.WriteHeader(429)
			fmt.Fprint(w, `{"error":{"message":"full","code":"overloaded"}}`)
		case 3:
			w.WriteHeader(502)
			fmt.Fprint(w, `<html>`)
		case 4:
			<-r.Context().Done()
		case 5:
			panic(http.ErrAbortHandler)
		}
	}))
	defer srv.Close()
	g := newGateway(srv.URL, "k", "m", 300*time.Millisecond)
	defer g.close()
	for output, want := range map[int]answer{
		1: {code: report.CodeOK}, 2: {code: "overloaded", text: "full", retryAfter: 3 * time.Second},
		3: {code: "http_502", text: "502 Bad Gateway"}, 4: {code: codeTimeout}, 5: {code: codeConnection},
	} {
		a := g.ask(t.Context(), &request{prompt: []int32{1, 2}, output: output})
		if a.code != want.code || a.retryAfter != want.retryAfter || want.text != "" && a.text != want.text {
			t.Errorf("%d: %+v, want %+v", output, a, want)
		}
		body := <-bodies
		if body["model"] != "m" || body["kvlend"] != true || body["stream"] != true || body["ignore_eos"] != true || body["key"] != "Bearer k" ||
			fmt.Sprint(body["prompt"]) != "[1 2]" || body["temperature"] != 0.0 {
			t.Errorf("the request is %v", body)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if a := g.ask(ctx, &request{prompt: []int32{1}, output: 1}); a.code != codeConnection {
		t.Errorf("a cancelled request gives %+v", a)
	}
}

func TestCard(t *testing.T) {
	models := `{"data":[{"id":"b","max_model_len":5,"role":"worker"},{"id":"a","max_model_len":9,"role":"master"}]}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, models) }))
	defer srv.Close()
	for name, want := range map[string]string{"": "a", "b": "b", "c": ""} {
		g := newGateway(srv.URL, "", name, time.Second)
		card, err := g.card(t.Context())
		g.close()
		if (err != nil) != (want == "") || card.ID != want {
			t.Errorf("model %q: %+v, %v", name, card, err)
		}
	}
}
