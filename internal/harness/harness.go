// Package harness runs a whole kvlend system from its binary, for experiments
// and tests that need real processes: it starts `kvlend up`, finds the
// processes, asks for their state, signals them, cuts their sockets, and tells
// what a system that has ended left behind.
package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/internal/supervisor"
)

// stopLimit is how long a system may take to stop when it was asked to.
const stopLimit = 15 * time.Second

// Options of a system.
type Options struct {
	Binary string // path of kvlend
	// Dir is a directory with a short name, for the run directory (Dir/r), the
	// configuration and the logs. It is the caller's to make and to remove.
	Dir    string
	Config *configs.Config
}

// System is one running `kvlend up`. Its methods are safe for concurrent use.
type System struct {
	RunDir   string
	Endpoint string // such as http://127.0.0.1:21033
	View     View   // what `kvlend up` printed

	binary string
	cmd    *exec.Cmd
	log    string // path
	exited chan struct{}
	admin  *http.Client
}

// View is the part of `kvlend up --json` that experiments use.
type View struct {
	Endpoint string `json:"endpoint"`
	Emulated bool   `json:"emulated"` // the fabric's links or its driver are
	Models   []struct {
		Name      string `json:"name"`
		Role      string `json:"role"`
		MaxTokens int    `json:"max_tokens"`
	} `json:"models"`
	Lending []struct {
		Worker string `json:"worker"`
		Units  int    `json:"units"`
	} `json:"lending"`
}

// MaxTokens is the longest sequence of a model, 0 if there is no such model.
func (v View) MaxTokens(model string) int {
	for _, m := range v.Models {
		if m.Name == model {
			return m.MaxTokens
		}
	}
	return 0
}

// starts numbers the logs of systems that run in one directory one by one.
var starts atomic.Uint64

// Start starts a system and returns when it serves. The caller ends it with
// Stop or Kill.
func Start(ctx context.Context, opt Options) (*System, error) {
	raw, err := opt.Config.Marshal()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(opt.Dir, "kvlend.yaml")
	if err := os.WriteFile(config, raw, 0o600); err != nil {
		return nil, err
	}
	s := &System{
		RunDir: filepath.Join(opt.Dir, "r"), binary: opt.Binary, exited: make(chan struct{}),
		log: filepath.Join(opt.Dir, fmt.Sprintf("log%d", starts.Add(1))),
	}
	s.admin = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", supervisor.AdminSocket(s.RunDir))
		},
	}}
	s.cmd = exec.Command(opt.Binary, "up", "-c", config, "--run-dir", s.RunDir, "--json")
	// A group of its own: a terminal's Ctrl-C is for whoever runs the system. When
	// that one is killed, the system stops.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// run starts the process and waits for the line that says that it serves.
func (s *System) run(ctx context.Context) error {
	log, err := os.Create(s.log)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd.Stderr = log
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	s.cmd.Stdout = in
	started := make(chan error, 1)
	go func() {
		// The kernel sends the parent-death signal when the thread ends that started
		// the child: this one lives as long as the child does.
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			s.cmd.Wait()
			close(s.exited)
		}
	}()
	err = <-started
	in.Close()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { out.SetReadDeadline(time.Now()) })
	defer stop()
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s.View)
	}
	if err != nil {
		s.Kill()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("%skvlend up did not come to serve: %w", lastLines(s.Log()), err)
	}
	s.Endpoint = s.View.Endpoint
	return nil
}

// Log is what the processes have written to standard error.
func (s *System) Log() string {
	b, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Exited is closed when the supervisor has ended.
func (s *System) Exited() <-chan struct{} { return s.exited }

// Stop ends the system as an operator does and reports how it ended and what
// it left behind.
func (s *System) Stop() error {
	s.cmd.Process.Signal(syscall.SIGINT)
	select {
	case <-s.exited:
	case <-time.After(stopLimit):
		s.Kill()
		return fmt.Errorf("the supervisor did not end within %v of being asked to", stopLimit)
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("the supervisor ended with exit code %d", code)
	}
	return s.Left(true)
}

// KillSupervisor ends the supervisor with SIGKILL. Its children must end too:
// Left says whether they have.
func (s *System) KillSupervisor() {
	s.cmd.Process.Kill()
	<-s.exited
}

// Kill ends every process at once.
func (s *System) Kill() {
	s.KillSupervisor()
	for _, p := range s.Processes() {
		s.signal(p, syscall.SIGKILL)
	}
}

// Left reports what a system that has ended left behind: processes (which get
// a moment to end) and, if runDir, its run directory.
func (s *System) Left(runDir bool) error {
	deadline := time.Now().Add(stopLimit)
	left := s.Processes()
	for ; len(left) > 0 && time.Now().Before(deadline); left = s.Processes() {
		time.Sleep(20 * time.Millisecond)
	}
	if len(left) > 0 {
		return fmt.Errorf("processes are left: %v", left)
	}
	if _, err := os.Stat(s.RunDir); runDir && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the run directory %s is left (%v)", s.RunDir, err)
	}
	return nil
}

// Status is what the gateway's admin socket says of the models, by name. A
// model whose process does not answer is nil.
func (s *System) Status(ctx context.Context) (map[string]*wire.Status, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin/admin/status", nil)
	if err != nil {
		return nil, err
	}
	res, err := s.admin.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status: %s", res.Status)
	}
	var st struct {
		Models []struct {
			Name   string       `json:"name"`
			Status *wire.Status `json:"status"`
		} `json:"models"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, 16<<20)).Decode(&st); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	out := map[string]*wire.Status{}
	for _, m := range st.Models {
		out[m.Name] = m.Status
	}
	return out, nil
}

// Drain starts or undoes a drain of a model, or asks how far it is.
func (s *System) Drain(ctx context.Context, model string, undo bool) (*wire.DrainState, error) {
	body, err := json.Marshal(map[string]any{"model": model, "undo": undo})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://admin/admin/drain", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := s.admin.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("drain of %s: %s", model, res.Status)
	}
	st := new(wire.DrainState)
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(st); err != nil {
		return nil, fmt.Errorf("drain of %s: %w", model, err)
	}
	return st, nil
}

// FreePort finds a TCP port of the loopback for a gateway that may be started
// again on it: one that the kernel does not give to outgoing connections, or a
// client that dials while nobody listens could be given it.
func FreePort() (string, error) {
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))
		if ln, err := net.Listen("tcp", addr); err == nil {
			ln.Close()
			return addr, nil
		}
	}
	return "", errors.New("no free TCP port between 20000 and 32000")
}
