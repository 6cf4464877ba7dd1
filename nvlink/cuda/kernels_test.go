//go:build cuda && cgo

package cuda

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/kvlend/kvlend/nvlink"
)

func mustArena(t testing.TB, f *Fabric, name, dev string, size int64) *Arena {
	t.Helper()
	a, err := f.NewArena(name, dev, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Errorf("close arena %q: %v", name, err)
		}
	})
	return a
}

func mustStream(t testing.TB, f *Fabric, dev string) *Stream {
	t.Helper()
	s, err := f.Stream(dev, "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // tests look at errors themselves
	return s
}

func wait(s nvlink.Stream) error {
	e, err := s.Record()
	if err != nil {
		return err
	}
	return e.Wait(context.Background())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// noise is n bytes that differ with seed.
func noise(n int64, seed uint64) []byte {
	rng := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	b := make([]byte, n)
	rng.Read(b)
	return b
}

func fill(t testing.TB, a *Arena, seed uint64) []byte {
	t.Helper()
	b := noise(a.Size(), seed)
	_, err := a.WriteAt(b, 0)
	must(t, err)
	return b
}

func contents(t testing.TB, a *Arena) []byte {
	t.Helper()
	b := make([]byte, a.Size())
	_, err := a.ReadAt(b, 0)
	must(t, err)
	return b
}

func span(a nvlink.Arena, off, n int64) nvlink.Span { return nvlink.Span{Arena: a, Off: off, Len: n} }

func piece(dst nvlink.Arena, dstOff int64, src nvlink.Arena, srcOff, n int64) nvlink.Copy {
	return nvlink.Copy{Dst: span(dst, dstOff, n), Src: span(src, srcOff, n)}
}

// TestKernelCopiesAtAnyAlignment: heads, tails and words of the kernel, with
// runs of up to several parts.
func TestKernelCopiesAtAnyAlignment(t *testing.T) {
	const size = 1 << 18
	f := newTestFabric(t, Config{Crossover: 1 << 40})
	src, dst := mustArena(t, f, "src", testDevices()[1], size), mustArena(t, f, "dst", "gpu0", size)
	s := mustStream(t, f, "gpu0")
	from := fill(t, src, 1)
	rapid.Check(t, func(rt *rapid.T) {
		want := fill(t, dst, 2)
		var pieces []nvlink.Copy
		for at := int64(0); at < size; {
			gap := rapid.Int64Range(0, 40).Draw(rt, "gap")
			n := rapid.OneOf(rapid.Int64Range(1, 70), rapid.Int64Range(1, 3*partBytes)).Draw(rt, "len")
			at += gap
			if at+n > size || len(pieces) == 20 {
				break
			}
			off := rapid.Int64Range(0, size-n).Draw(rt, "src")
			pieces = append(pieces, piece(dst, at, src, off, n))
			copy(want[at:], from[off:off+n])
			at += n
		}
		must(t, s.CopyBatch(pieces))
		must(t, wait(s))
		if !bytes.Equal(contents(t, dst), want) {
			rt.Fatalf("bytes differ: %d pieces", len(pieces))
		}
	})
}

// TestListsBeyondOneKernel: more runs than a list holds.
func TestListsBeyondOneKernel(t *testing.T) {
	const n, size = listMost + 1000, 16
	f := newTestFabric(t, Config{Crossover: 1 << 40})
	src, dst := mustArena(t, f, "src", "gpu0", n*size), mustArena(t, f, "dst", "gpu0", n*size)
	s := mustStream(t, f, "gpu0")
	from, want := fill(t, src, 3), make([]byte, n*size)
	var pieces []nvlink.Copy
	for i, j := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		pieces = append(pieces, piece(dst, int64(i)*size, src, int64(j)*size, size))
		copy(want[i*size:], from[j*size:][:size])
	}
	must(t, s.CopyBatch(pieces))
	must(t, wait(s))
	if !bytes.Equal(contents(t, dst), want) {
		t.Fatal("bytes differ")
	}
}

// TestHashIsXXH3 compares with the library that package lsc uses.
func TestHashIsXXH3(t *testing.T) {
	const size = 1 << 20
	f := newTestFabric(t, Config{Crossover: 64 << 10})
	a := mustArena(t, f, "a", testDevices()[1], size)
	mem := fill(t, a, 4)
	s := mustStream(t, f, "gpu0")
	rng := rand.New(rand.NewPCG(5, 6))
	var spans []nvlink.Span
	var seeds []uint64
	for _, n := range []int64{241, 242, 255, 256, 1023, 1024, 1025, 1088, 2048, 2049, 4096, 64 << 10, 256 << 10} {
		for _, off := range []int64{0, 1, 8, rng.Int64N(size - n)} {
			spans = append(spans, span(a, off, n))
			seeds = append(seeds, rng.Uint64())
		}
	}
	seeds[0] = 0
	sums := make([]uint64, len(spans))
	must(t, s.HashBatch(spans, seeds, sums))
	must(t, wait(s))
	for i, sp := range spans {
		if want := xxh3.HashSeed(mem[sp.Off:][:sp.Len], seeds[i]); sums[i] != want {
			t.Errorf("[%d, +%d) with seed %#x: %#x, want %#x", sp.Off, sp.Len, seeds[i], sums[i], want)
		}
	}
	if err := s.HashBatch([]nvlink.Span{span(a, 0, 240)}, []uint64{1}, make([]uint64, 1)); !errors.Is(err, nvlink.ErrBadSpan) {
		t.Errorf("a hash of 240 bytes: %v", err)
	}
	if err := s.HashBatch(spans, seeds[1:], sums); err == nil {
		t.Error("fewer seeds than spans were accepted")
	}
}

// TestHashSeesTheCopyBefore: checksums are in the stream's order, and their
// event comes after them.
func TestHashSeesTheCopyBefore(t *testing.T) {
	f := newTestFabric(t, Config{Crossover: 64 << 10})
	src, dst := mustArena(t, f, "src", testDevices()[1], 4096), mustArena(t, f, "dst", "gpu0", 4096)
	want := xxh3.HashSeed(fill(t, src, 7), 9)
	s := mustStream(t, f, "gpu0")
	sums := make([]uint64, 1)
	unrelated := errors.New("of a call")
	must(t, s.Call(func() error { return unrelated }))
	must(t, s.CopyBatch([]nvlink.Copy{piece(dst, 0, src, 0, 4096)}))
	must(t, s.HashBatch([]nvlink.Span{span(dst, 0, 4096)}, []uint64{9}, sums))
	var called uint64
	must(t, s.Call(func() error { called = sums[0]; return nil }))
	must(t, s.WipeBatch([]nvlink.Span{span(dst, 100, 1000)}))
	if err := wait(s); !errors.Is(err, unrelated) {
		t.Errorf("the event reports %v", err)
	}
	if sums[0] != want || called != want {
		t.Errorf("%#x, in the call after it %#x; want %#x", sums[0], called, want)
	}
	got := contents(t, dst)
	if !bytes.Equal(got[100:1100], make([]byte, 1000)) {
		t.Error("what was to be wiped is not zero")
	}
	if from := contents(t, src); !bytes.Equal(got[:100], from[:100]) || !bytes.Equal(got[1100:], from[1100:]) {
		t.Error("wiping changed its neighbours")
	}
}

func TestCutterCutsEverythingInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.Uint64Range(1, 100).Draw(rt, "buffer")
		var runs []run
		type pair struct{ dst, src uint64 }
		var want, got []pair
		for range rapid.IntRange(0, 8).Draw(rt, "runs") {
			r := run{dst: rapid.Uint64Range(1, 1e6).Draw(rt, "dst"), src: rapid.Uint64Range(1, 1e6).Draw(rt, "src"), len: rapid.Uint64Range(1, 250).Draw(rt, "len")}
			runs = append(runs, r)
			for i := range r.len {
				want = append(want, pair{r.dst + i, r.src + i})
			}
		}
		cut := cutter{runs: runs}
		for {
			in, out := cut.next(nil, nil, 5000, size)
			if len(in) == 0 {
				break
			}
			at := uint64(5000)
			for i := range in {
				if in[i].dst != at || out[i].src != at || in[i].len != out[i].len {
					rt.Fatalf("run %d: in %+v, out %+v, want both at %d", i, in[i], out[i], at)
				}
				for k := range in[i].len {
					got = append(got, pair{out[i].dst + k, in[i].src + k})
				}
				at += in[i].len
			}
			if at > 5000+size {
				rt.Fatalf("%d bytes in a buffer of %d", at-5000, size)
			}
		}
		if len(got) != len(want) {
			rt.Fatalf("%d bytes, want %d", len(got), len(want))
		}
		for i := range got {
			if got[i] != want[i] {
				rt.Fatalf("byte %d goes from %d to %d", i, got[i].src, got[i].dst)
			}
		}
	})
}

func TestBatchJoinsNeighbours(t *testing.T) {
	f := newTestFabric(t, Config{Crossover: 64 << 10})
	a, b := mustArena(t, f, "a", "gpu0", 1000), mustArena(t, f, "b", testDevices()[1], 1000)
	var bt batch
	must(t, bt.fill(f.m, f.m.home, []nvlink.Copy{
		piece(a, 0, b, 100, 10), piece(a, 10, b, 110, 20), // joined
		piece(a, 30, b, 131, 5), // gap in the source
		piece(a, 40, b, 136, 5), // gap in the destination
		piece(b, 0, a, 500, 7),  // other arenas
	}))
	var lens []uint64
	for _, p := range bt.parts {
		for _, r := range p.runs {
			lens = append(lens, r.len)
		}
	}
	if want := []uint64{30, 5, 5, 7}; len(lens) != 4 || lens[0] != want[0] || lens[1] != want[1] || lens[2] != want[2] || lens[3] != want[3] {
		t.Fatalf("runs of %v bytes, want %v", lens, want)
	}
	if len(bt.arenas) != 2 {
		t.Fatalf("%d arenas are held", len(bt.arenas))
	}
	bt.reset()
	if a.refs.Load() != 0 || b.refs.Load() != 0 {
		t.Fatal("reset kept an arena open")
	}
}

// TestBatchKeepsToArenas: memory of two arenas that lies side by side is copied in
// two runs, for drivers refuse copies across allocations.
func TestBatchKeepsToArenas(t *testing.T) {
	f := newTestFabric(t, Config{Crossover: 64 << 10})
	d := f.m.home
	side := func(name string, at uint64) *Arena {
		return &Arena{m: f.m, name: name, device: d.name, dev: d, with: d, kind: IPC, id: [16]byte{name[0]}, size: 1 << 20, at: at}
	}
	src := []*Arena{side("a", 1<<30), side("b", 1<<30+1<<20)}
	dst := []*Arena{side("c", 2<<30), side("d", 2<<30+1<<20)}
	var bt batch
	must(t, bt.fill(f.m, d, []nvlink.Copy{piece(dst[0], 0, src[0], 0, 1<<20), piece(dst[1], 0, src[1], 0, 1<<20)}))
	if len(bt.parts) != 1 || len(bt.parts[0].runs) != 2 {
		t.Errorf("parts %+v, want one with two runs", bt.parts)
	}
	bt.reset()
}
