package stream_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/stream"
)

// TestLayerStreamCache runs passes of package lsc whose far memory is two
// devices: streamed and promoted blocks, checksums, and stores by a stream of
// their own. What attention sees must be what was stored.
func TestLayerStreamCache(t *testing.T) {
	const layers, blocks, m = 6, 8, 3*page + 512
	const slot = 4 * page // of a layer block on a device
	for _, buffers := range []int{1, 2} {
		home := int64(blocks * buffers * m)
		r := newRig(t, 2, layers*blocks*slot, home+blocks*layers*m, stream.Options{})
		loads, err := stream.New(stream.Options{Name: "load", Memory: r.mem, Staging: 1 << 20, MaxRead: 4 * slot})
		r.must(err)
		p, err := lsc.New(lsc.Config{Layers: layers, Buffers: buffers, LayerBlockBytes: m, Local: r.host, Load: loads, Store: r.s})
		r.must(err)
		sums := make([][]uint64, blocks)
		list := func(load bool) []lsc.Block {
			var bs []lsc.Block
			for i := range int64(blocks) {
				if sums[i] == nil {
					sums[i] = make([]uint64, layers)
				}
				b := lsc.Block{
					// Layer by layer: a layer is one range of each device.
					Remote: func(l int) nvlink.Span {
						return span(r.ar[i%2], (int64(l)*blocks+i)/2*slot, m)
					},
					Load: load, Store: !load, Verify: load, Sums: sums[i], Seed: uint64(i), Key: i,
				}
				n := buffers
				if load && i >= blocks/2 {
					n = layers // promoted
				}
				for k := range int64(n) {
					if n == buffers {
						b.Slots = append(b.Slots, (i*int64(buffers)+k)*m)
					} else {
						b.Slots = append(b.Slots, home+(i*layers+k)*m)
					}
				}
				bs = append(bs, b)
			}
			return bs
		}
		kv := func(i int64, l int) []byte { return slices.Repeat([]byte{byte(i*16 + int64(l) + 1)}, m) }
		run := func(bs []lsc.Block, attend func(b *lsc.Block, l int, mem []byte)) error {
			pass, err := p.Begin(bs)
			r.must(err)
			for l := range layers {
				if err := pass.Layer(l); err != nil {
					pass.Abort()
					return err
				}
				for i := range bs {
					at := bs[i].Slots[l%len(bs[i].Slots)]
					attend(&bs[i], l, r.host.Bytes()[at:][:m])
				}
				pass.Written(l)
				pass.Done(l)
			}
			return pass.Finish()
		}
		r.must(run(list(false), func(b *lsc.Block, l int, mem []byte) { copy(mem, kv(b.Key, l)) }))
		clear(r.host.Bytes())
		check := func(b *lsc.Block, l int, mem []byte) { r.equal("what attention sees", mem, kv(b.Key, l)) }
		r.must(run(list(true), check))
		if st := loads.Stats(); st.Reads >= layers*blocks {
			t.Errorf("%d reads for %d layer blocks: neighbours were not joined", st.Reads, layers*blocks)
		}
		// A device that fails is an error of the pass, not of the process.
		r.devs[1].fault = func(io *device.IO) error {
			if io.Off >= 2*blocks/2*slot && !io.Write {
				return errTest
			}
			return nil
		}
		if err := run(list(true), check); !errors.Is(err, errTest) {
			t.Errorf("a pass with a failing device: %v", err)
		}
		_ = loads.Close()
	}
}

// TestMovesBetweenFabrics: events of a shm stream and of this one order each
// other, as moves in the background and their successors do.
func TestMovesBetweenFabrics(t *testing.T) {
	r := plainRig(t)
	f, err := shm.New(shm.Config{})
	r.must(err)
	near, err := f.NewStream("gpu0", "near")
	r.must(err)
	lent, err := shm.Create("lent", "gpu1", 64*page)
	r.must(err)
	for i := range lent.Bytes() {
		lent.Bytes()[i] = byte(i * 13)
	}
	var wg sync.WaitGroup
	for i := range int64(16) {
		// Out of lent memory to the host, from there to a device, and back elsewhere.
		r.must(near.CopyBatch([]nvlink.Copy{{Dst: span(r.host, i*page, page), Src: span(lent, i*page, page)}}))
		e, err := near.Record()
		r.must(err)
		r.must(r.s.WaitEvent(e))
		r.copy(r.store(int(i%2), i*page, i*page, page))
		r.copy(r.load(int(i%2), i*page, (100+i)*page, page))
		done := r.record()
		wg.Go(func() { <-done.Done() })
	}
	wg.Wait()
	r.equal("host", r.host.Bytes()[100*page:][:16*page], lent.Bytes()[:16*page])
	r.must(f.Close())
	r.must(lent.Close())
}
