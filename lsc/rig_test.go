package lsc

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/nvlink/topology"
)

// rig is a master arena "gpu0" and a borrowed one "gpu1" with a block-major
// layout, on the shm fabric, and a trace of what the streams did. The borrowed
// memory can also be reached over a second link, as "gpu2".
type rig struct {
	t       testing.TB
	layers  int
	m       int64 // layer block bytes
	home    int64 // where the homes of promoted blocks begin
	local   *shm.Arena
	remote  *shm.Arena
	second  *shm.Arena // the same memory as remote
	load    nvlink.Stream
	another nvlink.Stream // loads over the second link
	store   nvlink.Stream
	trace   *trace
	// onPiece, when set, sees the borrowed end of each piece at submission.
	onPiece func(far nvlink.Span)
}

// interval is one batch's time on the link.
type interval struct{ start, end time.Time }

// batchKey names a batch of the trace: "load" (streamed), "promote" or "store",
// the stream of a load and the layer.
func batchKey(kind string, via, l int) string { return fmt.Sprintf("%s%d via %d", kind, l, via) }

// trace records batches by kind and layer.
type trace struct {
	mu    sync.Mutex
	spans map[string]interval
}

func (tr *trace) set(key string, f func(*interval)) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	s := tr.spans[key]
	f(&s)
	tr.spans[key] = s
}

func (tr *trace) clone() map[string]interval {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return maps.Clone(tr.spans)
}

// traced notes when batches start and end on a stream.
type traced struct {
	nvlink.Stream
	r *rig
}

func (s traced) CopyBatch(pieces []nvlink.Copy) error {
	kind, far, via := "load", pieces[0].Src, 0
	switch {
	case pieces[0].Src.Arena == nvlink.Arena(s.r.local):
		kind, far = "store", pieces[0].Dst
	case pieces[0].Dst.Off >= s.r.home:
		kind = "promote"
	}
	if far.Arena == nvlink.Arena(s.r.second) && kind != "store" {
		via = 1
	}
	key := batchKey(kind, via, int(far.Off/s.r.m)%s.r.layers)
	for i := range pieces {
		if far := pieces[i].Src; s.r.onPiece != nil && kind != "store" {
			s.r.onPiece(far)
		}
		if far := pieces[i].Dst; s.r.onPiece != nil && kind == "store" {
			s.r.onPiece(far)
		}
	}
	mark := func(f func(*interval)) func() error {
		return func() error { s.r.trace.set(key, f); return nil }
	}
	if err := s.Call(mark(func(i *interval) { i.start = time.Now() })); err != nil {
		return err
	}
	if err := s.Stream.CopyBatch(pieces); err != nil {
		return err
	}
	return s.Call(mark(func(i *interval) { i.end = time.Now() }))
}

type rigConfig struct {
	layers, blocks, buffers int
	m                       int64
	oneStream               bool
	perBlock                time.Duration // link time of a layer block; 0: unpaced
	perSecond               time.Duration // the same of the second link; 0: perBlock
	wrap                    func(nvlink.Fabric) nvlink.Fabric
}

func newRig(t testing.TB, c rigConfig) *rig {
	t.Helper()
	var cfg shm.Config
	if c.perBlock > 0 {
		link := func(from, to string, d time.Duration) topology.Link {
			return topology.Link{From: from, To: to, BytesPerSec: float64(c.m) / d.Seconds()}
		}
		second := cmp.Or(c.perSecond, c.perBlock)
		top, err := topology.New([]string{"gpu0", "gpu1", "gpu2"}, []topology.Link{
			link("gpu0", "gpu1", c.perBlock), link("gpu1", "gpu0", c.perBlock),
			link("gpu0", "gpu2", second), link("gpu2", "gpu0", second),
		})
		if err != nil {
			t.Fatal(err)
		}
		cfg = shm.Config{Topology: top, Pace: true, Clock: shm.TimerClock{}}
	}
	inner, err := shm.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var f nvlink.Fabric = inner
	if c.wrap != nil {
		f = c.wrap(f)
	}
	r := &rig{t: t, layers: c.layers, m: c.m, trace: &trace{spans: map[string]interval{}}}
	r.home = int64(c.blocks*c.buffers) * c.m
	r.local = r.arena("local", "gpu0", r.home+int64(c.blocks*c.layers)*c.m)
	r.remote = r.arena("remote", "gpu1", int64(c.blocks*c.layers)*c.m)
	for i := range r.remote.Bytes() {
		r.remote.Bytes()[i] = byte(i*7 + i>>8)
	}
	stream := func(name string) nvlink.Stream {
		s, err := f.NewStream("gpu0", name)
		if err != nil {
			t.Fatal(err)
		}
		return traced{s, r}
	}
	if r.second, err = shm.Open(dup(t, r.remote.File()), "second", "gpu2", 0); err != nil {
		t.Fatal(err)
	}
	r.load, r.another = stream("load"), stream("load")
	r.store = r.load
	if !c.oneStream {
		r.store = stream("store")
	}
	t.Cleanup(func() {
		// A test of faults leaves errors that no event reported.
		_ = f.Close()
		for _, a := range []*shm.Arena{r.local, r.remote, r.second} {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

func dup(t testing.TB, f *os.File) int {
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func (r *rig) arena(name, dev string, size int64) *shm.Arena {
	a, err := shm.Create(name, dev, size)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

// block is block i of the remote arena, with its own slots. Key is 100+i.
func (r *rig) block(i, buffers int, load, store bool, g Guard) Block {
	b := Block{
		Remote: func(l int) nvlink.Span {
			return nvlink.Span{Arena: r.remote, Off: int64(i*r.layers+l) * r.m, Len: r.m}
		},
		Load: load, Store: store, Guard: g, Key: int64(100 + i),
	}
	for k := range buffers {
		b.Slots = append(b.Slots, int64(i*buffers+k)*r.m)
	}
	return b
}

// promoted is block i with a new home.
func (r *rig) promoted(i int, store bool, g Guard) Block {
	b := r.block(i, 0, true, store, g)
	for l := range r.layers {
		b.Slots = append(b.Slots, r.home+int64(i*r.layers+l)*r.m)
	}
	return b
}

// far is b, loaded over the second link.
func (r *rig) far(b Block) Block {
	near := b.Remote
	b.Via = 1
	b.Remote = func(l int) nvlink.Span {
		s := near(l)
		s.Arena = r.second
		return s
	}
	return b
}

func (r *rig) pipeline(buffers int) *Pipeline {
	r.t.Helper()
	p, err := New(Config{Layers: r.layers, Buffers: buffers, LayerBlockBytes: r.m, Local: r.local,
		Loads: []nvlink.Stream{r.load, r.another}, Store: r.store})
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// slotBytes is the memory that layer l of b uses.
func (r *rig) slotBytes(b Block, l int) []byte {
	return r.local.Bytes()[b.Slots[l%len(b.Slots)]:][:r.m]
}

func (r *rig) remoteBytes(b Block, l int) []byte {
	s := b.Remote(l)
	return r.remote.Bytes()[s.Off:][:s.Len]
}

// newKV fills dst with what a forward pass would compute for layer l of b.
func newKV(dst []byte, b Block, l, seed int) {
	for i := range dst {
		dst[i] = byte(i*3 + l*17 + int(b.Key)*29 + seed)
	}
}

// fence is a Guard that turns false for good at its nth question.
type fence struct {
	mu    sync.Mutex
	asked int
	until int // questions answered with true; negative: all
}

func (f *fence) ask() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.until < 0 || f.asked <= f.until
}

// fired reports whether the guard has said no.
func (f *fence) fired() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.until >= 0 && f.asked > f.until
}

func (f *fence) MayLoad() bool  { return f.ask() }
func (f *fence) MayStore() bool { return f.ask() }

func keysOf(err error) []int64 {
	if s, ok := err.(*StaleError); ok {
		return slices.Clone(s.Keys)
	}
	return nil
}
