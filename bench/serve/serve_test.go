package serve

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/trace"
)

func small(t *testing.T) *trace.Trace {
	t.Helper()
	s := trace.DefaultSynthetic()
	s.Sessions, s.Rate, s.Turns, s.Think, s.Answer = 6, 20, 3, 20*time.Millisecond, 8
	tr, err := s.Make()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestSystems replays against two configurations of real processes, twice.
func TestSystems(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped in -short mode: builds kvlend and starts real processes")
	}
	binary := filepath.Join(t.TempDir(), "kvlend")
	c := exec.Command("go", "build", "-o", binary, "github.com/kvlend/kvlend/cmd/kvlend")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build of kvlend: %v\n%s", err, out)
	}
	beside := small(t)
	opt := Options{Binary: binary, Rounds: 2, Trace: small(t), Verify: -1, Beside: []Beside{{"birch", beside}}}
	for _, name := range []string{"local-only", "lending"} {
		s, err := Baseline(name, configs.Default())
		if err != nil {
			t.Fatal(err)
		}
		opt.Systems = append(opt.Systems, s)
	}
	var mu sync.Mutex
	var last Progress
	opt.Progress = func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		last.Done, last.Total = max(last.Done, p.Done), p.Total
	}
	r, err := Run(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteTable(t.Output()); err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	turns := r.Size.Turns + beside.Size().Turns
	if k := r.Checks; k.Answers != 4*turns || k.Checked != 4*turns || k.Distinct != turns || k.Repeated != 3*turns || k.Reference != turns {
		t.Errorf("checks %+v of %d turns in 2 configurations and 2 rounds: the same requests must have come everywhere", k, turns)
	}
	if len(r.Prompts) != 2 || r.Prompts["atlas"] != "dialogue" || r.Prompts["birch"] != "dialogue" {
		t.Errorf("prompts %q, want dialogues for both models", r.Prompts)
	}
	if last.Done != 4*turns || last.Total != 4*turns {
		t.Errorf("progress ended at %d of %d, want %d", last.Done, last.Total, 4*turns)
	}
	if len(r.Configs) != 4 {
		t.Fatalf("%d configurations, want 2 of 2 models", len(r.Configs))
	}
	for i, c := range r.Configs {
		turns := r.Size.Turns
		if i%2 == 1 {
			turns = beside.Size().Turns
		}
		if len(c.Rounds) != 2 || c.Model != []string{"atlas", "birch"}[i%2] || c.All.OK != 2*turns || c.All.TTFT.P50 <= 0 || c.All.OutputPerSecond <= 0 {
			t.Errorf("%s: %+v", c.Name, c.All)
		}
	}
	if len(r.Ratios) != 2 || r.Ratios[0].Base != "local-only" || r.Ratios[0].TTFT.P99 <= 0 {
		t.Errorf("ratios %+v", r.Ratios)
	}
}

// liar is a gateway whose answers are wrong in one token of one request.
func liar(t *testing.T, wrong bool) *httptest.Server {
	var mu sync.Mutex
	n := 0
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			io.WriteString(w, `{"data":[{"id":"mine","max_model_len":4000}]}`)
			return
		}
		if r.URL.Path == "/tokenize" {
			http.NotFound(w, r)
			return
		}
		var body struct {
			Prompt    []int32 `json:"prompt"`
			MaxTokens int     `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		ids := slices.Repeat([]int32{body.Prompt[0]}, body.MaxTokens)
		mu.Lock()
		if n++; n == 9 && wrong {
			ids[0]++
		}
		mu.Unlock()
		raw, _ := json.Marshal(ids)
		fmt.Fprintf(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"completion_tokens\":%d},\"kvlend\":{\"token_ids\":%s}}\n\ndata: [DONE]\n\n",
			body.MaxTokens, raw)
	}))
}

// TestWrongAnswers: a wrong answer fails the run and is told; the same server
// without it passes.
func TestWrongAnswers(t *testing.T) {
	one, err := (&trace.Synthetic{Sessions: 12, Rate: 1000, Turns: 1, First: 5, Next: 5, Answer: 3}).Make()
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []bool{false, true} {
		srv := liar(t, wrong)
		r, err := Run(t.Context(), Options{URL: srv.URL + "/v1/", Trace: one, Rounds: 2})
		srv.Close()
		if err != nil {
			t.Fatal(err)
		}
		if r.Checks.ReferenceBy != "" || r.Checks.Distinct != 12 || r.Checks.Repeated != 12 {
			t.Errorf("checks %+v", r.Checks)
		}
		err = r.Err()
		if (err != nil) != wrong || wrong && (r.Checks.Wrong != 1 || !strings.Contains(err.Error(), "session ")) {
			t.Errorf("wrong %v: %v, checks %+v", wrong, err, r.Checks)
		}
	}
}

// TestReferenceCatches: a server that is always wrong in the same way is found
// out by the reference.
func TestReferenceCatches(t *testing.T) {
	srv := liar(t, false)
	defer srv.Close()
	one, err := (&trace.Synthetic{Sessions: 4, Rate: 1000, Turns: 1, First: 5, Next: 5, Answer: 3}).Make()
	if err != nil {
		t.Fatal(err)
	}
	atlas, _ := configs.Default().Model("atlas")
	r, err := Run(t.Context(), Options{URL: srv.URL, Trace: one, Verify: 3, Reference: atlas})
	if err != nil {
		t.Fatal(err)
	}
	if r.Checks.Reference != 3 || r.Checks.Wrong != 3 || r.Err() == nil {
		t.Errorf("checks %+v, error %v", r.Checks, r.Err())
	}
}

func TestBaselines(t *testing.T) {
	if _, err := Baseline("pool", configs.Default()); err == nil || !strings.Contains(err.Error(), "overflow") {
		t.Errorf("a pool without disks gives %v", err)
	}
	base := configs.Default()
	base.Models[0].Overflow.Devices = []configs.Disk{{Name: "ssd0", Path: "/var/tmp/ssd0", Size: 64 << 20}}
	for _, name := range configs.Baselines() {
		s, err := Baseline(name, base)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := s.Config.Marshal()
		if err == nil {
			_, err = configs.Parse(raw, name)
		}
		if err != nil {
			t.Errorf("%s is no configuration: %v", name, err)
		}
		lends := slices.ContainsFunc(s.Config.Models, func(m configs.Model) bool { return m.Role == configs.RoleWorker })
		hosts := slices.ContainsFunc(s.Config.Models, func(m configs.Model) bool { return m.Host.Bytes > 0 })
		if disks := len(s.Config.Models[0].Overflow.Devices) > 0; disks != (name == "pool") {
			t.Errorf("%s: disks %v", name, disks)
		}
		if lends != (name == "lending" || name == "pool") || hosts != strings.HasPrefix(name, "host-offload") {
			t.Errorf("%s: lends %v, host memory %v", name, lends, hosts)
		}
		for i, m := range s.Config.Models {
			if m.Arena != configs.Default().Models[i].Arena {
				t.Errorf("%s: %s has another arena", name, m.Name)
			}
		}
	}
	if _, err := Baseline("none", configs.Default()); err == nil || !strings.Contains(err.Error(), "local-only") {
		t.Errorf("an unknown baseline gives %v", err)
	}
}

func TestWithLinks(t *testing.T) {
	c := configs.Default()
	s := System{Name: "x", Config: c}
	if _, err := s.WithLinks(2); err == nil || !strings.Contains(err.Error(), "fabric.pace") {
		t.Errorf("without paced links: %v", err)
	}
	c.Fabric.Pace = true
	c.Links = []configs.Link{{From: "gpu0", To: "gpu1", Bandwidth: 1000, Latency: configs.Duration(time.Millisecond)}}
	if _, err := s.WithLinks(0); err == nil {
		t.Error("links 0 times as fast were accepted")
	}
	twice, err := s.WithLinks(2)
	if err != nil {
		t.Fatal(err)
	}
	if l := twice.Config.Links[0]; l.Bandwidth != 2000 || l.Latency.D() != 500*time.Microsecond || c.Links[0].Bandwidth != 1000 {
		t.Errorf("links %+v, the original %+v", l, c.Links[0])
	}
	if got := twice.links(); len(got) != 1 || !strings.Contains(got[0], "gpu0<->gpu1 2") || twice.Name != "x, links x2" {
		t.Errorf("%s with links %q", twice.Name, got)
	}
}

func TestOptions(t *testing.T) {
	tr := small(t)
	sys := System{Name: "x", Config: configs.Default()}
	for want, opt := range map[string]Options{
		"Trace is nil":      {URL: "http://x"},
		"either":            {Trace: tr},
		"Binary":            {Trace: tr, Systems: []System{sys}},
		"Rounds is -1":      {Trace: tr, URL: "http://x", Rounds: -1},
		"Timing is \"now\"": {Trace: tr, URL: "http://x", Timing: "now"},
		"Prompts is \"p\"":  {Trace: tr, URL: "http://x", Prompts: "p"},
		"Vocab is -1":       {Trace: tr, URL: "http://x", Vocab: -1},
		"Retries -1":        {Trace: tr, URL: "http://x", Retries: -1},
		"two loads":         {Trace: tr, Binary: "b", Systems: []System{sys}, Beside: []Beside{{"atlas", tr}}},
		"a load beside":     {Trace: tr, URL: "http://x", Beside: []Beside{{Model: "birch"}}},
		"lengths is 0.5":    {Trace: tr, URL: "http://x", Shape: trace.Shape{Tokens: 0.5}},
		"two systems":       {Trace: tr, Binary: "b", Systems: []System{sys, sys}},
		"no model \"y\"":    {Trace: tr, Binary: "b", Systems: []System{sys}, Model: "y"},
		"an address such":   {Trace: tr, URL: "nowhere"},
	} {
		if _, err := Run(t.Context(), opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestSystemsMustAgree: one model cannot be compared with another.
func TestSystemsMustAgree(t *testing.T) {
	other, err := Baseline("lending", configs.Default())
	if err != nil {
		t.Fatal(err)
	}
	other.Name = "other"
	other.Config.Models[0].Source = "builtin:random-birch"
	_, err = Run(t.Context(), Options{Trace: small(t), Binary: "b", Systems: []System{{Name: "x", Config: configs.Default()}, other}})
	if err == nil || !strings.Contains(err.Error(), "builtin:random-birch") {
		t.Errorf("different weights give %v", err)
	}
}
