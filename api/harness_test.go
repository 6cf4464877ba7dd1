package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
	"github.com/kvlend/kvlend/api/openai"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// patience ends a test that waits for an event that does not come.
const patience = 60 * time.Second

// system is a gateway on a real listener with one scripted model, "toy".
type system struct {
	t    *testing.T
	url  string
	addr string
	up   *apitest.Upstream
	gw   *api.Gateway
	http *http.Client
}

func start(t *testing.T, up *apitest.Upstream, change ...func(*api.Options)) *system {
	t.Helper()
	opt := api.Options{Models: []*api.Model{apitest.Model("toy", up)}, Version: "test"}
	for _, f := range change {
		f(&opt)
	}
	gw, err := api.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- gw.Serve(tight{ln}) }()
	transport := &http.Transport{}
	s := &system{t: t, url: "http://" + ln.Addr().String(), addr: ln.Addr().String(), up: up, gw: gw,
		http: &http.Client{Transport: transport}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := gw.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		up.Wait()
		if n := up.Live(); n != 0 {
			t.Errorf("%d generations are still running", n)
		}
	})
	return s
}

// tight makes the server's sockets buffer little: a client that does not read is
// noticed after kilobytes, not after the megabytes that the system may grow to.
type tight struct{ net.Listener }

func (l tight) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(4096)
	}
	return c, err
}

// post sends body, a string as it is or anything else as JSON.
func (s *system) post(path string, body any) (int, http.Header, string) {
	s.t.Helper()
	raw, ok := body.(string)
	if !ok {
		b, err := json.Marshal(body)
		if err != nil {
			s.t.Fatal(err)
		}
		raw = string(b)
	}
	return s.do(http.MethodPost, path, strings.NewReader(raw), nil)
}

func (s *system) get(path string) (int, http.Header, string) {
	s.t.Helper()
	return s.do(http.MethodGet, path, nil, nil)
}

func (s *system) do(method, path string, body io.Reader, header http.Header) (int, http.Header, string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("reading the answer after %q: %v", b, err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// wantError checks an error answer's shape and returns it.
func wantError(t *testing.T, status int, body string, wantStatus int, code string) openai.Error {
	t.Helper()
	if status != wantStatus {
		t.Fatalf("status %d, want %d: %s", status, wantStatus, body)
	}
	return wantErrorBody(t, body, code)
}

func wantErrorBody(t *testing.T, body, code string) openai.Error {
	t.Helper()
	var e openai.ErrorBody
	d := json.NewDecoder(bytes.NewReader([]byte(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		t.Fatalf("not an error object: %v: %s", err, body)
	}
	if e.Error.Code == nil || *e.Error.Code != code {
		t.Fatalf("code of %s, want %s", body, code)
	}
	if e.Error.Message == "" || e.Error.Type == "" {
		t.Fatalf("no message or type: %s", body)
	}
	return e.Error
}

// receive waits for a value that a test depends on.
func receive[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
		panic("unreachable")
	}
}

func chatBody(extra string) string {
	return `{"model":"toy","messages":[{"role":"user","content":"hi"}]` + extra + `}`
}

func textBody(extra string) string {
	return `{"model":"toy","prompt":"abcd"` + extra + `}`
}
