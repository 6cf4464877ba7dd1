package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// kvlend is the binary that TestMain built; scratch is its directory, where
// tests make theirs: run directories must have short names.
var kvlend, scratch string

func TestMain(m *testing.M) {
	code, err := build(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func build(run func() int) (int, error) {
	dir, err := os.MkdirTemp("", "kvl")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	scratch, kvlend = dir, filepath.Join(dir, "kvlend")
	c, err := buildCommand(dir)
	if err != nil {
		return 0, err
	}
	c.Env = append(c.Env, "GOFLAGS="+plainFlags(os.Getenv("GOFLAGS")))
	if out, err := c.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build of kvlend: %w\n%s", err, out)
	}
	return run(), nil
}

// plainFlags leaves -race out: it needs cgo, and only the test process is
// instrumented.
func plainFlags(flags string) string {
	var keep []string
	for _, f := range strings.Fields(flags) {
		if f != "-race" {
			keep = append(keep, f)
		}
	}
	return strings.Join(keep, " ")
}

// tempDir makes a directory with a short name.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(scratch, "")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// eventually calls probe until it returns nil, and fails with its last error
// when that takes longer than limit.
func eventually(t testing.TB, limit time.Duration, what string, probe func() error) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
	}
}

// tick waits for a moment between two looks at a state, or for the end of ctx.
func tick(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	<-ctx.Done()
}

// needLong skips a test in -short mode.
func needLong(t *testing.T, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped in -short mode: " + why)
	}
}
