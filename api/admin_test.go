package api_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
	"github.com/kvlend/kvlend/coordinator/wire"
)

// admin calls an admin route and returns the status and the body.
func (s *system) admin(method, path, body string) (int, string) {
	s.t.Helper()
	rec := httptest.NewRecorder()
	s.gw.AdminHandler().ServeHTTP(rec, httptest.NewRequest(method, path, strings.NewReader(body)))
	return rec.Code, rec.Body.String()
}

func TestAdminCheckCollectsReports(t *testing.T) {
	quiet := apitest.New() // has no report
	up := apitest.New()
	up.SetReport(&wire.CheckReport{Model: "toy", Total: 3, Local: 3, Findings: []wire.Finding{{Invariant: "sum", Text: "x"}}})
	s := start(t, up, func(o *api.Options) { o.Models = append(o.Models, apitest.Model("quiet", quiet)) })
	code, body := s.admin(http.MethodGet, "/admin/check", "")
	var got api.AdminCheck
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK {
		t.Fatalf("HTTP %d, %v: %s", code, err, body)
	}
	if len(got.Reports) != 1 || got.Reports[0].Total != 3 || len(got.Reports[0].Findings) != 1 {
		t.Errorf("reports %s", body)
	}
	if len(got.Missing) != 1 || got.Missing[0].Model != "quiet" || got.Missing[0].Reason == "" {
		t.Errorf("missing %+v", got.Missing)
	}
	quiet.SetAlive(false)
	if _, body := s.admin(http.MethodGet, "/admin/check", ""); !strings.Contains(body, "not connected") {
		t.Errorf("a process that is not there: %s", body)
	}
}

func TestAdminDrain(t *testing.T) {
	up := apitest.New()
	s := start(t, up)
	up.SetDrain(wire.DrainState{Requests: 2, Units: 5})
	for _, c := range []struct {
		body   string
		status int
		text   string
	}{
		{`{"model": "toy"}`, http.StatusOK, `"Draining":true,"Requests":2,"Units":5`},
		{`{"model": "toy", "undo": true}`, http.StatusOK, `"Draining":false`},
		{`{"model": "none"}`, http.StatusNotFound, "none"},
		{`{}`, http.StatusBadRequest, "model is missing"},
		{`{"model": "toy", "undoo": true}`, http.StatusBadRequest, "undoo"},
		{`[`, http.StatusBadRequest, "body must be"},
		{`{"model": "` + strings.Repeat("x", 1<<17) + `"}`, http.StatusBadRequest, "too large"},
	} {
		if code, body := s.admin(http.MethodPost, "/admin/drain", c.body); code != c.status || !strings.Contains(body, c.text) {
			t.Errorf("%.60s: HTTP %d, %.300s; want %d with %q", c.body, code, body, c.status, c.text)
		}
	}
	up.SetAlive(false)
	if code, _ := s.admin(http.MethodPost, "/admin/drain", `{"model": "toy"}`); code != http.StatusServiceUnavailable {
		t.Errorf("drain of a process that is not there: HTTP %d", code)
	}
	if code, _ := s.admin(http.MethodGet, "/admin/drain", ""); code != http.StatusMethodNotAllowed {
		t.Errorf("GET: HTTP %d", code)
	}
}

func TestMetricsOfLending(t *testing.T) {
	up := apitest.New()
	s := start(t, up)
	lending := wire.LendingStatus{Peer: "birch", Granted: 34, Returned: 30, Denied: 2, Reclaimed: 20, Fenced: 4, Confirmed: 3}
	for _, d := range []time.Duration{50 * time.Microsecond, 150 * time.Microsecond, time.Minute} {
		lending.GrantTime.Observe(d.Seconds())
	}
	link := wire.LinkStatus{Peer: "birch", Up: true, Queued: 1, Sent: 9, Resent: 8, Dropped: 7, Connects: 3, Resets: 2}
	up.SetStatus(wire.Status{
		// What comes twice must not spoil the scrape.
		Links: []wire.LinkStatus{link, link}, Lending: []wire.LendingStatus{lending, lending},
		Moved: []wire.Count{{Name: "rc", N: 6}, {Name: "rc", N: 6}}, Stale: 5, Evicted: 4, Corrupt: 3, Restarts: 2, Draining: true, AuditLost: 1,
	})
	res, err := s.http.Get(s.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(res.Body); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("HTTP %d, %v: %s", res.StatusCode, err, b.String())
	}
	for _, want := range []string{
		`kvlend_units_granted_total{model_name="toy",peer="birch"} 34`,
		`kvlend_units_fenced_total{model_name="toy",peer="birch"} 4`,
		`kvlend_fences_confirmed_total{model_name="toy",peer="birch"} 3`,
		`kvlend_grant_seconds_bucket{model_name="toy",peer="birch",le="0.0001"} 1`,
		`kvlend_grant_seconds_bucket{model_name="toy",peer="birch",le="0.0002"} 2`,
		`kvlend_grant_seconds_bucket{model_name="toy",peer="birch",le="+Inf"} 3`,
		`kvlend_grant_seconds_count{model_name="toy",peer="birch"} 3`,
		`kvlend_link_up{model_name="toy",peer="birch"} 1`,
		`kvlend_link_refused{model_name="toy",peer="birch"} 0`,
		`kvlend_link_messages_resent_total{model_name="toy",peer="birch"} 8`,
		`kvlend_link_peer_resets_total{model_name="toy",peer="birch"} 2`,
		`kvlend_evacuated_blocks_total{destination="rc",model_name="toy"} 6`,
		`kvlend_stale_blocks_total{model_name="toy"} 5`,
		`kvlend_evicted_sequences_total{model_name="toy"} 4`,
		`kvlend_checksum_failures_total{model_name="toy"} 3`,
		`kvlend_restarts_total{model_name="toy"} 2`,
		`kvlend_draining{model_name="toy"} 1`,
		`kvlend_audit_records_lost_total{model_name="toy"} 1`,
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
	if strings.Contains(b.String(), "kvlend_fence_seconds") {
		t.Error("a histogram of nothing is shown")
	}
}
