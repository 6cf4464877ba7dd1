package disk

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/placement"
)

// piece is one read of a layer.
type piece struct {
	dev      int
	off, len int64
}

// layers is what a context's KV is read as: layer after layer, each in pieces
// on several devices.
type layers [][]piece

func (l layers) bytes() int64 {
	var n int64
	for _, pieces := range l {
		for _, p := range pieces {
			n += p.len
		}
	}
	return n
}

// spread lays out count layers: of each, device i holds units[i] units of unit
// bytes as one run, read in pieces of at most maxIO bytes. from is where the
// runs begin on each device and room how much a device holds: beyond it runs
// begin anew, so that a short device can stand for a long one.
func spread(count int, unit, maxIO int64, units []int, from int64, room []int64) (layers, error) {
	at := make([]int64, len(units))
	out := make(layers, count)
	for l := range out {
		for d, n := range units {
			run := int64(n) * unit
			if run > room[d]-from {
				return nil, fmt.Errorf("device %d has %d bytes, a layer's run needs %d behind %d", d, room[d], run, from)
			}
			if from+at[d]+run > room[d] {
				at[d] = 0
			}
			for off := int64(0); off < run; off += maxIO {
				out[l] = append(out[l], piece{d, from + at[d] + off, min(maxIO, run-off)})
			}
			at[d] += run
		}
	}
	return out, nil
}

// share divides n units among devices with these rates as a policy of the pool
// does; a device with rate 0 gets none.
func share(policy string, n int, rates []float64) ([]int, error) {
	p, err := placement.ParsePolicy(policy)
	if err != nil {
		return nil, err
	}
	devs := make([]placement.Device, len(rates))
	for i, r := range rates {
		if r > 0 {
			devs[i] = placement.Device{Rate: r, Free: n}
		}
	}
	out := make([]int, len(rates))
	for _, part := range p.Place(nil, devs, n) {
		out[part.Device] = part.Count
	}
	return out, nil
}

// layerReader reads layers from devices in their order, some ahead of the
// oldest that is not complete. A layer's memory is used again once it and all
// before it are.
type layerReader struct {
	devs  []device.Device
	ahead int
	ios   [][][]*device.IO // by layer and device

	// These belong to the goroutine that calls Done.
	left  []int // pieces of each layer still on their way
	head  int   // the oldest layer that is not complete
	ended []time.Time
	err   error
	over  chan struct{}
}

// newLayerReader prepares to read plan into mem, which has room for ahead
// layers.
func newLayerReader(devs []device.Device, plan layers, ahead int, mem []byte) (*layerReader, error) {
	if len(plan) == 0 || ahead < 1 {
		return nil, fmt.Errorf("%d layers, %d at once; want at least 1 each", len(plan), ahead)
	}
	r := &layerReader{devs: devs, ahead: min(ahead, len(plan)), left: make([]int, len(plan)),
		ended: make([]time.Time, len(plan)), over: make(chan struct{})}
	room := int64(len(mem)) / int64(ahead) &^ (device.Align - 1)
	for l, pieces := range plan {
		by := make([][]*device.IO, len(devs))
		at := int64(l%ahead) * room
		end := at + room
		for _, p := range pieces {
			if at+p.len > end {
				return nil, fmt.Errorf("layer %d does not fit into its %d bytes of memory", l, room)
			}
			by[p.dev] = append(by[p.dev], &device.IO{Off: p.off, Buf: mem[at : at+p.len : at+p.len], Done: r.done, Owner: l})
			at += p.len
		}
		r.ios = append(r.ios, by)
		r.left[l] = len(pieces)
	}
	return r, nil
}

// run reads all layers once and returns when it began. After an error reads may
// still be in flight: closing the devices waits for them.
func (r *layerReader) run(ctx context.Context) (began time.Time, err error) {
	began = time.Now()
	for l := range r.ahead {
		if err := r.submit(l); err != nil {
			return began, err
		}
	}
	select {
	case <-r.over:
		return began, r.err
	case <-ctx.Done():
		return began, ctx.Err()
	}
}

func (r *layerReader) submit(l int) error {
	for d, ios := range r.ios[l] {
		if len(ios) == 0 {
			continue
		}
		if err := r.devs[d].Submit(ios); err != nil {
			return err
		}
	}
	return nil
}

func (r *layerReader) done(io *device.IO) {
	if r.err != nil {
		return // reported
	}
	if r.err = io.Err; r.err != nil {
		close(r.over)
		return
	}
	l := io.Owner.(int)
	if r.left[l]--; r.left[l] > 0 {
		return
	}
	r.ended[l] = io.Ended
	for r.head < len(r.left) && r.left[r.head] == 0 {
		r.head++
		next := r.head + r.ahead - 1
		if next >= len(r.left) {
			continue
		}
		if r.err = r.submit(next); r.err != nil {
			close(r.over)
			return
		}
	}
	if r.head == len(r.left) {
		close(r.over)
	}
}
