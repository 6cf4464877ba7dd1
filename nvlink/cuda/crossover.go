//go:build cuda && cgo

package cuda

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// crossover is the size of runs from which the copy engine takes them.
type crossover struct {
	bytes int64 // 0: not known yet
	how   string
}

const (
	// assumedCrossover stands where none could be measured.
	assumedCrossover = 256 << 10
	probeBytes       = 16 << 20
	probePieces      = 64
	probeRounds      = 3
	// engineWorth is how much longer the copy engine may take than the kernel:
	// it leaves the multiprocessors to the model.
	engineWorth = 1.25
)

// probeSizes are tried in this order, from long to short.
var probeSizes = []int64{4 << 20, 1 << 20, 256 << 10, 64 << 10, 16 << 10}

// settle makes the device's crossover known: want, or measured where that is 0.
func (d *device) settle(want int64) error {
	d.measure.Lock()
	defer d.measure.Unlock()
	switch {
	case want > 0 && d.crossover.bytes != want:
		d.crossover = crossover{want, "set"}
	case want <= 0 && d.crossover.bytes == 0:
		if err := d.do(func() error { return d.probe() }); err != nil {
			d.crossover = crossover{assumedCrossover, fmt.Sprintf("assumed, for it could not be measured: %v", err)}
			var e *Error
			if !errors.As(err, &e) || e.Name != "CUDA_ERROR_OUT_OF_MEMORY" {
				return err
			}
		}
	}
	return nil
}

// probe measures with memory of its own, on the device's goroutine.
func (d *device) probe() (err error) {
	drv := d.m.drv
	at, err := drv.alloc(d, 2*probeBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drv.free(d, at)) }()
	ln, err := newLane(d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ln.close()) }()
	from := int64(math.MaxInt64)
	for _, size := range probeSizes {
		// Every other run, so that none could be joined.
		runs := make([]run, min(probeBytes/(2*size), probePieces))
		for i := range runs {
			off := 2 * uint64(i) * uint64(size)
			runs[i] = run{dst: at + probeBytes + off, src: at + off, len: uint64(size)}
		}
		engine, err := ln.time(func() error { return ln.engine(runs) })
		if err != nil {
			return err
		}
		kernel, err := ln.time(func() error { return ln.gather(runs) })
		if err != nil {
			return err
		}
		if float64(engine) > engineWorth*float64(kernel) {
			break
		}
		from = size
	}
	d.crossover = crossover{from, "measured"}
	return nil
}

// time is the shortest of some times that f takes on the stream.
func (ln *lane) time(f func() error) (time.Duration, error) {
	best := time.Duration(math.MaxInt64)
	for range probeRounds {
		began, err := ln.mark()
		if err != nil {
			return 0, err
		}
		if err := f(); err != nil {
			return 0, err
		}
		ended, err := ln.mark()
		if err != nil {
			return 0, err
		}
		if err := ln.drv.wait(ln.dev, ended, 0); err != nil {
			return 0, err
		}
		took, err := ln.drv.elapsed(ln.dev, began, ended)
		if err != nil {
			return 0, err
		}
		best = min(best, took)
		ln.recycle(&resources{events: []uint64{began, ended}, lists: ln.takeUsed()})
	}
	return best, nil
}
