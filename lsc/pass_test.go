package lsc

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/faultfabric"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestDataEqualsPlainCopies runs passes over real memory in real time, with
// delays, and compares every byte that the compute sees and leaves behind
// with a model that copies at once.
func TestDataEqualsPlainCopies(t *testing.T) {
	for _, buffers := range []int{1, 2} {
		for _, one := range []bool{false, true} {
			t.Run(fmt.Sprintf("buffers=%d,one=%v", buffers, one), func(t *testing.T) {
				const layers, n, m = 5, 6, 4 << 10
				r := newRig(t, rigConfig{layers: layers, blocks: n, buffers: buffers, m: m, oneStream: one,
					wrap: func(f nvlink.Fabric) nvlink.Fabric {
						return faultfabric.Wrap(f, faultfabric.Config{Seed: 3, MaxDelay: 200 * time.Microsecond})
					}})
				want := bytes.Clone(r.remote.Bytes())
				pl := r.pipeline(buffers)
				rng := rand.New(rand.NewPCG(9, uint64(buffers)))
				for seed := range 30 {
					var blocks []Block
					for i := range n {
						b := r.block(i, buffers, rng.IntN(2) == 0, rng.IntN(2) == 0, nil)
						if b.Load && rng.IntN(2) == 0 {
							b = r.promoted(i, b.Store, nil)
						}
						if rng.IntN(2) == 0 {
							b = r.far(b)
						}
						blocks = append(blocks, b)
					}
					runPass(t, r, pl, blocks, want, seed)
				}
			})
		}
	}
}

// runPass computes one pass over blocks; want is the model of the remote arena.
func runPass(t *testing.T, r *rig, pl *Pipeline, blocks []Block, want []byte, seed int) {
	t.Helper()
	p, err := pl.Begin(blocks)
	if err != nil {
		t.Fatal(err)
	}
	for l := range r.layers {
		if err := p.Layer(l); err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks {
			s := b.Remote(l)
			if b.Load && !bytes.Equal(r.slotBytes(b, l), want[s.Off:][:s.Len]) {
				t.Fatalf("pass %d: layer %d of block %d is not what was stored", seed, l, b.Key)
			}
			if b.Store {
				newKV(r.slotBytes(b, l), b, l, seed)
				newKV(want[s.Off:][:s.Len], b, l, seed)
			}
		}
		p.Written(l)
		p.Done(l)
	}
	if err := p.Finish(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(r.remote.Bytes(), want) {
		t.Fatalf("pass %d: borrowed memory differs from the model", seed)
	}
	for _, b := range blocks {
		for l := 0; l < r.layers && b.Load && len(b.Slots) == r.layers; l++ {
			if s := b.Remote(l); !bytes.Equal(r.slotBytes(b, l), want[s.Off:][:s.Len]) {
				t.Fatalf("pass %d: layer %d of block %d is not in its new home", seed, l, b.Key)
			}
		}
	}
}

// TestFenceAtEveryPoint takes the memory of one block away at every moment at
// which its guard can be asked. Whatever the moment, the pass must name the
// block, and no byte may be stored to it after the guard said no.
func TestFenceAtEveryPoint(t *testing.T) {
	const layers, n, m = 4, 3, 256
	for _, buffers := range []int{1, 2} {
		for _, kind := range []string{"stored", "streamed", "promoted", "promoted beside streamed"} {
			for until := 0; ; until++ {
				g := &fence{until: until}
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t, rigConfig{layers: layers, blocks: n, buffers: buffers, m: m, perBlock: time.Millisecond})
					blocks := []Block{
						r.block(0, buffers, true, true, &fence{until: -1}),
						r.block(1, buffers, kind == "streamed", true, g),
						r.block(2, buffers, true, false, nil),
					}
					switch kind {
					case "promoted":
						blocks[1] = r.far(r.promoted(1, false, g))
					case "promoted beside streamed":
						blocks[1] = r.promoted(1, false, g)
					}
					checkFence(t, r, blocks, g, buffers, until)
				})
				if g.asked <= until {
					break // the whole pass asks no more often than this
				}
			}
		}
	}
}

func checkFence(t *testing.T, r *rig, blocks []Block, g *fence, buffers, until int) {
	lo, hi := int64(r.layers)*r.m, int64(2*r.layers)*r.m // of block 1
	r.onPiece = func(far nvlink.Span) {
		if g.fired() && far.Off >= lo && far.Off < hi {
			t.Errorf("%d buffers, until %d: a copy of the block was submitted after its guard said no", buffers, until)
		}
	}
	p, err := r.pipeline(buffers).Begin(blocks)
	if err != nil {
		t.Fatal(err)
	}
	for l := range r.layers {
		if err = p.Layer(l); err != nil {
			p.Abort()
			break
		}
		if blocks[1].Load && g.fired() {
			t.Fatalf("%d buffers, until %d: Layer(%d) let the attention read memory that its guard had given up", buffers, until, l)
		}
		for _, b := range blocks {
			if b.Store {
				newKV(r.slotBytes(b, l), b, l, 1)
			}
		}
		p.Written(l)
		p.Done(l)
	}
	if err == nil {
		err = p.Finish()
	}
	if got := keysOf(err); g.fired() != slices.Equal(got, []int64{101}) || !g.fired() && err != nil {
		t.Fatalf("%d buffers, guard false after %d answers (asked %d): %v with keys %v", buffers, until, g.asked, err, got)
	}
	if err == nil {
		return
	}
	// The other stored block is whole if the pass reached its end.
	for l := range p.layer {
		want := make([]byte, r.m)
		newKV(want, blocks[0], l, 1)
		if !bytes.Equal(r.remoteBytes(blocks[0], l), want) {
			t.Fatalf("%d buffers, until %d: layer %d of the healthy block was not stored", buffers, until, l)
		}
	}
}

// shortLease refuses one store, as a lease does that is about to end and then
// is renewed.
type shortLease struct{ asked, refuse int }

func (*shortLease) MayLoad() bool { return true }
func (s *shortLease) MayStore() bool {
	s.asked++
	return s.asked-1 != s.refuse
}

// TestRefusedStoreIsNotForgotten: a block that missed the store of one layer
// is incomplete, even if its memory was never taken.
func TestRefusedStoreIsNotForgotten(t *testing.T) {
	const layers = 3
	r := newRig(t, rigConfig{layers: layers, blocks: 2, buffers: 1, m: 64})
	for refuse := range layers {
		g := &shortLease{refuse: refuse}
		p, err := r.pipeline(1).Begin([]Block{r.block(0, 1, true, true, g), r.block(1, 1, true, true, nil)})
		if err != nil {
			t.Fatal(err)
		}
		for l := range layers {
			if err := p.Layer(l); err != nil {
				t.Fatal(err)
			}
			p.Written(l)
			p.Done(l)
		}
		if got := keysOf(p.Finish()); !slices.Equal(got, []int64{100}) {
			t.Fatalf("store %d refused: stale keys %v", refuse, got)
		}
		if got := p.Stats().StoredBlocks; got != layers+refuse {
			t.Fatalf("store %d refused: %d layer blocks stored, want %d", refuse, got, layers+refuse)
		}
	}
}

// TestAbortAtEveryPoint aborts a pass after each of its calls. When Abort has
// returned nothing may be in flight: the trace stands still and the slots can
// be used for a new pass at once.
func TestAbortAtEveryPoint(t *testing.T) {
	const layers, n, m = 3, 4, 256
	for _, buffers := range []int{1, 2} {
		for point := range 3*layers + 1 {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, rigConfig{layers: layers, blocks: n, buffers: buffers, m: m, perBlock: time.Millisecond})
				want := bytes.Clone(r.remote.Bytes())
				pl := r.pipeline(buffers)
				blocks := []Block{
					r.block(0, buffers, true, true, nil), r.block(1, buffers, true, false, nil),
					r.promoted(2, false, nil), r.far(r.promoted(3, false, nil)),
				}
				p, err := pl.Begin(blocks)
				if err != nil {
					t.Fatal(err)
				}
				for call := range point {
					l := call / 3
					switch call % 3 {
					case 0:
						if err := p.Layer(l); err != nil {
							t.Fatal(err)
						}
						newKV(r.slotBytes(blocks[0], l), blocks[0], l, 5)
					case 1:
						p.Written(l)
						newKV(want[blocks[0].Remote(l).Off:][:m], blocks[0], l, 5)
					case 2:
						p.Done(l)
					}
				}
				p.Abort()
				before, slots := r.trace.clone(), bytes.Clone(r.local.Bytes())
				for _, iv := range before {
					if iv.end.IsZero() {
						t.Fatalf("point %d: a copy is in flight after Abort", point)
					}
				}
				p.Abort()
				p.Written(point / 3)
				p.Done(point / 3)
				if err := p.Layer(point / 3); !errors.Is(err, ErrAborted) {
					t.Fatalf("Layer after Abort: %v", err)
				}
				if err := p.Finish(); !errors.Is(err, ErrAborted) {
					t.Fatalf("Finish after Abort: %v", err)
				}
				time.Sleep(time.Hour) // fake time
				if !maps.Equal(before, r.trace.clone()) || !bytes.Equal(slots, r.local.Bytes()) {
					t.Fatalf("%d buffers, point %d: something ran after Abort", buffers, point)
				}
				if !bytes.Equal(want, r.remote.Bytes()) {
					t.Fatalf("%d buffers, point %d: borrowed memory is not what was written", buffers, point)
				}
				runPass(t, r, pl, blocks, want, 1)
			})
		}
	}
}

func TestAbortWakesLayer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f *faultfabric.Fabric
		r := newRig(t, rigConfig{layers: 2, blocks: 1, buffers: 1, m: 64, wrap: func(in nvlink.Fabric) nvlink.Fabric {
			f = faultfabric.Wrap(in, faultfabric.Config{})
			return f
		}})
		f.Hold("load")
		p, err := r.pipeline(1).Begin([]Block{r.block(0, 1, true, false, nil)})
		if err != nil {
			t.Fatal(err)
		}
		layer, abort := make(chan error, 1), make(chan struct{})
		go func() { layer <- p.Layer(0) }()
		synctest.Wait()
		go func() { p.Abort(); close(abort) }()
		if err := <-layer; !errors.Is(err, ErrAborted) {
			t.Fatalf("Layer returned %v", err)
		}
		synctest.Wait()
		select {
		case <-abort:
			t.Fatal("Abort returned with a copy in flight")
		default:
		}
		f.Release("load")
		<-abort
	})
}

// TestFaultyCopiesAreReported fails every copy of a pass in turn.
func TestFaultyCopiesAreReported(t *testing.T) {
	const layers = 3
	for _, buffers := range []int{1, 2} {
		for _, promote := range []bool{false, true} {
			copies := 2 * layers
			if promote {
				copies = 4 * layers
			}
			for nth := 1; nth <= copies; nth++ {
				synctest.Test(t, func(t *testing.T) { checkFault(t, buffers, promote, nth, copies) })
			}
		}
	}
}

func checkFault(t *testing.T, buffers int, promote bool, nth, copies int) {
	const layers = 3
	r := newRig(t, rigConfig{layers: layers, blocks: 4, buffers: buffers, m: 64, wrap: func(f nvlink.Fabric) nvlink.Fabric {
		return faultfabric.Wrap(f, faultfabric.Config{FailCopy: nth})
	}})
	pl := r.pipeline(buffers)
	blocks := []Block{r.block(0, buffers, true, true, nil), r.block(1, buffers, false, true, nil)}
	if promote {
		blocks = append(blocks, r.promoted(2, false, nil), r.far(r.promoted(3, false, nil)))
	}
	p, err := pl.Begin(blocks)
	if err != nil {
		t.Fatal(err)
	}
	for l := 0; l < layers && err == nil; l++ {
		if err = p.Layer(l); err == nil {
			p.Written(l)
			p.Done(l)
		}
	}
	// A failed store shows at the next use of its slots, not only
	// at the end. With one buffer the copies alternate.
	if last := nth == copies; buffers == 1 && !promote && (err == nil) != last {
		t.Fatalf("copy %d failed: Layer returned %v", nth, err)
	}
	if ferr := p.Finish(); !errors.Is(ferr, faultfabric.ErrInjected) {
		t.Fatalf("%d buffers, copy %d of %d failed: Finish returned %v", buffers, nth, copies, ferr)
	}
	// The next pass is not touched by the last one's error.
	runPass(t, r, pl, blocks, bytes.Clone(r.remote.Bytes()), 2)
}

func TestCallsOutOfOrder(t *testing.T) {
	r := newRig(t, rigConfig{layers: 2, blocks: 1, buffers: 1, m: 64})
	pl := r.pipeline(1)
	for name, calls := range map[string]func(p *Pass) error{
		"second layer first":    func(p *Pass) error { return p.Layer(1) },
		"negative":              func(p *Pass) error { return p.Layer(-1) },
		"layer twice":           func(p *Pass) error { _ = p.Layer(0); return p.Layer(0) },
		"done before written":   func(p *Pass) error { _ = p.Layer(0); p.Done(0); return p.Layer(1) },
		"written before layer":  func(p *Pass) error { p.Written(0); return p.Finish() },
		"finished half way":     func(p *Pass) error { _ = p.Layer(0); p.Written(0); p.Done(0); return p.Finish() },
		"finished within layer": func(p *Pass) error { _ = p.Layer(0); return p.Finish() },
	} {
		p, err := pl.Begin([]Block{r.block(0, 1, true, true, nil)})
		if err != nil {
			t.Fatal(err)
		}
		if err := calls(p); err == nil || errors.Is(err, ErrAborted) {
			t.Errorf("%s: %v", name, err)
		}
		p.Abort()
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t, rigConfig{layers: 2, blocks: 2, buffers: 2, m: 64})
	good := Config{Layers: 2, Buffers: 2, LayerBlockBytes: 64, Local: r.local, Load: r.load, Store: r.store}
	for want, change := range map[string]func(*Config){
		"Layers is 0":                           func(c *Config) { c.Layers = 0 },
		"Buffers is 3":                          func(c *Config) { c.Buffers = 3 },
		"LayerBlockBytes is 513; want 1 to 512": func(c *Config) { c.LayerBlockBytes = 513 },
		"Local is nil":                          func(c *Config) { c.Local = nil },
		"Store or one of Loads is nil":          func(c *Config) { c.Store = nil },
		"Load and Loads: want one":              func(c *Config) { c.Load = nil },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v, want %q", err, want)
		}
	}
	pl := r.pipeline(2)
	for want, change := range map[string]func(*Block){
		"has no Remote":     func(b *Block) { b.Remote = nil },
		"has 1 slots":       func(b *Block) { b.Slots = b.Slots[:1] },
		"slot at 449; want": func(b *Block) { b.Slots[1] = 449 },
		"has Via 2; want 0": func(b *Block) { b.Via = 2 },
		"has Via -1; want":  func(b *Block) { b.Via = -1 },
		"slot at -1; want":  func(b *Block) { b.Slots[1] = -1 },
	} {
		b := r.block(0, 2, true, true, nil)
		change(&b)
		if _, err := pl.Begin([]Block{b}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "key 100") {
			t.Errorf("Begin: %v, want %q", err, want)
		}
	}
	// A Remote that gives a wrong span is found at its layer.
	b := r.block(0, 2, true, true, nil)
	b.Remote = func(l int) nvlink.Span { return nvlink.Span{Arena: r.remote, Off: 0, Len: 63} }
	p, err := pl.Begin([]Block{b})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Layer(0); !errors.Is(err, nvlink.ErrBadSpan) {
		t.Errorf("Layer with a short Remote: %v", err)
	}
	p.Abort()
}

func TestPassWithoutBlocks(t *testing.T) {
	r := newRig(t, rigConfig{layers: 2, blocks: 1, buffers: 1, m: 64})
	runPass(t, r, r.pipeline(1), nil, bytes.Clone(r.remote.Bytes()), 0)
	if n := r.trace.clone(); len(n) != 0 {
		t.Fatalf("copies of nothing: %v", n)
	}
}
