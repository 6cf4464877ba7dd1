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

func TestAdminUnload(t *testing.T) {
	up := apitest.New()
	s := start(t, up)
	up.SetUnload("d0", wire.UnloadState{ID: 1, Blocks: 7})
	for _, c := range []struct {
		body   string
		status int
		text   string
	}{
		{`{"model": "toy", "device": "d0"}`, http.StatusOK, `"Draining":true,"Blocks":7`},
		{`{"model": "toy", "device": "d0", "undo": true}`, http.StatusOK, `"Draining":false`},
		{`{"model": "toy", "device": "d1"}`, http.StatusNotFound, "toy: there is no device d1"},
		{`{"model": "none", "device": "d0"}`, http.StatusNotFound, "none"},
		{`{"model": "toy"}`, http.StatusBadRequest, "device has 0 bytes"},
		{`{"model": "toy", "device": "` + strings.Repeat("x", 300) + `"}`, http.StatusBadRequest, "device has 300 bytes"},
		{`{"device": "d0"}`, http.StatusBadRequest, "model is missing"},
		{`{"model": "toy", "device": "d0", "force": true}`, http.StatusBadRequest, "force"},
	} {
		if code, body := s.admin(http.MethodPost, "/admin/pool/drain", c.body); code != c.status || !strings.Contains(body, c.text) {
			t.Errorf("%.60s: HTTP %d, %.300s; want %d with %q", c.body, code, body, c.status, c.text)
		}
	}
	up.SetAlive(false)
	if code, _ := s.admin(http.MethodPost, "/admin/pool/drain", `{"model": "toy", "device": "d0"}`); code != http.StatusServiceUnavailable {
		t.Errorf("of a process that is not there: HTTP %d", code)
	}
}

func TestMetricsOfThePool(t *testing.T) {
	up := apitest.New()
	s := start(t, up)
	d := wire.DiskStatus{
		Name: "d0", Kind: "file", Slots: 100, Live: 60, Free: 30, Lag: 2, Rate: 1e9, Seen: 7e8, InFlight: 4, Errors: 3, Corrupt: 1,
		Read: wire.DiskUsage{IOs: 10, Bytes: 1 << 20, P50: time.Millisecond, P99: 2 * time.Millisecond, Rate: 5e8}, Budget: 1 << 30, BudgetLeft: 1 << 20, LifeDays: 900,
	}
	slow := wire.DiskStatus{Name: "d1", Slots: 1, Degraded: "no io_uring", Draining: true}
	gone := wire.DiskStatus{Name: "d2", Fenced: "no such file"}
	up.SetStatus(wire.Status{Disks: []wire.DiskStatus{d, d, slow, gone}, Blocks: wire.BlockStatus{PoolKept: 60, PoolFree: 30}})
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
		`kvlend_pool_device_up{device="d0",model_name="toy"} 1`,
		`kvlend_pool_device_up{device="d2",model_name="toy"} 0`,
		`kvlend_pool_device_degraded{device="d1",model_name="toy"} 1`,
		`kvlend_pool_device_draining{device="d1",model_name="toy"} 1`,
		`kvlend_pool_queue_depth{device="d0",model_name="toy"} 4`,
		`kvlend_pool_unflushed_changes{device="d0",model_name="toy"} 2`,
		`kvlend_pool_errors_total{device="d0",model_name="toy"} 3`,
		`kvlend_pool_corrupt_blocks_total{device="d0",model_name="toy"} 1`,
		`kvlend_pool_write_budget_bytes{device="d0",model_name="toy"} 1.048576e+06`,
		`kvlend_pool_life_days{device="d0",model_name="toy"} 900`,
		`kvlend_pool_blocks{device="d0",model_name="toy",state="live"} 60`,
		`kvlend_pool_blocks{device="d0",model_name="toy",state="reserved"} 10`,
		`kvlend_pool_bytes_total{device="d0",direction="read",model_name="toy"} 1.048576e+06`,
		`kvlend_pool_ios_total{device="d0",direction="write",model_name="toy"} 0`,
		`kvlend_pool_latency_seconds{device="d0",direction="read",model_name="toy",quantile="0.99"} 0.002`,
		`kvlend_pool_read_bandwidth_bytes_per_second{device="d0",model_name="toy",source="measured"} 1e+09`,
		`kvlend_pool_read_bandwidth_bytes_per_second{device="d0",model_name="toy",source="achieved"} 5e+08`,
		`kvlend_kv_blocks{model_name="toy",place="pool",state="kept"} 60`,
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
	for _, not := range []string{`budget_bytes{device="d1"`, `life_days{device="d1"`, `direction="write",model_name="toy",quantile`, `blocks{device="d2"`} {
		if strings.Contains(b.String(), not) {
			t.Errorf("shown, and not known: %s", not)
		}
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
