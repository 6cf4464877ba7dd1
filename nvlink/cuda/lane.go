//go:build cuda && cgo

package cuda

import (
	"errors"
	"sync"
)

const (
	// partBytes is what a warp copies before it takes the next part.
	partBytes = 8 << 10
	// listLeast and listMost bound the entries of a list.
	listLeast = 1 << 10
	listMost  = 1 << 17
	// itemsMost bounds the work items of a kernel, which counts with 32 bits.
	itemsMost = 1 << 30
)

// lane is a CUDA stream of one device, as used by one Stream: its home, or a
// device that copies on its behalf. Issuing is for one goroutine; recycling
// may happen on another.
type lane struct {
	dev    *device
	drv    *driver
	stream uint64
	from   uint64 // the crossover

	used       []*list // issued since the last takeUsed
	big, small []run   // scratch

	mu     sync.Mutex
	events []uint64 // free
	lists  []*list  // free
}

// resources are what must be kept until a point of a lane is reached.
type resources struct {
	events []uint64
	lists  []*list
}

// newLane opens a stream; the device must have been started.
func newLane(d *device) (*lane, error) {
	s, err := d.m.drv.newStream(d)
	if err != nil {
		return nil, err
	}
	return &lane{dev: d, drv: d.m.drv, stream: s, from: uint64(d.crossover.bytes)}, nil
}

// close releases everything; nothing of the lane may be in flight.
func (ln *lane) close() error {
	ln.recycle(&resources{lists: ln.takeUsed()})
	var errs []error
	for _, e := range ln.events {
		errs = append(errs, ln.drv.destroyEvent(ln.dev, e))
	}
	for _, l := range ln.lists {
		errs = append(errs, ln.freeList(l))
	}
	errs = append(errs, ln.drv.destroyStream(ln.dev, ln.stream))
	return errors.Join(errs...)
}

// event gives an event that nobody uses.
func (ln *lane) event() (uint64, error) {
	ln.mu.Lock()
	if n := len(ln.events); n > 0 {
		e := ln.events[n-1]
		ln.events = ln.events[:n-1]
		ln.mu.Unlock()
		return e, nil
	}
	ln.mu.Unlock()
	return ln.drv.newEvent(ln.dev)
}

// mark records an event at the end of what was issued.
func (ln *lane) mark() (uint64, error) {
	e, err := ln.event()
	if err != nil {
		return 0, err
	}
	if err := ln.drv.record(ln.dev, e, ln.stream); err != nil {
		ln.recycle(&resources{events: []uint64{e}})
		return 0, err
	}
	return e, nil
}

// recycle takes back what is not in use any more.
func (ln *lane) recycle(r *resources) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.events = append(ln.events, r.events...)
	ln.lists = append(ln.lists, r.lists...)
}

func (ln *lane) takeUsed() []*list {
	used := ln.used
	ln.used = nil
	return used
}

// list gives a list for n entries, at most listMost, which stays with the lane
// until takeUsed.
func (ln *lane) list(n int) (*list, error) {
	ln.mu.Lock()
	for i, l := range ln.lists {
		if len(l.mem) >= n*entryBytes {
			last := len(ln.lists) - 1
			ln.lists[i] = ln.lists[last]
			ln.lists = ln.lists[:last]
			ln.mu.Unlock()
			ln.used = append(ln.used, l)
			return l, nil
		}
	}
	ln.mu.Unlock()
	room := listLeast
	for room < n {
		room *= 2
	}
	l := &list{}
	var err error
	if l.mem, l.hostDev, err = ln.drv.hostAlloc(ln.dev, int64(room)*entryBytes); err != nil {
		return nil, err
	}
	if l.dev, err = ln.drv.alloc(ln.dev, int64(room)*entryBytes); err != nil {
		return nil, errors.Join(err, ln.drv.hostFree(ln.dev, l.mem))
	}
	ln.used = append(ln.used, l)
	return l, nil
}

func (ln *lane) freeList(l *list) error {
	return errors.Join(ln.drv.hostFree(ln.dev, l.mem), ln.drv.free(ln.dev, l.dev))
}

// copy issues all runs: short ones to a kernel, long ones to the copy engine.
func (ln *lane) copy(runs []run) error {
	big, small := ln.big[:0], ln.small[:0]
	for _, r := range runs {
		if r.len >= ln.from {
			big = append(big, r)
		} else {
			small = append(small, r)
		}
	}
	ln.big, ln.small = big, small
	return errors.Join(ln.engine(big), ln.gather(small))
}

// engine issues runs to the copy engine.
func (ln *lane) engine(runs []run) error {
	if len(runs) == 0 {
		return nil
	}
	if len(runs) == 1 || !ln.dev.m.batches() {
		return ln.drv.engine(ln.dev, ln.stream, runs, false)
	}
	err := ln.drv.engine(ln.dev, ln.stream, runs, true)
	if err == nil {
		return nil
	}
	// Once more, one by one: what was copied is copied again.
	if err := ln.drv.engine(ln.dev, ln.stream, runs, false); err != nil {
		return err
	}
	ln.dev.m.refuseBatches(err)
	return nil
}

// gather issues runs to the kernel.
func (ln *lane) gather(runs []run) error {
	for len(runs) > 0 {
		n := min(len(runs), listMost)
		var longest uint64
		for _, r := range runs[:n] {
			longest = max(longest, r.len)
		}
		parts := (int64(longest) + partBytes - 1) / partBytes
		if int64(n)*parts > itemsMost {
			n = int(max(itemsMost/parts, 1))
		}
		l, err := ln.list(n)
		if err != nil {
			return err
		}
		if err := ln.drv.gather(ln.dev, ln.stream, l, runs[:n], parts, partBytes, ln.blocks(int64(n)*parts, 8)); err != nil {
			return err
		}
		runs = runs[n:]
	}
	return nil
}

// blocks is the number of thread blocks for items of which a block has perBlock
// at a time.
func (ln *lane) blocks(items, perBlock int64) int {
	return int(min((items+perBlock-1)/perBlock, int64(ln.dev.blocks)))
}

// hash issues checksums of ranges and returns the list that they will be in.
func (ln *lane) hash(ranges []ranged) (*list, error) {
	sums, err := ln.list((len(ranges)*8 + entryBytes - 1) / entryBytes)
	if err != nil {
		return nil, err
	}
	l, err := ln.list(len(ranges))
	if err != nil {
		return nil, err
	}
	return sums, ln.drv.hash(ln.dev, ln.stream, l, ranges, sums.hostDev, ln.blocks(int64(len(ranges)), 32))
}
