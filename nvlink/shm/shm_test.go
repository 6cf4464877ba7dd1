package shm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/nvlink"
)

func newTestArena(t testing.TB, name, dev string, size int64) *Arena {
	t.Helper()
	a, err := Create(name, dev, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func newTestStream(t testing.TB, cfg Config) *Stream {
	t.Helper()
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.NewStream("gpu0", "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.(*Stream)
}

func wait(t testing.TB, s nvlink.Stream) error {
	t.Helper()
	e, err := s.Record()
	if err != nil {
		t.Fatal(err)
	}
	return e.Wait(context.Background())
}

// dupFile returns a duplicate descriptor of f, as a child process gets one.
func dupFile(t testing.TB, f *os.File) int {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestOpenSharesMemory(t *testing.T) {
	a := newTestArena(t, "a", "gpu0", 10000)
	b, err := Open(dupFile(t, a.File()), "a", "gpu1", 10000)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	copy(a.Bytes()[5000:], "hello")
	if got := string(b.Bytes()[5000:5005]); got != "hello" {
		t.Fatalf("second mapping shows %q", got)
	}
	a.Uint64(9992).Store(7)
	if got := b.Uint64(9992).Load(); got != 7 {
		t.Fatalf("word is %d", got)
	}
	if b.Size() != 10000 || b.Device() != "gpu1" || b.Name() != "a" || b.ReadOnly() {
		t.Fatalf("opened arena: %d bytes, device %q, name %q, read-only %v", b.Size(), b.Device(), b.Name(), b.ReadOnly())
	}
}

func TestOpenRefusesWhatItCannotTrust(t *testing.T) {
	unsealed, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(unsealed)
	if err := unix.Ftruncate(unsealed, 4096); err != nil {
		t.Fatal(err)
	}
	plain, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	a := newTestArena(t, "a", "gpu0", 4096)
	for _, c := range []struct {
		name string
		fd   int
		size int64
		want string
	}{
		{"unsealed", unsealed, 4096, "seals"},
		{"plain file", int(plain.Fd()), 0, "memfd"},
		{"wrong size", int(a.File().Fd()), 8192, "4096 bytes; want 8192"},
		{"no such fd", 1 << 20, 0, "fd 1048576"},
	} {
		if _, err := OpenRegion(c.fd, "x", c.size); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want an error with %q", c.name, err, c.want)
		}
	}
}

func TestCreateRefusals(t *testing.T) {
	for _, c := range []struct {
		name, dev string
		size      int64
	}{{"", "gpu0", 1}, {"a", "", 1}, {"a", "gpu0", 0}, {"a", "gpu0", -1}, {strings.Repeat("x", 201), "gpu0", 1}} {
		if _, err := Create(c.name, c.dev, c.size); err == nil {
			t.Errorf("Create(%q, %q, %d) succeeded", c.name, c.dev, c.size)
		}
	}
}

func TestSizeIsSealed(t *testing.T) {
	a := newTestArena(t, "a", "gpu0", 4096)
	for _, size := range []int64{0, 8192} {
		if err := a.File().Truncate(size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v", size, err)
		}
	}
}

func TestReadOnlyRegion(t *testing.T) {
	a := newTestArena(t, "a", "gpu0", 4096)
	f, err := a.ReadOnlyFile()
	if err != nil {
		t.Fatal(err)
	}
	fd := dupFile(t, f)
	f.Close()
	ro, err := Open(fd, "a", "gpu0", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	if !ro.ReadOnly() {
		t.Fatal("region is writable")
	}
	copy(a.Bytes(), "x")
	if ro.Bytes()[0] != 'x' {
		t.Fatal("read-only mapping does not show the write")
	}
	s := newTestStream(t, Config{})
	err = s.CopyBatch([]nvlink.Copy{{Dst: nvlink.Span{Arena: ro, Len: 8}, Src: nvlink.Span{Arena: a, Off: 64, Len: 8}}})
	if !errors.Is(err, nvlink.ErrBadSpan) {
		t.Fatalf("copy into a read-only arena: %v", err)
	}
}

// residentKiB is the resident set of the mappings of arena forget-me, in KiB.
func residentKiB(t *testing.T) int64 {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skipf("this kernel has no smaps: %v", err)
	}
	in, total := false, int64(0)
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, namePrefix+"forget-me") {
			in = true
		} else if f := strings.Fields(line); in && len(f) == 3 && f[0] == "Rss:" {
			in = false
			var n int64
			for _, c := range f[1] {
				n = n*10 + int64(c-'0')
			}
			total += n
		}
	}
	return total
}

func TestForgetShrinksTheResidentSetAndKeepsBytes(t *testing.T) {
	const size = 4 << 20
	a := newTestArena(t, "forget-me", "gpu0", size)
	for i := range a.Bytes() {
		a.Bytes()[i] = byte(i % 251)
	}
	if got := residentKiB(t); got < size>>10 {
		t.Fatalf("resident %d KiB of %d after touching all", got, size>>10)
	}
	page := int64(os.Getpagesize())
	if err := a.Forget(1, size-1); err != nil {
		t.Fatal(err)
	}
	if got := residentKiB(t); got > page>>10 {
		t.Fatalf("resident %d KiB after Forget, want the first page at most", got)
	}
	for i, b := range a.Bytes() {
		if b != byte(i%251) {
			t.Fatalf("byte %d is %d after Forget", i, b)
		}
	}
	if err := a.Forget(0, size); err != nil {
		t.Fatal(err)
	}
	if err := a.Prefault(0, size/2); err != nil {
		t.Fatal(err)
	}
	if got := residentKiB(t); got != size/2>>10 {
		t.Fatalf("resident %d KiB after Prefault of %d", got, size/2>>10)
	}
	for _, bad := range [][2]int64{{-1, 1}, {0, -1}, {0, size + 1}, {size, 1}} {
		if err := a.Forget(bad[0], bad[1]); err == nil {
			t.Errorf("Forget%v succeeded", bad)
		}
		if err := a.Prefault(bad[0], bad[1]); err == nil {
			t.Errorf("Prefault%v succeeded", bad)
		}
	}
}

// TestFaultBecomesAnError maps memory that then vanishes, which Open's checks
// rule out for memfds but a kernel without memory can also do.
func TestFaultBecomesAnError(t *testing.T) {
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, 1<<20); err != nil {
		t.Fatal(err)
	}
	r, err := mapFile(os.NewFile(uintptr(fd), "x"), "x", 1<<20, false)
	if err != nil {
		t.Fatal(err)
	}
	bad := &Arena{Region: r, device: "gpu0"}
	t.Cleanup(func() { _ = bad.Close() })
	if err := r.File().Truncate(0); err != nil {
		t.Fatal(err)
	}
	good := newTestArena(t, "good", "gpu0", 1<<20)
	for _, workers := range []int{1, 2} {
		s := newTestStream(t, Config{Workers: workers})
		if err := s.CopyBatch([]nvlink.Copy{{Dst: nvlink.Span{Arena: good, Len: 1 << 20}, Src: nvlink.Span{Arena: bad, Len: 1 << 20}}}); err != nil {
			t.Fatal(err)
		}
		if err := wait(t, s); err == nil || !strings.Contains(err.Error(), "memory fault") {
			t.Fatalf("workers %d: %v", workers, err)
		}
		if err := wait(t, s); err != nil {
			t.Fatalf("the error was reported twice: %v", err)
		}
	}
}

func TestBatchJoinsNeighboursOnly(t *testing.T) {
	f, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	x := newTestArena(t, "x", "gpu0", 1000)
	y := newTestArena(t, "y", "gpu0", 1000)
	piece := func(d, s *Arena, doff, soff, n int64) nvlink.Copy {
		return nvlink.Copy{Dst: nvlink.Span{Arena: d, Off: doff, Len: n}, Src: nvlink.Span{Arena: s, Off: soff, Len: n}}
	}
	var b batch
	if err := b.fill(f, []nvlink.Copy{
		piece(x, y, 0, 100, 10), piece(x, y, 10, 110, 20), // joined
		piece(x, y, 30, 131, 5), // gap in the source
		piece(x, y, 40, 136, 5), // gap in the destination
		piece(y, x, 45, 141, 5), // other arenas
	}); err != nil {
		t.Fatal(err)
	}
	var lens []int
	for _, r := range b.runs {
		lens = append(lens, len(r.dst))
		if len(r.dst) != len(r.src) {
			t.Fatalf("run of %d and %d bytes", len(r.dst), len(r.src))
		}
	}
	if want := []int{30, 5, 5, 5}; !slices.Equal(lens, want) {
		t.Fatalf("runs %v, want %v", lens, want)
	}
	if len(b.arenas) != 2 {
		t.Fatalf("%d arenas held", len(b.arenas))
	}
	b.reset()
	if x.refs.Load() != 0 || y.refs.Load() != 0 {
		t.Fatal("reset kept an arena open")
	}
}

func TestSplitCopiesAllBytes(t *testing.T) {
	const size = 3<<20 + 12345
	src := newTestArena(t, "src", "gpu0", size)
	dst := newTestArena(t, "dst", "gpu0", size)
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i * 7 % 253)
	}
	s := newTestStream(t, Config{Workers: 3})
	var pieces []nvlink.Copy
	for off := int64(0); off < size; {
		n := min(77777, size-off)
		// Reversed order keeps neighbours from being joined.
		p := nvlink.Copy{Dst: nvlink.Span{Arena: dst, Off: off, Len: n}, Src: nvlink.Span{Arena: src, Off: off, Len: n}}
		pieces = append([]nvlink.Copy{p}, pieces...)
		off += n
	}
	if err := s.CopyBatch(pieces); err != nil {
		t.Fatal(err)
	}
	if err := wait(t, s); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Fatal("bytes differ")
	}
}

func TestSteadyStateAllocatesNothingPerPiece(t *testing.T) {
	src := newTestArena(t, "src", "gpu0", 1<<20)
	dst := newTestArena(t, "dst", "gpu0", 1<<20)
	s := newTestStream(t, Config{})
	var pieces []nvlink.Copy
	for i := int64(0); i < 4096; i++ {
		j := (i * 1021) % 4096
		pieces = append(pieces, nvlink.Copy{Dst: nvlink.Span{Arena: dst, Off: i * 256, Len: 256}, Src: nvlink.Span{Arena: src, Off: j * 256, Len: 256}})
	}
	got := testing.AllocsPerRun(50, func() {
		if err := s.CopyBatch(pieces); err != nil {
			t.Fatal(err)
		}
		if err := wait(t, s); err != nil {
			t.Fatal(err)
		}
	})
	if got > 8 {
		t.Fatalf("%v allocations per batch of %d pieces", got, len(pieces))
	}
}
