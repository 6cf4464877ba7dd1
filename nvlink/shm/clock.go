package shm

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Clock tells and waits for time on behalf of paced links.
type Clock interface {
	Now() time.Time
	SleepUntil(t time.Time)
}

// TimerClock waits with Go timers alone: late by up to a millisecond, but
// it works inside testing/synctest.
type TimerClock struct{}

// Now is time.Now.
func (TimerClock) Now() time.Time { return time.Now() }

// SleepUntil is time.Sleep for what is left.
func (TimerClock) SleepUntil(t time.Time) { time.Sleep(time.Until(t)) }

// preciseClock is usually less than 5 us late and rarely burns a core. A Go
// timer is up to a millisecond late when the process is otherwise idle, so it
// serves only the part above 2 ms; nanosleep, late by the kernel's timer slack
// of 50 us, takes the wait to near its end; yielding to other goroutines does
// the rest. A wait shorter than yieldBelow is spent yielding.
type preciseClock struct{}

const (
	timerAbove  = 2 * time.Millisecond
	timerMargin = 1500 * time.Microsecond
	yieldBelow  = 75 * time.Microsecond
)

func (preciseClock) Now() time.Time { return time.Now() }

func (preciseClock) SleepUntil(t time.Time) {
	for {
		left := time.Until(t)
		switch {
		case left <= 0:
			return
		case left > timerAbove:
			time.Sleep(left - timerMargin)
		case left > yieldBelow:
			ts := unix.NsecToTimespec(int64(left - yieldBelow))
			// EINTR only makes the wait shorter; the loop measures again.
			_ = unix.Nanosleep(&ts, nil)
		default:
			runtime.Gosched()
		}
	}
}
