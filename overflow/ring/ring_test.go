package ring

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a ring on the test's thread, or skips the test where there is none.
func open(t testing.TB, o Options) *Ring {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	r, err := New(o)
	if errors.Is(err, ErrUnsupported) {
		t.Skipf("no io_uring here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// memory is n bytes outside the Go heap.
func memory(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

func file(t testing.TB, r *Ring, content []byte) (slot int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	slot, err = r.AddFile(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

// collect reaps n results by their number.
func collect(t testing.TB, r *Ring, n int) map[uint64]Completion {
	t.Helper()
	got := map[uint64]Completion{}
	buf := make([]Completion, 3) // fewer than there are
	for len(got) < n {
		if err := r.Enter(1, 0); err != nil && !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
		for k := r.Reap(buf); k > 0; k = r.Reap(buf) {
			for _, c := range buf[:k] {
				got[c.User] = c
			}
		}
	}
	return got
}

var variants = map[string]Options{
	"plain":       {Entries: 8},
	"passthrough": {Entries: 8, Passthrough: true},
	"poller":      {Entries: 8, Poller: true, PollerIdle: time.Millisecond},
}

func TestReadAndWrite(t *testing.T) {
	for name, o := range variants {
		t.Run(name, func(t *testing.T) {
			r := open(t, o)
			t.Log(r.Features())
			const n, size = 50, 512
			content := make([]byte, n*size)
			for i := range content {
				content[i] = byte(i / size)
			}
			slot := file(t, r, make([]byte, len(content)))
			fixed := memory(t, len(content))
			if err := r.RegisterMemory([][]byte{memory(t, 4096), fixed}); err != nil {
				t.Fatal(err)
			}
			copy(fixed, content)
			// Twice around the submission queue and more, with and without
			// registered memory.
			each := func(prepare func(i int, part []byte, region int)) {
				for i := range n {
					for r.Room() == 0 {
						if err := r.Enter(0, 0); err != nil {
							t.Fatal(err)
						}
					}
					prepare(i, fixed[i*size:(i+1)*size], []int{1, Unregistered}[i%2])
				}
				for user, c := range collect(t, r, n) {
					if c.Res != size {
						t.Fatalf("operation %d: result %d", user, c.Res)
					}
				}
			}
			each(func(i int, part []byte, region int) { r.Write(uint64(i), slot, int64(i*size), part, region) })
			clear(fixed)
			each(func(i int, part []byte, region int) { r.Read(uint64(i), slot, int64(i*size), part, region) })
			if !bytes.Equal(fixed, content) {
				t.Fatal("read back differently")
			}
			if c := r.Counters(); c.Submitted != 2*n || c.Completions != 2*n || c.Enters == 0 {
				t.Errorf("counters %+v after %d operations", c, 2*n)
			}
		})
	}
}

func TestOneCallForABatch(t *testing.T) {
	r := open(t, Options{Entries: 64})
	slot := file(t, r, make([]byte, 64*512))
	mem := memory(t, 64*512)
	for i := range 64 {
		r.Read(uint64(i), slot, int64(i*512), mem[i*512:(i+1)*512], Unregistered)
	}
	if err := r.Enter(64, time.Minute); err != nil {
		t.Fatal(err)
	}
	if c := r.Counters(); c.Enters > 2 || c.Submitted != 64 {
		t.Errorf("%d calls for %d operations", c.Enters, c.Submitted)
	}
	if r.Prepared() != 0 || r.Ready() != 64 {
		t.Errorf("%d left, %d ready", r.Prepared(), r.Ready())
	}
}

func TestErrorsAreResults(t *testing.T) {
	r := open(t, Options{})
	slot := file(t, r, nil)
	r.Read(1, slot, 0, memory(t, 4096), Unregistered)   // at the end
	r.Read(2, slot+1, 0, memory(t, 4096), Unregistered) // no such file
	r.Cancel(3, 77)                                     // nothing of that name
	r.Sync(4, slot)
	got := collect(t, r, 4)
	for user, want := range map[uint64]int32{1: 0, 2: -int32(unix.EBADF), 3: -int32(unix.ENOENT), 4: 0} {
		if got[user].Res != want {
			t.Errorf("operation %d: result %d, want %d", user, got[user].Res, want)
		}
	}
}

func TestCancelEndsWhatWaits(t *testing.T) {
	r := open(t, Options{})
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	slot, err := r.AddFile(p[0])
	if err != nil {
		t.Fatal(err)
	}
	r.Read(1, slot, -1, memory(t, 4096), Unregistered) // nobody writes
	if err := r.Enter(0, 0); err != nil {
		t.Fatal(err)
	}
	r.Cancel(2, 1)
	got := collect(t, r, 2)
	if got[1].Res != -int32(unix.ECANCELED) || got[2].Res != 0 {
		t.Errorf("the cancelled answers %d, the cancel %d", got[1].Res, got[2].Res)
	}
}

func TestWake(t *testing.T) {
	r := open(t, Options{})
	r.AwaitWake(9)
	if err := r.Enter(0, 0); err != nil {
		t.Fatal(err)
	}
	out := make([]Completion, 4)
	for i := range 3 {
		go r.Wake()
		if err := r.Enter(1, 0); err != nil {
			t.Fatal(err)
		}
		n := r.Reap(out)
		if n != 1 || out[0].User != 9 {
			t.Fatalf("round %d: %d results, %+v", i, n, out[0])
		}
		if !out[0].More() {
			r.AwaitWake(9)
		}
	}
}

// TestPatience waits for more results than come.
func TestPatience(t *testing.T) {
	r := open(t, Options{})
	slot := file(t, r, make([]byte, 4096))
	r.Read(1, slot, 0, memory(t, 4096), Unregistered)
	if err := r.Enter(5, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if r.Ready() != 1 {
		t.Fatalf("%d results", r.Ready())
	}
}

// TestOneCallPastPatience: when the patience is over the same call goes on
// waiting for one result.
func TestOneCallPastPatience(t *testing.T) {
	r := open(t, Options{})
	if !r.Features().MinWait {
		t.Skip("this kernel does not wait for several results with a bound on time")
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	slot, err := r.AddFile(p[0])
	if err != nil {
		t.Fatal(err)
	}
	mem, out := memory(t, 4096), make([]Completion, 4)
	for range 20 {
		r.Read(1, slot, -1, mem, Unregistered)
		before := r.Counters().Enters
		time.AfterFunc(3*time.Millisecond, func() { unix.Write(p[1], []byte{1}) })
		if err := r.Enter(5, 100*time.Microsecond); err != nil {
			t.Fatal(err)
		}
		if n := r.Reap(out); n != 1 || out[0].Res != 1 {
			t.Fatalf("%d results, the first %+v", n, out[0])
		}
		if r.Counters().Enters == before+1 {
			return // a signal to the thread may make it more at times
		}
	}
	t.Error("a wait for several results of which one came took more than one call, 20 times")
}

func TestFileSlots(t *testing.T) {
	r := open(t, Options{Files: 2})
	a, b := file(t, r, []byte("a")), file(t, r, []byte("b"))
	if a == b {
		t.Fatal("two files share a slot")
	}
	if _, err := r.AddFile(0); err == nil || !strings.Contains(err.Error(), "2 slots") {
		t.Errorf("a third file in two slots: %v", err)
	}
	if err := r.RemoveFile(a); err != nil {
		t.Fatal(err)
	}
	if c := file(t, r, []byte("c")); c != a {
		t.Errorf("the free slot %d was not used but %d", a, c)
	}
	mem := memory(t, 4096)
	r.Read(1, a, 0, mem, Unregistered)
	if got := collect(t, r, 1)[1].Res; got != 1 || mem[0] != 'c' {
		t.Errorf("read %d bytes, %q", got, mem[0])
	}
}

func TestOptionsAreRefused(t *testing.T) {
	for name, o := range map[string]Options{
		"Entries":     {Entries: 7},
		"Completions": {Completions: 8},
		"Files":       {Files: -1},
		"PollerIdle":  {PollerIdle: -1},
		"PollerCPU":   {PollerCPU: -1},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), name) || errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	r := open(t, Options{})
	slot := file(t, r, make([]byte, 4096))
	mem, out := memory(t, 4096), make([]Completion, 8)
	if n := testing.AllocsPerRun(100, func() {
		r.Read(1, slot, 0, mem, Unregistered)
		if err := r.Enter(1, time.Second); err != nil {
			t.Fatal(err)
		}
		r.Reap(out)
	}); n != 0 {
		t.Errorf("%v allocations for a read", n)
	}
}

// TestCommandBytes: a read of 8 blocks of 4096 bytes from block 0x123456789a of
// namespace 2, laid out by hand after struct nvme_uring_cmd.
func TestCommandBytes(t *testing.T) {
	c := Transfer(false, 2, 0x123456789a, 8, 4096)
	c.Addr = 0x7f0011223344
	got := bytes.Repeat([]byte{0xff}, 80)
	c.Encode(got)
	want := make([]byte, 80)
	want[0] = 2                                                 // opcode
	want[4] = 2                                                 // nsid
	copy(want[24:], []byte{0x44, 0x33, 0x22, 0x11, 0x00, 0x7f}) // addr
	want[37] = 0x80                                             // data_len 0x8000
	copy(want[40:], []byte{0x9a, 0x78, 0x56, 0x34})             // cdw10: slba, low
	want[44] = 0x12                                             // cdw11: slba, high
	want[48] = 7                                                // cdw12: blocks, from 0
	copy(want[72:], bytes.Repeat([]byte{0xff}, 8))              // not of the command
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	if w := Transfer(true, 1, 0, 1, 512); w.Opcode != 1 || w.CDW12 != 0 || w.DataLen != 512 {
		t.Errorf("a write of one block: %+v", w)
	}
	if f := Flush(3); f != (Command{NSID: 3}) {
		t.Errorf("a flush: %+v", f)
	}
}

// TestPassthroughEntry looks at the entry that the kernel would see.
func TestPassthroughEntry(t *testing.T) {
	r := open(t, Options{Entries: 8, Passthrough: true})
	mem := memory(t, 4096)
	at := r.tail
	r.NVMe(5, 3, Transfer(true, 1, 9, 8, 512), mem, 4)
	m := &r.m
	e := m.entries[(at&m.sqMask)*m.sqeSize:][:128]
	if m.sqeSize != 128 || m.cqeSize != 32 {
		t.Fatalf("entries of %d, results of %d bytes", m.sqeSize, m.cqeSize)
	}
	cmd := make([]byte, 80)
	c := Transfer(true, 1, 9, 8, 512)
	c.Addr = addr(mem)
	c.Encode(cmd)
	if !bytes.Equal(e[48:], cmd) {
		t.Errorf("command %x\nwant    %x", e[48:], cmd)
	}
	head := []byte{opUringCmd, sqeFixedFile, 0, 0, 3, 0, 0, 0, 0x80, 0x4e, 0x48, 0xc0, 0, 0, 0, 0}
	if !bytes.Equal(e[:16], head) || e[28] != uringCmdFixed || e[32] != 5 || e[40] != 4 {
		t.Errorf("entry %x", e[:48])
	}
	// A namespace it is not: the kernel must say so.
	r.RegisterMemory([][]byte{mem})
	if res := collect(t, r, 1)[5].Res; res >= 0 {
		t.Errorf("a command to no file answers %d", res)
	}
}

// TestBatches prepares and reaps in random amounts.
func TestBatches(t *testing.T) {
	r := open(t, Options{Entries: 16})
	slot := file(t, r, make([]byte, 4096))
	mem := memory(t, 4096)
	out := make([]Completion, 64)
	rapid.Check(t, func(rt *rapid.T) {
		due := map[uint64]bool{}
		for next := uint64(0); next < 100 || len(due) > 0; {
			n := rapid.IntRange(0, 16).Draw(rt, "prepare")
			for ; n > 0 && next < 100 && r.Room() > 0; n-- {
				r.Read(next, slot, 0, mem[:512], Unregistered)
				due[next] = true
				next++
			}
			wait := min(rapid.IntRange(0, 8).Draw(rt, "wait"), len(due))
			if err := r.Enter(wait, 10*time.Millisecond); err != nil {
				rt.Fatal(err)
			}
			for _, c := range out[:r.Reap(out[:rapid.IntRange(1, 64).Draw(rt, "reap")])] {
				if !due[c.User] || c.Res != 512 {
					rt.Fatalf("unexpected result %+v", c)
				}
				delete(due, c.User)
			}
		}
	})
}
