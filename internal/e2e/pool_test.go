package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/kernels"
)

// said runs a command that must succeed and returns what it printed.
func said(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, kvlend, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// TestPoolCommands: a pool's life as an operator sees it: formatted, used, shown,
// emptied device by device, checked, and damaged.
func TestPoolCommands(t *testing.T) {
	dir := t.TempDir()
	config := writeConfig(t, small, onDisks(dir, diskBytes, diskBytes))
	diary := []byte("dear diary")
	if err := os.WriteFile(diskPath(dir, 1), diary, 0o600); err != nil {
		t.Fatal(err)
	}
	mention(t, refused(t, 2, "pool", "format"), "-c is missing")
	mention(t, refused(t, 2, "pool", "format", "-c", config, "--device", "disk9"), "atlas/disk0, atlas/disk1")
	mention(t, refused(t, 1, "pool", "check", "-c", config, "--device", "disk0"), "no such file")
	mention(t, refused(t, 3, "pool", "format", "-c", config), "foreign data: a file of 10 bytes", "--device disk1 --force", "not formatted")
	if b, err := os.ReadFile(diskPath(dir, 1)); err != nil || string(b) != string(diary) {
		t.Errorf("the foreign file holds %q, %v", b, err)
	}
	mention(t, said(t, "pool", "format", "-c", config, "--device", "disk1", "--force"), "formatted")
	mention(t, said(t, "pool", "bench", "-c", config, "--device", "disk1", "--writes=false"), "reads", "4KiB", "1MiB")
	mention(t, said(t, "pool", "check", "-c", config, "--deep"), "ok")

	s := launch(t, filepath.Join(tempDir(t), "r"), "up", "-c", config)
	s.ready()
	s.inUse(2)
	at := []string{"--run-dir", s.RunDir}
	mention(t, refused(t, 1, "pool", "check", "-c", config), "in use", "kvlend pool status", "atlas/disk0")
	mention(t, refused(t, 1, "pool", "format", "-c", config, "--force"), "in use")
	talk := &talk{seed: 1}
	s.say(talk, 500, 8)
	s.durable(8)
	mention(t, said(t, append([]string{"pool", "status"}, at...)...), "disk0", "disk1", "ok", "measured")
	mention(t, said(t, append([]string{"status"}, at...)...), "overflow pool of")

	mention(t, refused(t, 2, append([]string{"pool", "drain", "atlas", "disk9"}, at...)...), "disk0, disk1")
	mention(t, refused(t, 2, append([]string{"pool", "drain", "birch", "disk0"}, at...)...), "no overflow pool")
	mention(t, said(t, append([]string{"pool", "drain", "atlas", "disk0"}, at...)...), "disk0 is empty")
	mention(t, said(t, append([]string{"pool", "status"}, at...)...), "draining")
	s.until("an empty disk", "atlas", func(st *wire.Status) bool { return disk(st, 0).Live == 0 && disk(st, 0).Draining })
	s.say(talk, 40, 8)
	mention(t, said(t, append([]string{"pool", "drain", "atlas", "disk0", "--undo"}, at...)...), "takes blocks again")
	for seed := range uint64(4) {
		q := Request{Model: "atlas", Prompt: text(100+seed, 400), MaxTokens: 2}
		got, _, err := s.Complete(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		s.compare("after a drain", q, got, kernels.BF16)
	}
	s.until("blocks on both disks", "atlas", func(st *wire.Status) bool { return disk(st, 0).Live > 0 && disk(st, 1).Live > 0 })
	s.Stop()

	var found []struct {
		OK             bool
		Live, Verified int
	}
	if err := json.Unmarshal([]byte(said(t, "pool", "check", "-c", config, "--deep", "--json")), &found); err != nil {
		t.Fatal(err)
	}
	for i, f := range found {
		if !f.OK || f.Live == 0 || f.Verified != f.Live {
			t.Errorf("disk%d: %+v", i, f)
		}
	}
	damage(t, diskPath(dir, 0))
	mention(t, said(t, "pool", "check", "-c", config), "data was not read")
	mention(t, refused(t, 3, "pool", "check", "-c", config, "--deep"), "PROBLEMS", "its checksum differs", "problems were found: atlas/disk0")
}

// damage changes every page of a store's data.
func damage(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	for at := int64(diskBytes / 8); at < diskBytes; at += 4096 { // behind its log
		if _, err := f.ReadAt(b, at); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{^b[0]}, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}
