package lsc

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lease is a guard that a test turns off.
type lease struct{ over bool }

func (s *lease) MayLoad() bool  { return !s.over }
func (s *lease) MayStore() bool { return !s.over }

// TestLandedBlocksAreSafe: once all layers of a promoted block have arrived and
// a guard has said so, the borrowed memory may go. Before that it may not.
func TestLandedBlocksAreSafe(t *testing.T) {
	const layers = 4
	for _, when := range []int{0, 1, 2, 3} { // the lease ends before this Layer
		for _, landed := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, rigConfig{layers: layers, blocks: 2, buffers: 1, m: 64, perBlock: time.Millisecond})
				g := &lease{}
				p, err := r.pipeline(1).Begin([]Block{r.promoted(0, false, g), r.far(r.block(1, 1, true, false, nil))})
				if err != nil {
					t.Fatal(err)
				}
				if landed {
					time.Sleep(time.Hour) // fake time: all loads are through
				}
				for l := range layers {
					g.over = g.over || l == when
					if err = p.Layer(l); err != nil {
						break
					}
					p.Written(l)
					p.Done(l)
				}
				if err == nil {
					err = p.Finish()
				}
				p.Abort()
				// With the loads under way each Layer sees one more layer.
				want := landed && when > 0
				if (err == nil) != want || err != nil && !slices.Equal(keysOf(err), []int64{100}) {
					t.Fatalf("lease over before layer %d, landed %v: %v", when, landed, err)
				}
			})
		}
	}
}

// TestCorruptBlocksOfAllStreamsAreNamedInOrder: every bit is found whatever way
// a block came, and the keys have the order of the blocks.
func TestCorruptBlocksOfAllStreamsAreNamedInOrder(t *testing.T) {
	const layers, n, m = 4, 6, 128
	r := newRig(t, rigConfig{layers: layers, blocks: n, buffers: 2, m: m})
	pl := r.pipeline(2)
	var blocks []Block
	for i := range n {
		b := r.block(i, 2, true, false, nil)
		if i%2 == 0 {
			b = r.promoted(i, false, nil)
		}
		if i%3 == 0 {
			b = r.far(b)
		}
		b.Seed, b.Verify = uint64(i), true
		for l := range layers {
			b.Sums = append(b.Sums, Checksum(r.remoteBytes(b, l), b.Seed, l))
		}
		blocks = append(blocks, b)
	}
	if st, err := r.pass(pl, blocks, nil); err != nil || st.VerifiedBlocks != n*layers || st.PromotedBlocks != n/2*layers {
		t.Fatalf("healthy blocks: %v, %+v", err, st)
	}
	for l := range layers {
		for spoiled := 1; spoiled < 1<<n; spoiled++ {
			var want []int64
			for i, b := range blocks {
				if spoiled>>i&1 == 1 {
					r.remoteBytes(b, l)[spoiled%m] ^= 1
					want = append(want, b.Key)
				}
			}
			_, err := r.pass(pl, blocks, nil)
			var corrupt *CorruptError
			if !errors.As(err, &corrupt) || corrupt.Layer != l || !slices.Equal(corrupt.Keys, want) {
				t.Fatalf("layer %d of blocks %v: %v (%+v)", l, want, err, corrupt)
			}
			for i, b := range blocks {
				if spoiled>>i&1 == 1 {
					r.remoteBytes(b, l)[spoiled%m] ^= 1
				}
			}
		}
	}
}

// recorder keeps what it is told.
type recorder struct {
	mu  sync.Mutex
	off bool
	got []string
}

func (r *recorder) On() bool { return !r.off }

func (r *recorder) Transfer(name string, via, layer int, began, ended time.Time, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, fmt.Sprintf("%s via %d layer %d: %d bytes in %v", name, via, layer, bytes, ended.Sub(began)))
}

// TestTransfersAreTold: what a caller learns of each batch afterwards.
func TestTransfersAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rigConfig{layers: 2, blocks: 4, buffers: 1, m: 64, perBlock: time.Millisecond, perSecond: 3 * time.Millisecond})
		rec := &recorder{}
		pl := r.pipeline(1)
		pl.cfg.Recorder = rec
		blocks := []Block{
			r.block(0, 1, true, true, nil), r.promoted(1, false, nil),
			r.far(r.promoted(2, false, nil)), r.far(r.promoted(3, false, nil)),
		}
		var loads []Load
		for range 2 {
			p, err := pl.Begin(blocks)
			if err != nil {
				t.Fatal(err)
			}
			for l := range 2 {
				if err := p.Layer(l); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // fake time
				p.Written(l)
				p.Done(l)
			}
			if err := p.Finish(); err != nil {
				t.Fatal(err)
			}
			loads = loads[:0]
			p.Loads(func(ld Load) { loads = append(loads, ld) })
			if st := p.Stats(); st.LoadBusy != 16*time.Millisecond {
				t.Errorf("busy %v, want 16ms", st.LoadBusy)
			}
			rec.off = true // the second pass is nobody's business
		}
		want := []string{
			"load via 0 layer 0: 64 bytes in 1ms", "load via 0 layer 1: 64 bytes in 1ms",
			"promote via 0 layer 0: 64 bytes in 1ms", "promote via 0 layer 1: 64 bytes in 1ms",
			"promote via 1 layer 0: 128 bytes in 6ms", "promote via 1 layer 1: 128 bytes in 6ms",
			"store via 0 layer 0: 64 bytes in 1ms", "store via 0 layer 1: 64 bytes in 1ms",
		}
		if !slices.Equal(rec.got, want) {
			t.Errorf("recorded\n%q, want\n%q", rec.got, want)
		}
		near, far := Load{0, 64, time.Millisecond}, Load{1, 128, 6 * time.Millisecond}
		if w := []Load{near, near, near, near, far, far}; !slices.Equal(loads, w) {
			t.Errorf("loads %v, want %v", loads, w)
		}
	})
}
