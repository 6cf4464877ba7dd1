package api_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
)

// dial opens a connection and sends what is given, and no more.
func (s *system) dial(text string) net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		s.t.Fatal(err)
	}
	return c
}

var unfinished = []string{
	"",
	"POST /v1/comp",
	"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ",
	"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"model\"",
	"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", // idle afterwards
}

// TestSlowClients: 1,000 connections that never finish a request do not keep a
// good client from being served.
func TestSlowClients(t *testing.T) {
	s := start(t, apitest.New(apitest.Say("ok", "stop")...))
	for i := range 1000 {
		s.dial(unfinished[i%len(unfinished)])
	}
	for range 20 {
		if status, _, body := s.post("/v1/chat/completions", chatBody(``)); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	}
}

// TestNewcomersTakePlaces: with all places taken by clients that do nothing,
// the one that has waited longest makes room.
func TestNewcomersTakePlaces(t *testing.T) {
	s := start(t, apitest.New(apitest.Say("ok", "stop")...), func(o *api.Options) { o.MaxConnections = 10 })
	oldest := s.dial(unfinished[1])
	for i := range 50 {
		s.dial(unfinished[i%len(unfinished)])
	}
	if status, _, body := s.post("/v1/chat/completions", chatBody(``)); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if err := oldest.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := oldest.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the oldest connection still has its place: %v", err)
	}
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error)
	return ok && ne.Timeout()
}

// TestFull: clients that are being served keep their places, and the next one
// is told to come again.
func TestFull(t *testing.T) {
	release := make(chan struct{})
	up := apitest.New(apitest.Step{Wait: release}, apitest.Step{Text: "ok"}, apitest.Step{Finish: "stop"})
	s := start(t, up, func(o *api.Options) { o.MaxConnections = 2 })
	answers := make(chan int, 2)
	for range 2 {
		go func() {
			resp, err := s.http.Post(s.url+"/v1/completions", "application/json", strings.NewReader(textBody(``)))
			if err != nil {
				answers <- 0
				return
			}
			resp.Body.Close()
			answers <- resp.StatusCode
		}()
		receive(t, "submission", up.Submitted)
	}
	resp, err := http.ReadResponse(bufio.NewReader(s.dial("")), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, resp.StatusCode, string(body), 503, "overloaded")
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	close(release)
	for range 2 {
		if status := receive(t, "answer", answers); status != 200 {
			t.Errorf("a client that was being served got %d", status)
		}
	}
}

// TestSlowBody: a body that does not arrive in time is answered and closed.
func TestSlowBody(t *testing.T) {
	s := start(t, apitest.New(), func(o *api.Options) { o.ReadTimeout = 50 * time.Millisecond })
	resp, err := http.ReadResponse(bufio.NewReader(s.dial(unfinished[3])), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, resp.StatusCode, string(body), 408, "request_timeout")
}

// flood is an upstream with far more text than sockets buffer, and then end.
func flood(end apitest.Step) (*apitest.Upstream, func(*api.Options)) {
	script := make([]apitest.Step, 0, 100_001)
	for range 100_000 {
		script = append(script, apitest.Step{Text: "x"})
	}
	script = append(script, end)
	return apitest.New(script...), func(o *api.Options) {
		o.Models[0].MaxTokens = func() int { return 1 << 20 }
	}
}

const floodRequest = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 67\r\n\r\n" +
	`{"model":"toy","prompt":"abcd","stream":true,"max_tokens":100000 }` + "\n"

// TestClientThatDoesNotRead neither blocks the model process nor fills memory:
// the generation is cancelled when the buffer is full, or when the client has
// taken nothing for the write timeout.
func TestClientThatDoesNotRead(t *testing.T) {
	for name, limit := range map[string]func(*api.Options){
		"buffer":        func(o *api.Options) { o.StreamBuffer, o.WriteTimeout = 64, patience },
		"write timeout": func(o *api.Options) { o.StreamBuffer, o.WriteTimeout = 1<<20, 100*time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			// Without an end of its own: all of the text may come before the
			// client's buffers are full, and what has ended needs no cancelling.
			up, roomy := flood(apitest.Step{Until: true})
			s := start(t, up, roomy, limit)
			c := s.dial("")
			// Little to fill before the server's writes stop.
			if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, floodRequest); err != nil {
				t.Fatal(err)
			}
			sub := receive(t, "submission", up.Submitted)
			if id := receive(t, "cancellation", up.Cancelled); id != sub.ID {
				t.Errorf("cancelled %s, not %s", id, sub.ID)
			}
			up.Wait() // the process went on without the client
			c.Close()
		})
	}
}

// TestFloodIsComplete: the same amount reaches a client that reads.
func TestFloodIsComplete(t *testing.T) {
	up, roomy := flood(apitest.Step{Finish: "length"})
	s := start(t, up, roomy, func(o *api.Options) { o.StreamBuffer = 1 << 20 })
	status, _, body := s.post("/v1/completions", textBody(`,"stream":true,"max_tokens":100000`))
	if n := strings.Count(body, `"text":"x"`); status != 200 || n != 100_000 || !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Errorf("status %d, %d tokens", status, n)
	}
}
