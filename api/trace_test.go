package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/api/apitest"
)

func TestAdminTrace(t *testing.T) {
	up := apitest.New()
	s := start(t, up)
	for _, c := range []struct {
		query  string
		status int
		text   string
	}{
		{"?model=toy&duration=2s", http.StatusOK, `"length":2000000000`},
		{"?model=none&duration=2s", http.StatusNotFound, "none"},
		{"?duration=2s", http.StatusBadRequest, "model is missing"},
		{"?model=toy", http.StatusBadRequest, "duration"},
		{"?model=toy&duration=soon", http.StatusBadRequest, "soon"},
		{"?model=toy&duration=0s", http.StatusBadRequest, "at most 1m0s"},
		{"?model=toy&duration=61s", http.StatusBadRequest, "at most 1m0s"},
	} {
		if code, body := s.admin(http.MethodGet, "/admin/trace"+c.query, ""); code != c.status || !strings.Contains(body, c.text) {
			t.Errorf("%s: HTTP %d, %.300s; want %d with %q", c.query, code, body, c.status, c.text)
		}
	}
	up.SetAlive(false)
	if code, _ := s.admin(http.MethodGet, "/admin/trace?model=toy&duration=2s", ""); code != http.StatusServiceUnavailable {
		t.Errorf("trace of a process that is not there: HTTP %d", code)
	}
}
