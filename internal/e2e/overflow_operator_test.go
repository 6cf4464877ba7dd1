package e2e

import (
	"errors"
	"os"
	"testing"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// TestStatusWhileStreamed: a model whose request is streamed from the pool answers
// questions, and counts its blocks there.
func TestStatusWhileStreamed(t *testing.T) {
	t.Parallel()
	s := Start(t, small, onDisks(t.TempDir(), diskBytes))
	st := s.begin(Request{Model: "atlas", Prompt: text(1, 900), MaxTokens: 300}, 3)
	s.until("a request that uses the pool", "atlas", func(st *wire.Status) bool {
		return st.Running == 1 && st.Blocks.PoolUsed > 0 && st.Blocks.BorrowedUsed*blockTokens <= smallLent
	})
	st.Close()
}

// TestMissingDisk: without one of two disks what the other holds stays there; what only
// fits with it is told to come again; when it is back everything is found.
func TestMissingDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disks := onDisks(dir, diskBytes, 8*diskBytes)
	s := Start(t, small, disks)
	all := s.longest("atlas")
	var talks []*talk
	for i := range 4 {
		k := &talk{seed: uint64(700 + i)}
		talks = append(talks, k)
		s.say(k, 500, 4)
	}
	s.Stop()

	away := func(i int) {
		t.Helper()
		if err := errors.Join(os.Rename(diskPath(dir, i), diskPath(dir, i)+".away"), os.Mkdir(diskPath(dir, i), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	away(1)
	s = Start(t, small, disks)
	s.say(&talk{seed: 720}, 100, 4)
	st := s.until("one disk out of use", "atlas", func(st *wire.Status) bool { return disk(st, 1).Fenced != "" })
	if d := disk(st, 1); d.Path != diskPath(dir, 1) || d.Free != 0 {
		t.Errorf("%+v", d)
	}
	s.Stop()

	away(0)
	s = Start(t, small, disks)
	_, _, err := s.Complete(t.Context(), Request{Model: "atlas", Prompt: text(9, all-8), MaxTokens: 8})
	var refused *statusError
	if !errors.As(err, &refused) || refused.status != 503 {
		t.Errorf("%d tokens without disks: %v", all, err)
	} else {
		mention(t, refused.Error(), "out of use in the overflow pool: disk0, disk1")
	}
	s.Stop()

	for i := range 2 {
		if err := errors.Join(os.Remove(diskPath(dir, i)), os.Rename(diskPath(dir, i)+".away", diskPath(dir, i))); err != nil {
			t.Fatal(err)
		}
	}
	s = Start(t, small, disks)
	for _, k := range talks {
		if r := s.say(k, 20, 4); cached(r) < 480 {
			t.Errorf("conversation %d: %+v", k.seed, *r)
		}
	}
}

// TestDrainLastDisk: the only disk of a model is emptied while nobody asks for
// anything.
func TestDrainLastDisk(t *testing.T) {
	t.Parallel()
	s := Start(t, small, onDisks(t.TempDir(), diskBytes))
	for i := range uint64(4) {
		s.say(&talk{seed: 800 + i}, 500, 4)
	}
	s.durable(60)
	mention(t, said(t, "pool", "drain", "atlas", "disk0", "--timeout", "30s", "--run-dir", s.RunDir), "disk0 is empty")
}
