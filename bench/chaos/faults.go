package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/internal/harness"
	"github.com/kvlend/kvlend/internal/supervisor"
)

// Kinds of faults.
const (
	kill      = "kill"           // SIGKILL
	stopShort = "stop"           // SIGSTOP for less than a lease
	stopLong  = "stop > lease"   // longer than lease and deadline together
	cutLinks  = "cut"            // some connections to other processes and to clients
	cutAll    = "cut supervisor" // all, and that to the supervisor, which ends the process
)

var kinds = []string{kill, stopShort, stopLong, cutLinks, cutAll}

// victims are the processes that faults hit.
var victims = []string{"atlas", "birch", "cedar", supervisor.GatewayName}

// fault is one thing that is done to one process.
type fault struct {
	kind, victim string
	pause        time.Duration // before the next
	length       time.Duration // of a stop
}

// next draws a fault.
func next(rng *rand.Rand) fault {
	f := fault{
		victim: victims[rng.IntN(len(victims))],
		pause:  time.Duration(150+rng.IntN(1150)) * time.Millisecond,
	}
	switch n := rng.IntN(20); {
	case n < 7:
		f.kind = kill
	case n < 11:
		f.kind = stopShort
		f.length = time.Duration(10+rng.Int64N(int64(lease/time.Millisecond)-200)) * time.Millisecond
	case n < 14:
		f.kind = stopLong
		f.length = lease + deadline + time.Duration(rng.Int64N(3000))*time.Millisecond
	case n < 18:
		f.kind = cutLinks
	default:
		f.kind = cutAll
	}
	return f
}

// faults carries out a schedule.
type faults struct {
	run *run
	rng *rand.Rand
	// uncuttable is why connections cannot be cut on this machine.
	uncuttable sync.Once
}

// inflict does damage until ctx ends, and leaves nobody stopped.
func (f *faults) inflict(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for pause(ctx, 100*time.Millisecond) {
		one := next(f.rng)
		pick := rand.New(rand.NewPCG(f.rng.Uint64(), 0))
		wg.Go(func() { f.do(ctx, one, pick) })
		if !pause(ctx, one.pause) {
			return
		}
	}
}

func (f *faults) do(ctx context.Context, one fault, pick *rand.Rand) {
	sys, w := f.run.sys, f.run.watch
	p, err := sys.Find(one.victim)
	if err != nil {
		w.missed() // it is just being started again
		return
	}
	hit := w.begin(one.victim, one.kind, p.PID)
	switch one.kind {
	case kill:
		err = sys.Signal(p, unix.SIGKILL)
	case stopShort, stopLong:
		if err = sys.Signal(p, unix.SIGSTOP); err == nil {
			pause(ctx, one.length)
			sys.Signal(p, unix.SIGCONT) // it may have been killed meanwhile
		}
	case cutLinks:
		err = f.cut(p, false, func() bool { return pick.IntN(3) > 0 })
	case cutAll:
		err = f.cut(p, true, nil)
	}
	if err != nil {
		w.missed()
	}
	hit.end(one.kind, err == nil)
}

// cut reports, once, when the machine does not let connections be cut.
func (f *faults) cut(p harness.Process, control bool, pick func() bool) error {
	_, err := f.run.sys.Cut(p, control, pick)
	if err != nil && f.run.sys.Alive(p) {
		f.uncuttable.Do(func() { f.run.watch.note(fmt.Sprintf("connections cannot be cut: %v", err)) })
	}
	return err
}
