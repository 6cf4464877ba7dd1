// Package coordinator is the lending protocol: who may use which elastic unit,
// and how that changes. The state machines (Lender, Borrower) are pure: they
// take messages, local calls and the time, and return actions, so that a
// simulator can drive them. Package wire defines the messages, package
// transport moves frames (ZeroMQ, or an in-memory simulator), package session
// makes a link out of frames: ordered, acknowledged, with heartbeats and
// redial. KV bytes never travel here.
//
// # Who decides
//
// The worker's Lender owns the truth. It keeps, per borrower, a version that
// rises with every change of the borrower's units, and every message that
// carries a change carries the version after it. A Borrower applies a change
// only when its version is the next; anything else is a gap, and it asks for a
// Sync, the whole view. So its replica is never newer than its owner.
//
// # Repeating
//
// The session delivers exactly once while both processes live, but the
// machines do not rely on it: every request has a number and is repeated until
// it is answered. The Lender remembers its answers to Borrow; a Return or
// Released is harmless when repeated, because units are named with the epoch of
// their grant. Numbers of a Borrower only rise, so that a Borrow that is older
// than all remembered answers is known to be old.
//
// # Time
//
// A lease lasts, for the Lender, from the moment it handled the Borrow or
// Renew, and for the Borrower from the moment it first sent it: the Borrower
// always stops first. Times are durations on a monotonic clock
// (CLOCK_BOOTTIME), each machine on its own.
//
// # Taking back
//
// The Lender asks for a number of units by a deadline; the borrower's owner
// chooses which. Past the deadline, and when a lease ends or a borrower's
// process is replaced, the Lender fences: the epoch rises, and the unit stays
// out of use until it is certain that the borrower no longer writes to it.
// That is so when the process that had it returns the unit under the old
// epoch, or when ConfirmFence is called because that process has ended. A
// borrower that never heard of the grant returns the unit as well: once its
// replica shows the fence, the grant can no longer take effect.
//
// # Sharing
//
// A wish that is denied, or met in part, counts as long as the borrower repeats
// it. While wishes wait, units are divided: max-min fair by weight, nobody more
// than it has and wants, nor more than its quota. Whoever waits and has less
// than its share is helped by a Reclaim to those that have more; what is free,
// or comes home, is kept for those that are entitled to it, the longest waiting
// first. Nobody at its share or below is asked, so nothing goes to and fro.
//
// Shares alone can leave two borrowers with a half each, and neither able to go
// on (hold and wait). A borrower that says so (Borrow.Min) and that its share
// cannot help gets, after a time, a turn: all that it needs, at anybody's cost,
// and the time to use it. Turns that follow each other double in length, so
// that work of any length is done in one of them at last. A wish that its share
// cannot meet is otherwise no reason to take anything from anybody.
//
// All of this is soft: a Lender that restarts has forgotten it and hears it
// again. The worker's own need goes first always.
package coordinator

import (
	"errors"
	"iter"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

// Units is what a Lender needs of the worker's book; *elastic.Units has it.
// Every method takes constant time and changes nothing when it fails, so that
// Grant is reserve and commit in one.
type Units interface {
	Total() int
	Grantable() int
	CountOf(owner uint32, s elastic.State) int
	UnitsOf(owner uint32, s elastic.State) iter.Seq[elastic.UnitEpoch]
	Unit(unit int) (elastic.UnitRow, error)
	Grant(owner uint32, least, want int, expiry time.Duration) ([]elastic.UnitEpoch, error)
	Return(owner uint32, e elastic.UnitEpoch) error
	MarkReclaim(owner uint32, e elastic.UnitEpoch) error
	UnmarkReclaim(owner uint32, e elastic.UnitEpoch) error
	Renew(owner uint32, e elastic.UnitEpoch, expiry time.Duration) error
	Fence(owner uint32, e elastic.UnitEpoch) (uint64, error)
	Unfence(owner uint32, e elastic.UnitEpoch) error
}

// Wish is what a borrower asks for.
type Wish struct {
	Units int // more of them
	// Least: with fewer than this the owner cannot go on, so it gets none or so
	// many; 0 says that it can, and that any number is of use.
	Least int
	// Keep: the units are for blocks that nobody uses at the moment. The lender
	// gives only what it has no use for itself, and asks nothing back for them.
	Keep bool
}

// Action is something that a machine wants done. Actions are done in order.
type Action interface{ action() }

// Send is a message for the other side: of a Lender for the borrower To, of a
// Borrower (To is 0) for its lender.
type Send struct {
	To      uint32
	Message wire.Message
}

// Fence (of a Lender) says that units were taken from a borrower that may
// still be writing to them. A live borrower that hears of it returns the units
// itself. Whoever can make sure that nobody writes (the supervisor) calls
// ConfirmFence with the ID: when no process that was this borrower before the
// current one runs any more and, if Live, the current one was ended too.
type Fence struct {
	Owner  uint32
	ID     uint64
	Units  []wire.UnitEpoch // under the borrower's epochs
	Live   bool             // the borrower's current process may be writing
	Reason string
}

// Granted (of a Borrower) gives the owner units to use.
type Granted struct{ Units []wire.UnitEpoch }

// Denied (of a Borrower) ends a Want: nothing is to be had before RetryAfter.
type Denied struct {
	Reason     string
	Available  int // units that the lender could spare
	RetryAfter time.Duration
}

// Evacuate (of a Borrower) asks the owner to Release N units of its choice,
// beyond those it was asked for before, by a time after which they will be
// taken. When it cannot, it calls CannotRelease.
type Evacuate struct {
	Reclaim  uint64
	N        int
	Deadline time.Duration
}

// Lost (of a Borrower) says that units must not be used any more. The owner
// calls Release once nothing of its own still writes to them: only then can
// their lender use them.
type Lost struct {
	Units  []wire.UnitEpoch
	Reason string
}

func (Send) action()     {}
func (Fence) action()    {}
func (Granted) action()  {}
func (Denied) action()   {}
func (Evacuate) action() {}
func (Lost) action()     {}

// Errors of the machines.
var (
	// ErrNotHeld: the unit is not one that the borrower holds.
	ErrNotHeld = errors.New("unit not held")
	// ErrUnexpected: the message is not for this side of the protocol.
	ErrUnexpected = errors.New("unexpected message")
)

// never is a time that does not come.
const never = time.Duration(1<<63 - 1)
