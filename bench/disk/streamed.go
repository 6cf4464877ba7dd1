package disk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/overflow/stream"
)

// staging is the memory that a stream reads ahead into.
const staging = 32 << 20

// streamed restores as the pool does when it serves: blocks lie on each disk as
// a store lays them out, a copy stream joins what is adjacent, copies layer
// after layer into an arena with room for a few, and every layer block's
// checksum is verified before the layer counts.
type streamed struct {
	stream *stream.Stream
	far    []*stream.Arena
	near   *shm.Arena
	ahead  int
	pieces [][]nvlink.Copy // of each layer
	sums   [][]uint64      // as they were the first time
	known  bool
}

// newStreamed lays out units[i] blocks on device i.
func newStreamed(s *set, layers, ahead int, units []int) (_ *streamed, err error) {
	t := &streamed{ahead: ahead, sums: make([][]uint64, layers)}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	blocks := 0
	for i, d := range s.devs {
		t.far = append(t.far, stream.NewArena(d))
		blocks += units[i]
	}
	if t.near, err = shm.Create("bench-disk", "gpu0", int64(ahead)*int64(blocks)*layerUnit); err != nil {
		return nil, err
	}
	clear(t.near.Bytes()) // map its pages
	if t.stream, err = stream.New(stream.Options{Name: "restore", Memory: s.eng.Memory().For("load"), Staging: staging}); err != nil {
		return nil, err
	}
	for l := range layers {
		at := int64(l%ahead) * int64(blocks) * layerUnit
		var list []nvlink.Copy
		for d, n := range units {
			g := geometry(layers, n)
			for slot := range n {
				list = append(list, nvlink.Copy{
					Src: nvlink.Span{Arena: t.far[d], Off: g.Off(store.Slot(slot), l), Len: layerUnit},
					Dst: nvlink.Span{Arena: t.near, Off: at, Len: layerUnit},
				})
				at += layerUnit
			}
		}
		t.pieces = append(t.pieces, list)
		t.sums[l] = make([]uint64, blocks)
	}
	return t, nil
}

// segmentRun is R: one layer of a segment is 1 MiB.
const segmentRun = 16

// geometry is a store's for n blocks, without what lies before them.
func geometry(layers, n int) *store.Geometry {
	return &store.Geometry{Layers: layers, LayerBytes: layerUnit, BlockTokens: blockTokens, Run: segmentRun,
		Slots: (n + segmentRun - 1) / segmentRun * segmentRun, Stride: layerUnit}
}

// storeBytes is how large a device must be for n blocks.
func storeBytes(layers, n int) int64 {
	return int64(geometry(layers, n).Slots) * int64(layers) * layerUnit
}

func (t *streamed) restore(ctx context.Context) (trial, error) {
	events := make([]nvlink.Event, len(t.pieces))
	began := time.Now()
	for l, list := range t.pieces {
		if err := t.stream.CopyBatch(list); err != nil {
			return trial{}, err
		}
		if err := t.stream.Call(func() error { return t.verify(l) }); err != nil {
			return trial{}, err
		}
		var err error
		if events[l], err = t.stream.Record(); err != nil {
			return trial{}, err
		}
	}
	var out trial
	for _, e := range events {
		if err := e.Wait(ctx); err != nil {
			return trial{}, err
		}
		out.layers = append(out.layers, time.Since(began).Seconds())
	}
	out.first, out.seconds = out.layers[0], out.layers[len(out.layers)-1]
	t.known = true
	return out, nil
}

// verify compares the checksums of layer l with those of the first time.
func (t *streamed) verify(l int) error {
	at := int64(l%t.ahead) * int64(len(t.pieces[l])) * layerUnit
	for i := range t.sums[l] {
		sum := xxh3.Hash(t.near.Bytes()[at:][:layerUnit])
		if t.known && sum != t.sums[l][i] {
			return fmt.Errorf("layer %d, block %d: checksum %016x, it was %016x", l, i, sum, t.sums[l][i])
		}
		t.sums[l][i] = sum
		at += layerUnit
	}
	return nil
}

func (t *streamed) close() error {
	var errs []error
	if t.stream != nil {
		errs = append(errs, t.stream.Close())
	}
	for _, a := range t.far {
		errs = append(errs, a.Close())
	}
	if t.near != nil {
		errs = append(errs, t.near.Close())
	}
	return errors.Join(errs...)
}
