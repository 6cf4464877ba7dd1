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

// mentioning gives the command lines, by the files that hold them, of the processes
// that name dir or something in it there.
func mentioning(dir string) map[string]string {
	out := map[string]string{}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if line := string(raw); err == nil && (strings.Contains(line, dir+"\x00") || strings.Contains(line, dir+"/")) {
			out[f] = line
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

// TestKilledProcess: a process that dies takes its own requests with it, each
// with an error, and is started again; everybody else's answers are not a bit
// different, and all memory comes home.
func TestKilledProcess(t *testing.T) {
	for _, name := range []string{"birch", "atlas", "gateway"} {
		t.Run(name, func(t *testing.T) {
			s := Start(t)
			long := Request{Model: "atlas", Prompt: text(3, 2000), MaxTokens: 600}
			answer := background(s.begin(long, 2))
			s.until("units of birch with the master", "birch", func(st *wire.Status) bool { return lent(st) > 0 })
			pid := s.GatewayPID
			if name != "gateway" {
				pid = s.pid(name)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			r := <-answer
			if name == "birch" {
				s.check(long, r)
			} else if r.err == nil && len(r.Tokens) != long.MaxTokens {
				t.Errorf("the stream ended after %d tokens as if it were complete", len(r.Tokens))
			}
			s.restarted(name, pid)
			for _, q := range []Request{long, {Model: "birch", Prompt: text(0, s.longest("birch")-40), MaxTokens: 40}} {
				got, _, err := s.Complete(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				s.compare("after the crash", q, got, kernels.BF16)
			}
			mention(t, s.log(), fmt.Sprintf("name=%s", name), fmt.Sprintf("pid=%d", pid), "killed")
		})
	}
}

// restarted waits until another process answers in the place of pid.
func (s *System) restarted(name string, pid int) {
	s.t.Helper()
	eventually(s.t, moveLimit, "the next process of "+name, func() error {
		st, err := s.Status()
		if err != nil {
			return err
		}
		for _, m := range st.Models {
			if !m.Alive || m.Status == nil || m.Status.Model.PID == pid {
				return fmt.Errorf("%s: alive %v, %+v", m.Name, m.Alive, m.Status)
			}
		}
		res, err := s.http.Get(s.Endpoint + "/health")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("health: %s", res.Status)
		}
		return nil
	})
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
