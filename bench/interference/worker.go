package interference

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/scheduler"
	lender "github.com/kvlend/kvlend/worker"
)

const (
	blockTokens = 16
	borrower    = 1 // the master's owner index
	arenaName   = "worker"
)

// worker serves its own requests, one at a time, and has lent what it can spare.
type worker struct {
	opt       *Options
	eng       *engine.Model
	arena     *shm.Arena
	unitBytes int64
	lent      []elastic.UnitEpoch
	lentBytes int64

	sched  *scheduler.Scheduler
	cancel context.CancelFunc
	ended  chan error
	rng    *rand.Rand
	served int
	cpu    time.Duration // of the worker's thread at the last event
}

func startWorker(eng *engine.Model, opt *Options) (*worker, error) {
	c := eng.Config()
	g := elastic.Geometry{Name: c.Name, Layers: c.Layers, BlockTokens: blockTokens, KVHeads: c.KVHeads, HeadDim: c.HeadDim, ElemBytes: 2}
	spec, err := elastic.NewUnitSpec(elastic.PolicyLCM, 0, g)
	if err != nil {
		return nil, err
	}
	w := &worker{opt: opt, eng: eng, unitBytes: spec.Bytes, rng: rand.New(rand.NewPCG(7, 7))}
	lend := int(max(1, opt.Lent/spec.Bytes))
	// Two requests' worth: the next one begins as the last one ends.
	floor := int64(2*spec.UnitsFor(g, g.Blocks(opt.Prompt+opt.Tokens))) * spec.Bytes
	size := floor + int64(lend)*spec.Bytes
	n, _ := spec.Divide(size)
	table, err := elastic.FormatUnitTable(make([]byte, elastic.UnitTableBytes(n)), spec, size, 0)
	if err != nil {
		return nil, err
	}
	units, err := elastic.NewUnits(elastic.UnitsOptions{Geometry: g, Spec: spec, Floor: floor, Table: table})
	if err != nil {
		return nil, err
	}
	if w.arena, err = shm.Create(arenaName, "worker", size); err != nil {
		return nil, err
	}
	cache, err := w.open(units, floor/spec.Bytes*int64(spec.BlocksPer(g, 1)))
	if err == nil {
		err = w.contiguous()
	}
	if err != nil {
		w.arena.Close()
		return nil, err
	}
	w.lentBytes = int64(len(w.lent)) * spec.Bytes
	w.sched = scheduler.New(eng, cache, scheduler.Options{MaxRunning: 1, MaxBatchTokens: max(opt.Prompt, 2*blockTokens)})
	w.run()
	return w, nil
}

// open makes the cache and lends what it spares.
func (w *worker) open(units *elastic.Units, blocks int64) (*lender.Cache, error) {
	policy, err := elastic.NewScalePolicy(elastic.ScaleOptions{Down: elastic.DownFloor})
	if err != nil {
		return nil, err
	}
	began := time.Now()
	cache, err := lender.New(lender.Config{
		Units: units, Policy: policy, Arena: w.arena, MaxBlocks: int(blocks),
		Need: func(int) {}, Hold: time.Hour, Now: func() time.Duration { return time.Since(began) },
	})
	if err != nil {
		return nil, err
	}
	cache.Locked(func() bool {
		w.lent, err = units.Grant(borrower, 1, cache.Lendable(coordinator.Wish{Units: 1 << 20, Keep: true}), 1<<60)
		return false
	})
	return cache, err
}

// run starts the scheduler, and with it the engine, on a core of its own.
func (w *worker) run() {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel, w.ended = cancel, make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its affinity
		if err := pin(w.opt.Cores[0]); err != nil {
			w.ended <- err
			return
		}
		w.ended <- w.sched.Run(ctx)
	}()
}

// pin keeps the calling thread on one core.
func pin(core int) error {
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin a thread to core %d: %w", core, err)
	}
	return nil
}

// took is a time in milliseconds, on the clock and of the worker's thread.
type took struct{ wall, cpu float64 }

// threadTime is the CPU time of the calling thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic("BUG: this thread's CPU time: " + err.Error())
	}
	return time.Duration(t.Nano())
}

// serve runs one request and returns its time to the first token and the times
// between tokens. Sinks run on the worker's thread, which does all the work.
func (w *worker) serve(ctx context.Context) (ttft took, perToken []took, err error) {
	type event struct {
		at  time.Time
		cpu time.Duration
		scheduler.Event
	}
	events := make(chan event, w.opt.Tokens+1)
	w.served++
	began := time.Now()
	err = w.sched.Submit(scheduler.Request{
		ID: strconv.Itoa(w.served), Tokens: prompt(w.rng, w.opt.Prompt, w.eng.Config().Vocab), MaxTokens: w.opt.Tokens,
		Sampling: sampling.Default(), IgnoreEOS: true,
		Sink: func(e scheduler.Event) { events <- event{time.Now(), threadTime(), e} },
	})
	if err != nil {
		return took{}, nil, err
	}
	last := began
	for {
		var e event
		select {
		case e = <-events:
		case err := <-w.ended:
			w.ended <- err
			return took{}, nil, fmt.Errorf("the worker has ended: %w", err)
		case <-ctx.Done():
			return took{}, nil, ctx.Err()
		}
		ms := took{e.at.Sub(last).Seconds() * 1e3, (e.cpu - w.cpu).Seconds() * 1e3}
		last, w.cpu = e.at, e.cpu
		switch {
		case e.Err != nil:
			return took{}, nil, e.Err
		case ttft == took{}:
			ttft = ms
		default:
			perToken = append(perToken, ms)
		}
		if e.Finish != "" {
			return ttft, perToken, nil
		}
	}
}

// firstLent is where the lent memory begins. Nothing was in use when it was lent,
// so it is one run of units.
func (w *worker) firstLent() int64 {
	first := w.lent[0].Unit
	for _, u := range w.lent {
		first = min(first, u.Unit)
	}
	return int64(first) * w.unitBytes
}

// contiguous verifies that the lent units are one run.
func (w *worker) contiguous() error {
	first := uint32(w.firstLent() / w.unitBytes)
	for _, u := range w.lent {
		if u.Unit >= first+uint32(len(w.lent)) {
			return fmt.Errorf("interference: unit %d is lent, apart from the %d from unit %d on", u.Unit, len(w.lent), first)
		}
	}
	return nil
}

func (w *worker) close() {
	w.cancel()
	<-w.ended
	w.arena.Close()
}
