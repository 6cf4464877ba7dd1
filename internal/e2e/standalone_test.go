package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvlend/kvlend/engine/kernels"
)

// member is a process that the test starts in the supervisor's place.
type member struct {
	cmd    *exec.Cmd
	exited chan error
}

func startMember(t *testing.T, runDir string, args ...string) *member {
	t.Helper()
	m := &member{cmd: exec.Command(kvlend, append(args, "--run-dir", runDir)...), exited: make(chan error, 1)}
	m.cmd.Stderr = os.Stderr
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { m.exited <- m.cmd.Wait() }()
	t.Cleanup(func() { m.cmd.Process.Kill() })
	return m
}

// TestProcessesStartedByHand: with --no-spawn somebody else starts the
// processes, as systemd or Kubernetes would.
func TestProcessesStartedByHand(t *testing.T) {
	dir := filepath.Join(tempDir(t), "r")
	s := launch(t, dir, "up", "--no-spawn", "-c", writeConfig(t))
	eventually(t, startLimit, "the supervisor's socket", func() error {
		_, err := os.Stat(filepath.Join(dir, "supervisor.sock"))
		return err
	})
	// The order must not matter.
	members := []*member{
		startMember(t, dir, "gateway"),
		startMember(t, dir, "master", "--model", "atlas"),
		startMember(t, dir, "worker", "--model", "birch"),
		startMember(t, dir, "worker", "--model", "cedar"),
	}
	s.ready()
	mention(t, refused(t, 1, "worker", "--model", "birch", "--run-dir", dir), "birch is already served by pid")
	mention(t, refused(t, 1, "worker", "--model", "atlas", "--run-dir", dir), `no model "atlas" with role "worker"`)
	mention(t, refused(t, 2, "worker", "--run-dir", dir), "--model is missing")
	for _, r := range s.all(prompts(), 4, kernels.BF16) {
		if r == nil {
			t.Fatal("a request failed")
		}
	}
	s.settle()
	s.Stop()
	for _, m := range members {
		select {
		case err := <-m.exited:
			if err != nil {
				t.Errorf("%v: %v", m.cmd.Args, err)
			}
		case <-time.After(stopLimit):
			t.Errorf("%v outlives its supervisor", m.cmd.Args)
		}
	}
	mention(t, refused(t, 1, "worker", "--model", "birch", "--run-dir", dir), "no supervisor answers")
}
