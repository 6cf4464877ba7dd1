package shm

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// splitAbove is the size in bytes from which a batch is split over workers.
const splitAbove = 1 << 20

const (
	// spreadStep is the time between two parts of a copy that is spread over its
	// time: shorter than an engine's step, longer than what timers are late by.
	spreadStep = time.Millisecond
	// spreadParts bounds the parts of one batch.
	spreadParts = 4096
)

// spread copies the batch's runs in equal parts, evenly over the time that its
// slowest link takes until end, but not before start.
func (b *batch) spread(clock Clock, start, end time.Time) error {
	var total int64
	for i := range b.runs {
		total += int64(len(b.runs[i].dst))
	}
	var takes time.Duration
	for _, h := range b.hops {
		takes = max(takes, h.link.Time(h.bytes))
	}
	if from := end.Add(-takes); from.After(start) {
		start = from // others have the link until then
	}
	n := min(max(int64(end.Sub(start)/spreadStep), 1), spreadParts)
	for i := range n {
		clock.SleepUntil(start.Add(end.Sub(start) / time.Duration(n) * time.Duration(i)))
		if err := moveRange(b.runs, total*i/n, total*(i+1)/n); err != nil {
			return err
		}
	}
	return nil
}

// move copies the batch's runs, on up to workers goroutines.
func (b *batch) move(workers int) error {
	if workers == 1 {
		return moveRuns(b.runs)
	}
	var total int64
	for i := range b.runs {
		total += int64(len(b.runs[i].dst))
	}
	if total < splitAbove {
		return moveRuns(b.runs)
	}
	return moveSplit(b.runs, total, workers)
}

// moveSplit gives each worker an equal share of the bytes, cutting runs where
// a share ends.
func moveSplit(runs []run, total int64, workers int) error {
	share := (total + int64(workers) - 1) / int64(workers)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		lo := min(int64(w)*share, total)
		hi := min(lo+share, total)
		wg.Go(func() {
			debug.SetPanicOnFault(true)
			errs[w] = moveRange(runs, lo, hi)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// moveRange copies bytes [lo, hi) of the runs laid end to end.
func moveRange(runs []run, lo, hi int64) (err error) {
	defer recoverFault(&err)
	var at int64
	for i := range runs {
		n := int64(len(runs[i].dst))
		from, to := max(lo-at, 0), min(hi-at, n)
		if from < to {
			copy(runs[i].dst[from:to], runs[i].src[from:to])
		}
		if at += n; at >= hi {
			return nil
		}
	}
	return nil
}

func moveRuns(runs []run) (err error) {
	defer recoverFault(&err)
	for i := range runs {
		copy(runs[i].dst, runs[i].src)
	}
	return nil
}

// recoverFault turns a memory fault into an error; other panics go on.
func recoverFault(err *error) {
	r := recover()
	if r == nil {
		return
	}
	fault, ok := r.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		panic(r)
	}
	*err = fmt.Errorf("memory fault at %#x while copying: %w", fault.Addr(), fault)
}
