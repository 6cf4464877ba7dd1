// Package lending measures how long memory takes to change hands: a lender's
// and a borrower's agent over real ZeroMQ sockets and real shared memory, with
// the master's own cache as the borrower. Beside each operation, in the same
// run and interleaved, it measures a round trip of the session, because that
// is what an operation cannot be faster than.
//
// Two lenders lend the same number of units. A reclaim of units with cold
// blocks moves those blocks to the other lender, which has as many free ones;
// the next reclaim goes the other way.
package lending

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/kvlend/kvlend/configs"
)

// Options of a run. Zero values mean the defaults.
type Options struct {
	Held   []int         // units held of each lender; default 16, 256, 4096
	Units  int           // that change hands at a time; default 4
	Rounds int           // of each operation; default 300
	Step   time.Duration // computing time of a step; default 20ms
	// Fabric is what the arenas are on; default shm. With cuda all are on the
	// driver's first GPU, in this process.
	Fabric configs.Fabric
	// Progress is told what is being measured.
	Progress func(string)
}

// Validate checks o. Errors name the flag of kvlend bench lending, its value and
// what is accepted.
func (o Options) Validate() error { return o.setDefaults() }

func (o *Options) setDefaults() error {
	if o.Held == nil {
		o.Held = []int{16, 256, 4096}
	}
	if o.Units == 0 {
		o.Units = 4
	}
	if o.Rounds == 0 {
		o.Rounds = 300
	}
	if o.Step == 0 {
		o.Step = 20 * time.Millisecond
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Fabric.Kind == "" {
		o.Fabric.Kind = "shm"
	}
	switch {
	case o.Units < 1 || o.Units > 1<<15:
		return fmt.Errorf("lending: units is %d, want 1 to %d", o.Units, 1<<15)
	case o.Rounds < 10:
		return fmt.Errorf("lending: rounds is %d, want 10 or more", o.Rounds)
	case o.Step < time.Millisecond:
		return fmt.Errorf("lending: step is %v, want 1ms or more", o.Step)
	}
	for _, h := range o.Held {
		if h < 2*o.Units || h > 1<<16 {
			return fmt.Errorf("lending: held has %d, want %d (twice units) to %d", h, 2*o.Units, 1<<16)
		}
	}
	return nil
}

// Operations, in the order of the report.
const (
	roundTrip = "round trip"
	grant     = "grant"
	firstByte = "grant to first bytes"
	idle      = "reclaim, idle"
	cold      = "reclaim, cold blocks"
	inUse     = "reclaim, in use"
	afterStep = "  of it, after the step"
	stepTime  = "  the step itself"
)

var operations = []string{roundTrip, grant, firstByte, idle, cold, inUse, afterStep, stepTime}

// samples are the times of one number of units held.
type samples map[string]*hdrhistogram.Histogram

func (s samples) add(what string, d time.Duration) {
	h := s[what]
	if h == nil {
		h = hdrhistogram.New(1, int64(time.Minute), 3)
		s[what] = h
	}
	// In range: waits are bounded by opLimit, which is less than a minute.
	_ = h.RecordValue(max(int64(d), 1))
}

// Run measures.
func Run(ctx context.Context, opt Options) (*Result, error) {
	if err := opt.setDefaults(); err != nil {
		return nil, err
	}
	res := &Result{Units: opt.Units, Rounds: opt.Rounds, Fabric: opt.Fabric.Kind}
	for _, held := range opt.Held {
		s, err := measure(ctx, opt, held, res)
		if err != nil {
			return nil, fmt.Errorf("%d units held: %w", held, err)
		}
		res.add(held, s)
	}
	return res, nil
}

// measure measures everything with one number of units held.
func measure(ctx context.Context, opt Options, held int, res *Result) (s samples, err error) {
	dir, err := os.MkdirTemp("", "kvl") // sockets need short names
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	w, err := newWorld(ctx, dir, opt.Fabric, held, opt.Units)
	if w != nil {
		defer w.close()
	}
	if err != nil {
		return nil, err
	}
	res.Emulated = w.fab.Emulated()
	s = samples{}
	for _, part := range []struct {
		what string
		f    func(samples, Options) error
	}{
		{"idle units", w.idleUnits}, {"cold blocks", w.coldBlocks}, {"a running step", w.runningStep},
	} {
		opt.Progress(fmt.Sprintf("%d units held, %s", held, part.what))
		if err := part.f(s, opt); err != nil {
			return nil, fmt.Errorf("%s: %w", part.what, err)
		}
	}
	for _, err := range w.cache.Check() {
		return nil, err
	}
	return s, nil
}

// idleUnits measures grants, and reclaims of units without blocks.
func (w *world) idleUnits(s samples, opt Options) error {
	// In many small grants, as requests come: each is a lease of its own.
	for _, l := range w.lenders {
		for n := w.held; n > 0; n -= opt.Units {
			if _, err := w.borrow(l, min(n, opt.Units)); err != nil {
				return err
			}
		}
	}
	l := w.lenders[0]
	for range opt.Rounds {
		if err := w.trip(s); err != nil {
			return err
		}
		d, err := w.reclaim(l, opt.Units)
		if err != nil {
			return err
		}
		s.add(idle, d)
		if err := w.trip(s); err != nil {
			return err
		}
		d, unit, err := w.borrowed(l, opt.Units)
		if err != nil {
			return err
		}
		s.add(grant, d)
		start := time.Now()
		if err := w.read(l, unit); err != nil {
			return err
		}
		s.add(firstByte, d+time.Since(start))
	}
	return nil
}

// coldBlocks measures reclaims of units that are full of blocks.
func (w *world) coldBlocks(s samples, opt Options) error {
	if _, err := w.borrow(w.lenders[1], opt.Units); err != nil {
		return err
	}
	if err := w.fill(); err != nil {
		return err
	}
	before := w.cache.Stats().MovedBlocks["borrowed"]
	for i := range opt.Rounds {
		if err := w.trip(s); err != nil {
			return err
		}
		l := w.lenders[i%2]
		d, err := w.reclaim(l, opt.Units)
		if err != nil {
			return err
		}
		s.add(cold, d)
		if _, err := w.borrow(l, opt.Units); err != nil {
			return err
		}
	}
	want := uint64(opt.Rounds * opt.Units)
	if got := w.cache.Stats().MovedBlocks["borrowed"] - before; got != want {
		return fmt.Errorf("%d blocks were moved, want %d: the units were not full", got, want)
	}
	return nil
}

// runningStep measures reclaims that arrive while a step is running.
func (w *world) runningStep(s samples, opt Options) error {
	rounds := max(10, opt.Rounds/8)
	for i := range rounds {
		if err := w.trip(s); err != nil {
			return err
		}
		l := w.lenders[i%2]
		started, ended := make(chan struct{}), make(chan stepEnd, 1)
		go func() { ended <- w.step(opt.Step, started) }()
		<-started
		// At another place in the step each time.
		time.Sleep(opt.Step * time.Duration(i%7) / 8)
		d, err := w.reclaim(l, opt.Units)
		home := time.Now()
		end := <-ended
		if err == nil {
			err = end.err
		}
		if err != nil {
			return err
		}
		s.add(inUse, d)
		s.add(afterStep, home.Sub(end.at))
		s.add(stepTime, end.took)
		if _, err := w.borrow(l, opt.Units); err != nil {
			return err
		}
	}
	return nil
}
