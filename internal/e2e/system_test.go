package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator/wire"
)

// Limits within which things must happen on a busy machine.
const (
	startLimit = 30 * time.Second
	stopLimit  = 10 * time.Second
	moveLimit  = 20 * time.Second // memory that changes hands
)

// view is what `kvlend up --json` prints.
type view struct {
	Endpoint   string `json:"endpoint"`
	GatewayPID int    `json:"gateway_pid"`
	RunDir     string `json:"run_dir"`
	Models     []struct {
		Name           string `json:"name"`
		Role           string `json:"role"`
		PID            int    `json:"pid"`
		Arena          int64  `json:"arena_bytes"`
		Block          int64  `json:"block_bytes"`
		MaxTokens      int    `json:"max_tokens"`
		MaxTokensAlone int    `json:"max_tokens_without_lending"`
		NLSC           int    `json:"n_lsc"`
		NRC            int    `json:"n_rc"`
	} `json:"models"`
	Lending []struct {
		Worker   string `json:"worker"`
		Units    int    `json:"units"`
		Lendable int    `json:"lendable_units"`
		K        int    `json:"k"`
	} `json:"lending"`
}

// System is one running `kvlend up`.
type System struct {
	view
	t      testing.TB
	cmd    *exec.Cmd
	stderr string // file
	exited chan struct{}
	memory map[uint64]bool // inodes of its shared memory
	ended  bool            // the test ended it on its own
	http   *http.Client
	admin  *http.Client
}

// change edits the configuration of a system.
type change func(*configs.Config)

func model(c *configs.Config, name string) *configs.Model {
	for i := range c.Models {
		if c.Models[i].Name == name {
			return &c.Models[i]
		}
	}
	panic("no model " + name)
}

// eager makes memory go home and become lendable again within a second, which
// takes a minute by default.
func eager(c *configs.Config) {
	c.Lending.IdleReturn = configs.Duration(400 * time.Millisecond)
	c.Lending.ScaleDown.Window = configs.Duration(time.Second)
}

// bytewise gives every model its twin with random weights, whose text has as
// many tokens as bytes and never ends on its own.
func bytewise(c *configs.Config) {
	for i := range c.Models {
		c.Models[i].Source = strings.Replace(c.Models[i].Source, configs.SourceBuiltin, configs.SourceBuiltin+"random-", 1)
	}
}

// writeConfig writes the built-in default with changes to a file, with models
// that have random weights.
func writeConfig(t testing.TB, changes ...change) string {
	t.Helper()
	c := configs.Default()
	c.Gateway.Listen = "127.0.0.1:0"
	eager(c)
	bytewise(c)
	for _, f := range changes {
		f(c)
	}
	onFabric(c)
	raw, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(tempDir(t), "kvlend.yaml")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Start runs `kvlend up` on the default configuration with changes and returns
// when it serves. Its end and what it leaves behind are checked at the end of
// the test.
func Start(t testing.TB, changes ...change) *System {
	t.Helper()
	s := launch(t, filepath.Join(tempDir(t), "r"), "up", "-c", writeConfig(t, changes...))
	s.ready()
	return s
}

// launch starts a command of the binary with a run directory.
func launch(t testing.TB, runDir string, args ...string) *System {
	t.Helper()
	s := &System{t: t, exited: make(chan struct{}), stderr: filepath.Join(tempDir(t), "stderr")}
	s.RunDir = runDir
	s.cmd = exec.Command(kvlend, append(args, "--run-dir", runDir, "--json")...)
	// A group of its own, as a shell with job control makes it.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	errs, err := os.Create(s.stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer errs.Close()
	s.cmd.Stderr = errs
	out, err := os.Create(s.stdout())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	s.cmd.Stdout = out
	s.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	s.admin = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.RunDir, "admin.sock"))
		},
	}}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.cmd.Wait()
		close(s.exited)
	}()
	t.Cleanup(s.cleanup)
	return s
}

func (s *System) stdout() string { return s.stderr + ".out" }

// ready waits for the line of JSON that says that the system serves.
func (s *System) ready() {
	s.t.Helper()
	eventually(s.t, startLimit, "start of the system", func() error {
		f, err := os.Open(s.stdout())
		if err != nil {
			return err
		}
		defer f.Close()
		line, err := bufio.NewReader(f).ReadBytes('\n')
		if err == nil {
			return json.Unmarshal(line, &s.view)
		}
		select {
		case <-s.exited:
			s.t.Fatalf("kvlend up ended (%v):\n%s", s.cmd.ProcessState, s.log())
		default:
		}
		return err
	})
	s.memory = map[uint64]bool{}
	for _, pid := range s.pids() {
		for inode := range sharedMemory(pid) {
			s.memory[inode] = true
		}
	}
	if len(s.memory) == 0 {
		s.t.Error("no shared memory found: the check for what is left behind would check nothing")
	}
}

// pids of the supervisor and of everything that it started.
func (s *System) pids() []int {
	out := []int{s.cmd.Process.Pid}
	if s.GatewayPID != 0 {
		out = append(out, s.GatewayPID)
	}
	for _, m := range s.Models {
		out = append(out, m.PID)
	}
	return out
}

func (s *System) pid(name string) int {
	for _, m := range s.Models {
		if m.Name == name {
			return m.PID
		}
	}
	s.t.Fatalf("no process of model %s", name)
	return 0
}

// log is what the processes wrote to standard error.
func (s *System) log() string {
	b, err := os.ReadFile(s.stderr)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Status asks the gateway's admin socket, as `kvlend status` does.
func (s *System) Status() (*api.AdminStatus, error) {
	res, err := s.admin.Get("http://admin/admin/status")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status: %s", res.Status)
	}
	st := new(api.AdminStatus)
	return st, json.NewDecoder(res.Body).Decode(st)
}

// modelStatus asks for one model.
func (s *System) modelStatus(name string) (*wire.Status, error) {
	st, err := s.Status()
	if err != nil {
		return nil, err
	}
	for _, m := range st.Models {
		if m.Name == name && m.Status != nil {
			return m.Status, nil
		}
	}
	return nil, fmt.Errorf("%s does not answer", name)
}

// until waits for a state of one model.
func (s *System) until(what, name string, ok func(*wire.Status) bool) *wire.Status {
	s.t.Helper()
	var last *wire.Status
	eventually(s.t, moveLimit, what, func() error {
		st, err := s.modelStatus(name)
		if err != nil {
			return err
		}
		if last = st; !ok(st) {
			return fmt.Errorf("%s: %d running, %d waiting, blocks %+v, units %+v", name, st.Running, st.Waiting, st.Blocks, st.Units)
		}
		return nil
	})
	return last
}

// lent counts the units of a worker that are away.
func lent(st *wire.Status) int {
	n := 0
	for _, u := range st.Units {
		n += u.Lent + u.Reclaiming + u.Fenced
	}
	return n
}

// idle says what a model still holds or does.
func idle(st *wire.Status) error {
	switch {
	case st.Running != 0 || st.Waiting != 0:
		return fmt.Errorf("%s: %d running, %d waiting", st.Model.Name, st.Running, st.Waiting)
	case st.Blocks.LocalUsed != 0 || st.Blocks.BorrowedUsed != 0:
		return fmt.Errorf("%s: blocks %+v", st.Model.Name, st.Blocks)
	}
	return nil
}

// drained drains a master, so that what it keeps in borrowed memory goes home,
// and lets it serve again.
func (s *System) drained(name string) error {
	for _, undo := range []bool{false, true} {
		body := fmt.Sprintf(`{"model": %q, "undo": %t}`, name, undo)
		res, err := s.admin.Post("http://admin/admin/drain", "application/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("drain of %s: %s", name, res.Status)
		}
	}
	return nil
}

// settle waits until nobody holds anything and every unit is at home.
func (s *System) settle() {
	s.t.Helper()
	eventually(s.t, moveLimit, "all memory free and at home", func() error {
		st, err := s.Status()
		if err != nil {
			return err
		}
		for _, m := range st.Models {
			if m.Status == nil {
				return fmt.Errorf("%s does not answer", m.Name)
			}
			if m.Role == configs.RoleMaster && idle(m.Status) == nil {
				if err := s.drained(m.Name); err != nil {
					return err
				}
			}
			if err := idle(m.Status); err == nil && lent(m.Status)+m.Status.Blocks.BorrowedFree+m.Status.Blocks.BorrowedKept != 0 {
				return fmt.Errorf("%s: units %+v, blocks %+v", m.Name, m.Status.Units, m.Status.Blocks)
			} else if err != nil {
				return err
			}
		}
		return nil
	})
}

// signal sends a signal to the supervisor.
func (s *System) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Errorf("signal %v: %v", sig, err)
	}
}

// wait waits for the supervisor's end and checks its exit code and that it
// leaves nothing behind.
func (s *System) wait(code int) {
	s.t.Helper()
	s.ended = true
	timer := time.NewTimer(stopLimit)
	defer timer.Stop()
	select {
	case <-s.exited:
	case <-timer.C:
		s.kill()
		s.t.Fatalf("the supervisor did not end within %v:\n%s", stopLimit, s.log())
	}
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		s.t.Errorf("exit code %d, want %d:\n%s", got, code, s.log())
	}
	s.nothingLeft(true)
}

// nothingLeft checks for processes, memory, sockets and, if it should be gone,
// the run directory.
func (s *System) nothingLeft(runDir bool) {
	s.t.Helper()
	s.http.CloseIdleConnections()
	s.admin.CloseIdleConnections()
	eventually(s.t, stopLimit, "end of every process", func() error {
		for _, pid := range s.pids() {
			if state := processState(pid); state != "" {
				return fmt.Errorf("pid %d is still there (%s)", pid, state)
			}
		}
		// Those that were started again are not among the pids.
		if left := mentioning(s.RunDir); len(left) > 0 {
			return fmt.Errorf("%v are still there", left)
		}
		return nil
	})
	if who := holders(s.memory); len(who) > 0 {
		s.t.Errorf("shared memory is still held by pids %v", who)
	}
	if !runDir {
		return
	}
	if _, err := os.Stat(s.RunDir); !errors.Is(err, os.ErrNotExist) {
		s.t.Errorf("run directory %s: %v, it should be gone", s.RunDir, err)
	}
	if left := unixSockets(s.t, s.RunDir); len(left) > 0 {
		s.t.Errorf("sockets are left: %v", left)
	}
}

// Stop ends the system as an operator would and checks how.
func (s *System) Stop() {
	s.t.Helper()
	s.signal(syscall.SIGINT)
	s.wait(0)
}

func (s *System) kill() {
	for _, pid := range s.pids() {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	<-s.exited
}

func (s *System) cleanup() {
	defer func() {
		if s.t.Failed() {
			s.t.Logf("standard error of kvlend:\n%s", tail(s.log(), 60))
		}
	}()
	if s.ended {
		return
	}
	if s.t.Failed() || s.Endpoint == "" {
		s.kill()
		return
	}
	s.settle()
	s.verify()
	s.Stop()
}

// verify runs the checker that operators have.
func (s *System) verify() {
	s.t.Helper()
	out, err := exec.Command(kvlend, "check", "--run-dir", s.RunDir, "--every", "20ms").CombinedOutput()
	if err != nil {
		s.t.Errorf("kvlend check: %v\n%s", err, out)
	}
}

func tail(text string, lines int) string {
	all := strings.Split(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
