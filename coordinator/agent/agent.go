// Package agent runs the lending protocol's pure machines over real links and
// the real clock. An agent has one goroutine; what links, timers and the owner
// say is queued and handled there in order, so that neither a link's callback
// nor the owner, which may hold its own lock, ever waits for the other.
package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Now is the protocol's clock: CLOCK_BOOTTIME, which goes on while the machine
// sleeps and is the same in all processes.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("BUG: CLOCK_BOOTTIME: %v", err)) // there since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}

// Logger receives what an operator should see. hclog.Logger satisfies it.
type Logger interface {
	Debug(msg string, args ...any)
	Info(msg string, args ...any)
	Warn(msg string, args ...any)
}

// loop runs functions on one goroutine, in the order in which they were posted.
type loop struct {
	mu    sync.Mutex
	queue []func()
	wake  chan struct{} // capacity 1

	cancel context.CancelFunc
	done   chan struct{}
}

// start begins to run. After every round next says when tick is due.
func (l *loop) start(next func() (time.Duration, bool), tick func()) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel, l.wake, l.done = cancel, make(chan struct{}, 1), make(chan struct{})
	go l.run(ctx, next, tick)
}

func (l *loop) stop() {
	l.cancel()
	<-l.done
}

// post queues f. It never blocks.
func (l *loop) post(f func()) {
	l.mu.Lock()
	l.queue = append(l.queue, f)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// wait waits until a posted function has closed done, or never will.
func (l *loop) wait(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-l.done:
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func (l *loop) run(ctx context.Context, next func() (time.Duration, bool), tick func()) {
	defer close(l.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var due <-chan time.Time
		if at, ok := next(); ok {
			timer.Reset(max(at-Now(), 0))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-due:
			tick()
		case <-l.wake:
			l.mu.Lock()
			batch := l.queue
			l.queue = nil
			l.mu.Unlock()
			for _, f := range batch {
				f()
			}
		}
	}
}
