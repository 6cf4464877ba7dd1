package lsc

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/nvlink"
)

// sealed is block i with checksums of its own.
func (r *rig) sealed(i, buffers int, load, store bool, g Guard) Block {
	b := r.block(i, buffers, load, store, g)
	b.Sums, b.Seed, b.Verify = make([]uint64, r.layers), uint64(7*i), load
	return b
}

// pass runs the calls of one pass and returns its first error.
func (r *rig) pass(pl *Pipeline, blocks []Block, written func(l int)) (Stats, error) {
	r.t.Helper()
	p, err := pl.Begin(blocks)
	if err != nil {
		r.t.Fatal(err)
	}
	for l := range r.layers {
		if err := p.Layer(l); err != nil {
			p.Abort()
			return p.Stats(), err
		}
		if written != nil {
			written(l)
		}
		p.Written(l)
		p.Done(l)
	}
	err = p.Finish()
	return p.Stats(), err
}

// TestChecksumsFindEveryBit stores blocks, spoils one byte of each layer block
// in turn, and expects the load to name exactly that block and layer.
func TestChecksumsFindEveryBit(t *testing.T) {
	for _, buffers := range []int{1, 2} {
		const layers, n, m = 5, 4, 256
		r := newRig(t, rigConfig{layers: layers, blocks: n, buffers: buffers, m: m})
		pl := r.pipeline(buffers)
		var store, load []Block
		for i := range n {
			b := r.sealed(i, buffers, false, true, nil)
			store = append(store, b)
			b.Load, b.Store, b.Verify = true, false, true
			load = append(load, b)
		}
		if _, err := r.pass(pl, store, func(l int) {
			for _, b := range store {
				newKV(r.slotBytes(b, l), b, l, 1)
			}
		}); err != nil {
			t.Fatal(err)
		}
		st, err := r.pass(pl, load, nil)
		if err != nil || st.VerifiedBlocks != n*layers {
			t.Fatalf("blocks as they were stored: %v, stats %+v", err, st)
		}
		for l := range layers {
			for i, b := range load {
				mem := r.remoteBytes(b, l)
				mem[(l*37+i*11)%m] ^= 1 << ((l + i) % 8)
				_, err := r.pass(pl, load, nil)
				var corrupt *CorruptError
				if !errors.As(err, &corrupt) || corrupt.Layer != l || !slices.Equal(corrupt.Keys, []int64{b.Key}) {
					t.Fatalf("layer %d of block %d: %v (%+v)", l, b.Key, err, corrupt)
				}
				if !strings.Contains(err.Error(), fmt.Sprintf("layer %d", l)) {
					t.Errorf("error %q", err)
				}
				mem[(l*37+i*11)%m] ^= 1 << ((l + i) % 8)
			}
		}
		if _, err := r.pass(pl, load, nil); err != nil {
			t.Fatalf("blocks that were mended: %v", err)
		}
	}
}

// TestChecksumsKnowTheirPlace: whole bytes under another seed or in another
// layer do not verify; without Verify nothing is compared.
func TestChecksumsKnowTheirPlace(t *testing.T) {
	r := newRig(t, rigConfig{layers: 3, blocks: 1, buffers: 1, m: 128})
	pl := r.pipeline(1)
	b := r.sealed(0, 1, false, true, nil)
	if _, err := r.pass(pl, []Block{b}, func(l int) { clear(r.slotBytes(b, l)) }); err != nil {
		t.Fatal(err)
	}
	b.Load, b.Store, b.Verify = true, false, true
	other := b
	other.Seed++
	var corrupt *CorruptError
	if _, err := r.pass(pl, []Block{other}, nil); !errors.As(err, &corrupt) || corrupt.Layer != 0 {
		t.Errorf("another seed: %v", err)
	}
	other = b
	other.Sums = []uint64{b.Sums[0], b.Sums[2], b.Sums[1]}
	if _, err := r.pass(pl, []Block{other}, nil); !errors.As(err, &corrupt) || corrupt.Layer != 1 {
		t.Errorf("checksums of other layers, equal bytes: %v", err)
	}
	other.Verify = false
	if st, err := r.pass(pl, []Block{other}, nil); err != nil || st.VerifiedBlocks != 0 {
		t.Errorf("without Verify: %v, %+v", err, st)
	}
	other = r.block(0, 1, true, false, nil)
	if _, err := r.pass(pl, []Block{other}, nil); err != nil {
		t.Errorf("without Sums: %v", err)
	}
}

// TestStaleIsNotCorrupt: bytes of the memory's next owner are not held against
// the last one.
func TestStaleIsNotCorrupt(t *testing.T) {
	r := newRig(t, rigConfig{layers: 2, blocks: 1, buffers: 1, m: 128})
	pl := r.pipeline(1)
	b := r.sealed(0, 1, true, false, &fence{until: 1})
	_, err := r.pass(pl, []Block{b}, nil) // sums of zero match nothing
	if !slices.Equal(keysOf(err), []int64{b.Key}) {
		t.Fatalf("error %v, want a StaleError", err)
	}
}

func TestSumsAreChecked(t *testing.T) {
	r := newRig(t, rigConfig{layers: 2, blocks: 1, buffers: 1, m: 128})
	for want, change := range map[string]func(*Block){
		"has 1 Sums; want 2":     func(b *Block) { b.Sums = b.Sums[:1] },
		"verified and has no Su": func(b *Block) { b.Sums = nil },
	} {
		b := r.sealed(0, 1, true, false, nil)
		change(&b)
		if _, err := r.pipeline(1).Begin([]Block{b}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	far, err := New(Config{Layers: 2, Buffers: 1, LayerBlockBytes: 128, Local: deviceArena{r.local}, Load: r.load, Store: r.store})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := far.Begin([]Block{r.sealed(0, 1, true, false, nil)}); err == nil || !strings.Contains(err.Error(), "can read arena") {
		t.Errorf("an arena that the host cannot read: %v", err)
	}
}

// deviceArena is one that the host cannot address.
type deviceArena struct{ nvlink.Arena }

func (deviceArena) Bytes() []byte { return nil }
