package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/kernels"
)

// TestInterruptWhileStreaming: Ctrl-C reaches the whole process group of the
// shell's job. Streams end, complete or with an error, never in silence, and
// nothing stays behind.
func TestInterruptWhileStreaming(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			s := Start(t)
			var streams []<-chan result
			for i, name := range []string{"atlas", "birch", "cedar", "atlas"} {
				q := Request{Model: name, Prompt: text(uint64(i), 900), MaxTokens: 3000}
				streams = append(streams, background(s.begin(q, 2)))
			}
			if err := syscall.Kill(-s.cmd.Process.Pid, sig); err != nil {
				t.Fatal(err)
			}
			for i, ch := range streams {
				// The gateway waits for a while: what is nearly done may end.
				if r := <-ch; r.err == nil && len(r.Tokens) != 3000 {
					t.Errorf("stream %d ended after %d tokens as if it were complete", i, len(r.Tokens))
				}
			}
			s.wait(0)
		})
	}
}

// TestKilledSupervisor: nobody can tidy up after kill -9, so the children must
// end on their own, and the next system starts in the same directory.
func TestKilledSupervisor(t *testing.T) {
	s := Start(t)
	st := s.begin(Request{Model: "atlas", Prompt: text(1, 1500), MaxTokens: 2000}, 2)
	defer st.Close()
	s.ended = true
	s.signal(syscall.SIGKILL)
	<-s.exited
	s.nothingLeft(false)
	next := launch(t, s.RunDir, "up", "-c", writeConfig(t))
	next.ready()
	q := prompts()[4]
	got, _, err := next.Complete(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	next.compare("after a crash", q, got, kernels.BF16)
	next.settle()
	next.signal(syscall.SIGINT)
	next.ended = true
	<-next.exited
	next.nothingLeft(false) // the directory was there before
	if left, _ := filepath.Glob(filepath.Join(s.RunDir, "*")); len(left) > 0 {
		t.Errorf("left in the run directory: %v", left)
	}
}

// refused runs a command that must fail and returns what it said.
func refused(t *testing.T, code int, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, kvlend, args...).CombinedOutput()
	exit, ok := err.(*exec.ExitError)
	if !ok || exit.ExitCode() != code {
		t.Errorf("%v: %v, want exit code %d\n%s", args, err, code, out)
	}
	return string(out)
}

func mention(t *testing.T, said string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(said, p) {
			t.Errorf("the message lacks %q:\n%s", p, said)
		}
	}
}

func gone(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("run directory %s is left", dir)
	}
	if left := unixSockets(t, dir); len(left) > 0 {
		t.Errorf("sockets are left: %v", left)
	}
	if pids := mentioning(dir); len(pids) > 0 {
		t.Errorf("processes are left: %v", pids)
	}
}

// mentioning lists the processes with dir on their command line.
func mentioning(dir string) []string {
	var out []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if raw, err := os.ReadFile(f); err == nil && strings.Contains(string(raw), dir+"\x00") {
			out = append(out, f)
		}
	}
	return out
}

func TestSecondSystemIsRefused(t *testing.T) {
	s := Start(t)
	said := refused(t, 1, "up", "--run-dir", s.RunDir, "--listen", "127.0.0.1:0")
	mention(t, said, "in use by another kvlend", fmt.Sprintf("pid %d", s.cmd.Process.Pid), "choose another run_dir")
	dir := filepath.Join(tempDir(t), "r")
	address := strings.TrimPrefix(s.Endpoint, "http://")
	said = refused(t, 1, "up", "--run-dir", dir, "--listen", address)
	mention(t, said, "gateway.listen", address, "address already in use")
	gone(t, dir)
	out, err := exec.Command(kvlend, "status", "--run-dir", s.RunDir, "--json").Output()
	var st api.AdminStatus
	if err != nil || json.Unmarshal(out, &st) != nil || len(st.Models) != 3 {
		t.Errorf("kvlend status: %v\n%s", err, out)
	}
	mention(t, refused(t, 1, "status", "--run-dir", dir), "no system answers", "kvlend up")
}

// TestKilledWorker: the loss of a process ends the system, in order, with an
// error that says whose.
func TestKilledWorker(t *testing.T) {
	s := Start(t)
	answer := background(s.begin(Request{Model: "atlas", Prompt: text(3, 2000), MaxTokens: 2000}, 2))
	pid := s.pid("birch")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if r := <-answer; r.err == nil && len(r.Tokens) != 2000 {
		t.Errorf("the stream ended after %d tokens as if it were complete", len(r.Tokens))
	}
	s.wait(1)
	mention(t, s.log(), "kvlend: worker birch", fmt.Sprintf("pid %d", pid), "killed")
}

// TestClientGoesAway: hanging up ends the request and frees what it held,
// while it streams and while it is still computing its prompt.
func TestClientGoesAway(t *testing.T) {
	s := Start(t)
	st := s.begin(Request{Model: "atlas", Prompt: text(1, 2500), MaxTokens: 2000}, 3)
	s.until("a running request", "atlas", func(st *wire.Status) bool { return st.Running == 1 && st.Blocks.BorrowedUsed > 0 })
	st.Close()
	free := func(st *wire.Status) bool {
		return st.Running == 0 && st.Waiting == 0 && st.Blocks.LocalUsed == 0 && st.Blocks.BorrowedUsed == 0
	}
	s.until("the end of the request", "atlas", free)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, _, err := s.Complete(ctx, Request{Model: "atlas", Prompt: text(2, 4000), MaxTokens: 500})
		failed <- err
	}()
	s.until("a request that computes its prompt", "atlas", running)
	cancel()
	if err := <-failed; err == nil {
		t.Error("the request was answered")
	}
	s.until("the end of the request", "atlas", free)
}

// TestHealthWhileBusy: the gateway answers at once while every model computes.
func TestHealthWhileBusy(t *testing.T) {
	s := Start(t)
	var busy []<-chan result
	var asked []Request
	for i, name := range []string{"atlas", "birch", "cedar"} {
		q := Request{Model: name, Prompt: text(uint64(10+i), 900), MaxTokens: 600}
		st := make(chan result, 1)
		go func() {
			a, _, err := s.Complete(t.Context(), q)
			st <- result{Answer: a, err: err}
		}()
		asked, busy = append(asked, q), append(busy, st)
	}
	s.until("a busy model", "cedar", running)
	for range 20 {
		c := http.Client{Timeout: 5 * time.Second}
		res, err := c.Get(s.Endpoint + "/health")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Errorf("health: %s", res.Status)
		}
		c.CloseIdleConnections()
	}
	for i, ch := range busy {
		s.check(asked[i], <-ch)
	}
}
