package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store"
)

// outOfUse checks that the status names a disk as out of use, in its list and
// among what is degraded, and returns why.
func (s *System) outOfUse(i int) string {
	s.t.Helper()
	st := s.until("a disk out of use", "atlas", func(st *wire.Status) bool { return disk(st, i).Fenced != "" })
	d := disk(st, i)
	for _, text := range st.Degraded {
		if strings.Contains(text, d.Name) && strings.Contains(text, "out of use") {
			return d.Fenced
		}
	}
	s.t.Errorf("%s is out of use, the degraded are %q", d.Name, st.Degraded)
	return d.Fenced
}

// whileOpen runs f with the store on a file that no system has open.
func whileOpen(t *testing.T, path string, f func(*store.Store, device.Device)) {
	t.Helper()
	e, err := device.NewEngine(device.EngineOptions{Portable: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	d, err := device.Open(t.Context(), e, device.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s, _, err := store.Open(t.Context(), d, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	f(s, d)
}

func flip(t *testing.T, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
}

// TestFlippedBits: what a disk changed while the system was down is a miss, and
// the disk stays in use.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	k := &talk{seed: 10}
	s := Start(t, small, onDisks(dir, diskBytes))
	s.say(k, 300, 8)
	s.Stop()
	var offs []int64
	whileOpen(t, diskPath(dir, 0), func(s *store.Store, _ device.Device) {
		n := 0
		for e := range s.Entries() {
			if n++; n%5 == 3 {
				offs = append(offs, s.Off(e.Slot, n%8)+int64(n))
			}
		}
	})
	for _, off := range offs {
		flip(t, diskPath(dir, 0), off)
	}
	s = Start(t, small, onDisks(dir, diskBytes))
	r := s.say(k, 20, 8)
	s.inUse(1)
	st, err := s.modelStatus("atlas")
	if err != nil {
		t.Fatal(err)
	}
	if d := disk(st, 0); d.Corrupt == 0 || len(offs) == 0 {
		t.Errorf("%d bits were flipped: %+v, receipt %+v", len(offs), d, *r)
	}
	if r := s.say(k, 20, 8); cached(r) == 0 {
		t.Errorf("%+v after the damage was computed anew", *r)
	}
}

// TestDiskGone: a file that is cut short under the system is out of use, and
// what it held is computed again; another disk goes on.
func TestDiskGone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := Start(t, small, onDisks(dir, diskBytes, diskBytes))
	var all []*talk
	for i := range 4 {
		k := &talk{seed: uint64(300 + i)}
		all = append(all, k)
		s.say(k, 500, 4)
	}
	s.durable(60)
	if err := os.Truncate(diskPath(dir, 0), 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, k := range all {
			s.say(k, 10, 4)
		}
	}
	why := s.outOfUse(0)
	if !strings.Contains(why, device.ErrGone.Error()) {
		t.Errorf("out of use: %s", why)
	}
	st, err := s.modelStatus("atlas")
	if err != nil {
		t.Fatal(err)
	}
	if d := disk(st, 1); d.Fenced != "" || d.Live == 0 {
		t.Errorf("the other disk: %+v", d)
	}
}

// fileOf returns the digest of a file.
func fileOf(t *testing.T, path string) (sum [32]byte, size int) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(raw), len(raw)
}

// TestForeignFiles: what is not this model's store is refused and stays as it is
// to the bit; the system serves without it, and says so.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	words := bytes.Repeat([]byte("somebody's only copy of something. "), mib/35)
	zeros := make([]byte, 2*mib)
	for i, content := range [][]byte{
		bytes.Repeat(words, 33),           // as large as the disk
		words,                             // shorter than it
		words[:100],                       // much
		append([]byte{0, 0, 1}, zeros...), // is nearly nothing
	} {
		if err := os.WriteFile(diskPath(dir, i), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A store of another shape, and one of other data.
	for i, opt := range []store.Options{
		{Layers: 6, LayerBytes: 4096, BlockTokens: 32, Identity: []byte("birch")},
		{Layers: 8, LayerBytes: 8192, BlockTokens: 16, Identity: []byte("another model of this shape")},
	} {
		format(t, diskPath(dir, 4+i), opt)
	}
	const n = 6
	sizes := make([]configs.Bytes, n)
	sums, lengths := make([][32]byte, n), make([]int, n)
	for i := range sizes {
		sizes[i] = diskBytes
		sums[i], lengths[i] = fileOf(t, diskPath(dir, i))
	}
	s := Start(t, small, onDisks(dir, append(sizes, diskBytes)...))
	k := &talk{seed: 11}
	s.say(k, 300, 8)
	s.say(k, 300, 8)
	for i := range n {
		t.Logf("disk%d: %s", i, s.outOfUse(i))
	}
	st := s.durable(1)
	if d := disk(st, n); d.Fenced != "" || d.Live == 0 {
		t.Errorf("the good disk: %+v", d)
	}
	s.settle()
	s.verify()
	s.Stop()
	for i := range n {
		if sum, size := fileOf(t, diskPath(dir, i)); sum != sums[i] {
			t.Errorf("disk%d was changed: %d bytes, it had %d", i, size, lengths[i])
		}
	}
}

// format puts a store on a new file.
func format(t *testing.T, path string, opt store.Options) {
	t.Helper()
	e, err := device.NewEngine(device.EngineOptions{Portable: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	d, err := device.Open(t.Context(), e, device.Options{Path: path, Size: diskBytes, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := store.Format(t.Context(), d, opt); err != nil {
		t.Fatal(err)
	}
}

// TestNoDiskForLongContexts: a request that only the disk could hold is told at once to
// come again when there is none, and shorter ones are served.
func TestNoDiskForLongContexts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(diskPath(dir, 0), []byte("no store"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := Start(t, small, onDisks(dir, diskBytes))
	s.outOfUse(0)
	_, _, err := s.Complete(t.Context(), Request{Model: "atlas", Prompt: text(14, 1200), MaxTokens: 8})
	var no *statusError
	if !errors.As(err, &no) || no.status != 503 || no.code() != "unavailable" {
		t.Errorf("%v, want a refusal that is not the client's fault", err)
	}
	s.say(&talk{seed: 14}, 600, 8)
}

// TestTwoSystemsOneFile: the second is refused the disk, and both serve.
func TestTwoSystemsOneFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	k := &talk{seed: 12}
	s := Start(t, small, onDisks(dir, diskBytes))
	s.say(k, 300, 8)
	s.durable(18)
	second := Start(t, small, onDisks(dir, diskBytes))
	if why := second.outOfUse(0); !strings.Contains(why, device.ErrInUse.Error()) {
		t.Errorf("out of use: %s", why)
	}
	before := *k
	if r := second.say(&before, 20, 8); r.Pool != 0 {
		t.Errorf("%+v from another system's disk", *r)
	}
	s.inUse(1)
	s.say(k, 20, 8)
}

// TestFileDoesNotFit: a disk for which there is no space is done without.
func TestFileDoesNotFit(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "full")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("kvlend-test", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Skipf("skipped: a small filesystem cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("unmount: %v", err)
		}
	})
	s := Start(t, small, onDisks(dir, 12*mib, diskBytes))
	why := s.outOfUse(1)
	if !strings.Contains(why, device.ErrFull.Error()) {
		t.Errorf("out of use: %s", why)
	}
	k := &talk{seed: 13}
	s.say(k, 300, 8)
	s.say(k, 10, 8)
	st := s.durable(1)
	if d := disk(st, 0); d.Fenced != "" {
		t.Errorf("the disk that fits: %+v", d)
	}
	t.Logf("%s; %s", why, disk(st, 0).Degraded)
}
