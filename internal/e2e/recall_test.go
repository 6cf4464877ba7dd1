package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/recall"
)

// TestRecall: the command starts systems of its own, and a model answers the same
// whether its KV stays in its own memory or lies in borrowed units, and all of
// it right.
func TestRecall(t *testing.T) {
	needLong(t, "two more systems, and dialogues of thousands of tokens")
	c := configs.Default()
	model(c, "atlas").Arena = 64 << 20
	raw, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	dir := tempDir(t)
	large, yardstick := filepath.Join(dir, "large.yaml"), filepath.Join(dir, "yardstick.json")
	write(t, large, raw)
	alone := recalled(t, "-c", large, "--lengths", "2500", "--facts", "3", "--dialogues", "2", "--probes", "4")
	write(t, yardstick, []byte(alone))
	lent := recalled(t, "--compare", yardstick, "--interleave", "2")
	for name, data := range map[string]string{"alone": alone, "lent": lent} {
		r, err := recall.Read(strings.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		u := r.Underneath
		if r.All.Asked != 8 || u.Requests != 8 || u.Cached == 0 || u.System == nil || u.System.Corrupt != 0 {
			t.Errorf("%s: %+v asked, underneath %+v, cells %+v", name, r.All, u, r.Cells)
		}
		if r.Single.Right != r.Single.Asked {
			t.Errorf("%s: %+v of the single facts", name, r.Single)
		}
		if borrows := name == "lent"; (u.BorrowedBlocks > 0) != borrows || u.System != nil && (u.System.Loaded > 0) != borrows {
			t.Errorf("%s: underneath %+v, %+v", name, u, u.System)
		}
	}
}

// TestKilledRunLeavesNoSystem: a system that a command started for itself stops
// when the command is killed.
func TestKilledRunLeavesNoSystem(t *testing.T) {
	dir := tempDir(t)
	cmd := exec.Command(kvlend, "eval", "recall", "--dialogues", "1000", "--lengths", "2000")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	eventually(t, startLimit, "an answer of its system", func() error {
		run := ""
		for _, line := range mentioning(dir) {
			_, after, _ := strings.Cut(line, "--run-dir\x00")
			run, _, _ = strings.Cut(after, "\x00")
		}
		if run == "" {
			return errors.New("no process has begun")
		}
		out, err := exec.Command(kvlend, "status", "--run-dir", run, "--json").Output()
		var st api.AdminStatus
		if err := errors.Join(err, json.Unmarshal(out, &st)); err != nil {
			return err
		}
		for _, m := range st.Models {
			if m.Status != nil && m.Status.Finished > 0 {
				return nil
			}
		}
		return errors.New("nothing was answered yet")
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	eventually(t, stopLimit, "the end of its system", func() error {
		if left := mentioning(dir); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return nil
	})
}

// recalled runs the command and returns its JSON.
func recalled(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*startLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, kvlend, append([]string{"eval", "recall", "--json"}, args...)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, errs.String())
	}
	return string(out)
}
