package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/apitest"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/internal/harness"
)

// binary is the kvlend that TestMain built; scratch is its directory.
var binary, scratch string

func TestMain(m *testing.M) {
	code, err := build(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func build(run func() int) (int, error) {
	dir, err := os.MkdirTemp("", "kvc")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	scratch, binary = dir, filepath.Join(dir, "kvlend")
	c := exec.Command("go", "build", "-o", binary, "github.com/kvlend/kvlend/cmd/kvlend")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build of kvlend: %w\n%s", err, out)
	}
	return run(), nil
}

// system is a running system with an audit directory.
type system struct {
	*harness.System
	t     *testing.T
	audit string
}

func startSystem(t *testing.T) *system {
	t.Helper()
	dir, err := os.MkdirTemp(scratch, "")
	if err != nil {
		t.Fatal(err)
	}
	c := configs.Default()
	c.Gateway.Listen = "127.0.0.1:0"
	c.Lending.IdleReturn = configs.Duration(time.Minute) // units stay away until somebody asks
	c.Audit.Dir = filepath.Join(dir, "audit")
	s, err := harness.Start(t.Context(), harness.Options{Binary: binary, Dir: dir, Config: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Logf("log of the system:\n%s", s.Log())
		}
	})
	return &system{System: s, t: t, audit: c.Audit.Dir}
}

// run runs a command of the binary against the system.
func (s *system) run(args ...string) (out string, code int) {
	s.t.Helper()
	c := exec.CommandContext(s.t.Context(), binary, append(args, "--run-dir", s.RunDir)...)
	raw, err := c.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return string(raw), c.ProcessState.ExitCode()
}

// ask sends a completion of the given length.
func (s *system) ask(ctx context.Context, model string, prompt, tokens int) (status int, retry string, err error) {
	ids := make([]int, prompt)
	for i := range ids {
		ids[i] = i % 200
	}
	body, err := json.Marshal(map[string]any{"model": model, "prompt": ids, "max_tokens": tokens, "ignore_eos": true})
	if err != nil {
		return 0, "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Endpoint+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, res.Header.Get("Retry-After"), err
}

// want asks and expects a status.
func (s *system) want(status int, model string, prompt, tokens int) (retry string) {
	s.t.Helper()
	got, retry, err := s.ask(s.t.Context(), model, prompt, tokens)
	if err != nil || got != status {
		s.t.Errorf("%s: HTTP %d (%v), want %d", model, got, err, status)
	}
	return retry
}

// holds runs the check, which must find that all holds.
func (s *system) holds() {
	s.t.Helper()
	if out, code := s.run("check"); code != 0 {
		s.t.Errorf("kvlend check: exit code %d\n%s", code, out)
	}
}

func TestDrain(t *testing.T) {
	s := startSystem(t)
	s.want(200, "atlas", 3000, 4) // borrows from both workers
	s.holds()
	if st, err := s.Status(t.Context()); err != nil || st["birch"].Units[0].Lent == 0 {
		t.Fatalf("birch has lent nothing: the test would show nothing (%v)", err)
	}
	running := make(chan error, 1)
	go func() {
		code, _, err := s.ask(t.Context(), "birch", 16, 400)
		if err == nil && code != 200 {
			err = fmt.Errorf("HTTP %d", code)
		}
		running <- err
	}()
	s.await("birch to run a request", func() bool {
		st, err := s.Status(t.Context())
		return err == nil && st["birch"] != nil && st["birch"].Running == 1
	})
	out, code := s.run("drain", "birch", "--timeout", "60s", "--json")
	if code != 0 || !strings.Contains(out, `"drained":true`) {
		t.Errorf("drain: exit code %d\n%s", code, out)
	}
	select {
	case err := <-running:
		if err != nil {
			t.Errorf("the request that was running: %v", err)
		}
	default:
		t.Error("drained while a request was running")
	}
	if retry := s.want(503, "birch", 16, 4); retry == "" {
		t.Error("503 without Retry-After")
	}
	s.want(200, "atlas", 1200, 4) // what cedar lends is enough
	st, err := s.Status(t.Context())
	if err != nil || !st["birch"].Draining || st["birch"].Units[0].Lent != 0 || st["cedar"].Units[0].Lent == 0 {
		t.Errorf("birch %+v, cedar %+v (%v)", st["birch"], st["cedar"], err)
	}
	if out, code := s.run("drain", "atlas"); code != 0 {
		t.Errorf("drain of the master: exit code %d\n%s", code, out)
	}
	if st, err = s.Status(t.Context()); err != nil || st["cedar"].Units[0].Lent != 0 {
		t.Errorf("cedar %+v (%v)", st["cedar"].Units, err)
	}
	s.holds()
	for _, name := range []string{"birch", "atlas"} {
		if out, code := s.run("drain", name, "--undo"); code != 0 {
			t.Errorf("undo: exit code %d\n%s", code, out)
		}
	}
	s.want(200, "birch", 16, 4)
	s.want(200, "atlas", 4000, 4)
	if out, code := s.run("drain", "nobody"); code != 2 || !strings.Contains(out, "nobody") {
		t.Errorf("drain of an unknown model: exit code %d\n%s", code, out)
	}
	s.holds()
}

// await waits until a look at the system shows what is expected.
func (s *system) await(what string, ok func() bool) {
	s.t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			s.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestCheckAndAuditOfALivingSystem(t *testing.T) {
	s := startSystem(t)
	done := make(chan error, 3)
	for _, r := range []struct {
		model          string
		prompt, tokens int
	}{{"atlas", 3000, 100}, {"birch", 1500, 60}, {"cedar", 1500, 60}} {
		go func() {
			code, _, err := s.ask(t.Context(), r.model, r.prompt, r.tokens)
			if err == nil && code != 200 {
				err = fmt.Errorf("%s: HTTP %d", r.model, code)
			}
			done <- err
		}()
	}
	for left := 3; left > 0; {
		s.holds() // while memory moves to and fro
		select {
		case err := <-done:
			left--
			if err != nil {
				t.Error(err)
			}
		default:
		}
	}
	master, err := s.Find("atlas")
	if err != nil {
		t.Fatal(err)
	}
	if out, code := s.run("check", "--json"); code != 0 || !strings.Contains(out, `"ok": true`) {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if out, code := s.run("check"); code != 1 || !strings.Contains(out, "cannot be checked") {
		t.Errorf("check of a system that is gone: exit code %d\n%s", code, out)
	}
	s.audited(master.PID)
}

// audited checks that the account adds up: every unit that was lent came home,
// under the epoch of its grant, before it was lent again.
func (s *system) audited(master int) {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.audit, "*.jsonl"))
	if err != nil || len(files) != 3 {
		s.t.Fatalf("audit files: %v (%v), want those of two workers and the supervisor", files, err)
	}
	for _, f := range files {
		out, err := exec.Command(binary, "audit", "--json", f).Output()
		if err != nil {
			s.t.Fatalf("audit: %v", err)
		}
		held := map[uint64]uint64{} // unit -> epoch
		grants := 0
		for line := range strings.Lines(string(out)) {
			var r struct {
				Kind    string
				PeerPID int `json:"peer_pid"`
				Units   [][2]uint64
			}
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				s.t.Fatal(err)
			}
			for _, u := range r.Units {
				switch r.Kind {
				case "grant":
					if e, twice := held[u[0]]; twice || r.PeerPID != master {
						s.t.Errorf("%s: unit %d lent to pid %d at epoch %d and held at %d", f, u[0], r.PeerPID, u[1], e)
					}
					held[u[0]] = u[1]
					grants++
				case "fence":
					held[u[0]]++ // until it is confirmed
				case "return", "confirm":
					if held[u[0]] != u[1] {
						s.t.Errorf("%s: unit %d came home at epoch %d, lent at %d", f, u[0], u[1], held[u[0]])
					}
					delete(held, u[0])
				}
			}
		}
		if supervisor := strings.HasSuffix(f, "supervisor.jsonl"); supervisor != (grants == 0) {
			s.t.Errorf("%s: %d units lent", f, grants)
		}
	}
}

// TestStrangersStopNobody lets clients hold every socket of the system, silent
// or with rubbish, while requests go on.
func TestStrangersStopNobody(t *testing.T) {
	s := startSystem(t)
	var sockets []string
	err := filepath.WalkDir(s.RunDir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type()&os.ModeSocket != 0 {
			sockets = append(sockets, path)
		}
		return err
	})
	if err != nil || len(sockets) < 7 { // supervisor, admin, 3 models for the gateway, 2 workers for the master
		t.Fatalf("sockets %v (%v)", sockets, err)
	}
	for _, dir := range []string{s.RunDir, filepath.Dir(sockets[0])} {
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: mode %v (%v), want 0700", dir, st.Mode(), err)
		}
	}
	rubbish := bytes.Repeat([]byte{0xff, 0, 0x7f, '\n'}, 4096)
	huge := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'}, make([]byte, 48)...)
	huge = append(huge, 0x02, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff) // a frame of 2^63-1 bytes
	for _, path := range sockets {
		kind := "unix"
		if strings.HasSuffix(path, "supervisor.sock") {
			kind = "unixpacket"
		}
		for i := range 24 {
			c, err := net.Dial(kind, path)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			t.Cleanup(func() { c.Close() })
			c.SetWriteDeadline(time.Now().Add(time.Second))
			// Being cut off in mid-write is as good as being ignored.
			switch i % 4 {
			case 1:
				_, _ = c.Write(rubbish)
			case 2:
				_, _ = c.Write(huge)
			case 3:
				_, _ = c.Write(huge[:11])
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for _, model := range []string{"birch", "atlas", "cedar"} {
		if code, _, err := s.ask(ctx, model, 2500, 4); code != 200 && model == "atlas" || code >= 500 || err != nil {
			t.Errorf("%s: HTTP %d (%v)", model, code, err)
		}
	}
	s.holds()
	// A process that is started again joins and links up past them.
	for _, name := range []string{"birch", "atlas", "gateway"} {
		p, err := s.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Signal(p, 9); err != nil {
			t.Fatal(err)
		}
		s.await("a new "+name, func() bool {
			st, err := s.Status(ctx)
			now, ferr := s.Find(name)
			return err == nil && ferr == nil && now.PID != p.PID && len(st) == 3 && st["birch"] != nil && st["atlas"] != nil
		})
	}
	if out, code := s.run("status"); code != 0 || !strings.Contains(out, "started again 1 times") {
		t.Errorf("status: exit code %d\n%s", code, out)
	}
	s.holds()
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

// TestCheckReportsAViolation: a gateway whose one worker has lost units.
func TestCheckReportsAViolation(t *testing.T) {
	dir, err := os.MkdirTemp(scratch, "")
	if err != nil {
		t.Fatal(err)
	}
	up := apitest.New()
	g, err := api.New(api.Options{Models: []*api.Model{apitest.Model("toy", up)}})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", filepath.Join(dir, "admin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	admin := &http.Server{Handler: g.AdminHandler()}
	served := make(chan error, 1)
	go func() { served <- admin.Serve(ln) }()
	t.Cleanup(func() {
		admin.Close()
		<-served
	})
	run := func(want int, text string) {
		t.Helper()
		c := exec.Command(binary, "check", "--run-dir", dir, "--every", "10ms")
		out, err := c.CombinedOutput()
		if c.ProcessState == nil || c.ProcessState.ExitCode() != want || !strings.Contains(string(out), text) {
			t.Errorf("kvlend check: %v, want exit code %d and %q\n%s", err, want, text, out)
		}
	}
	run(1, "toy does not report")
	up.SetReport(&wire.CheckReport{Model: "toy", Total: 10, Local: 9})
	run(3, "9 units at home and 0 away are not 10")
	up.SetReport(&wire.CheckReport{Model: "toy", Total: 10, Local: 10})
	run(0, "ok")
	up.SetAlive(false)
	run(1, "not connected")
}
