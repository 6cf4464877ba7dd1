package stream

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
)

// The states of a unit. Its Done and the watch race for the step from flying.
const (
	flying    = iota
	landed    // Done was called; the stream's goroutine settles it
	abandoned // the stream has given up; Done puts the buffer back
	gone      // was abandoned, and Done was called
)

// unit is one I/O.
type unit struct {
	io    device.IO
	state atomic.Int32
	b     *batch // not once it is abandoned: the batch goes on without it
	arena *Arena
	ext   extent
	buf   []byte // as Memory gave it
	own   bool   // buf is the stream's own buffer

	next *unit // in the list of those that are done, or have landed

	// Of the watch (see watch.go), under its lock; watched is of the
	// stream's goroutine.
	watched         bool
	older, newer    *unit
	sent            time.Time
	told, cancelled bool
	late            bool // it was given up
}

// done is the Done of all I/Os of the stream: it must not block.
func (s *Stream) done(io *device.IO) {
	u := io.Owner.(*unit)
	if !u.state.CompareAndSwap(flying, landed) {
		if !u.own {
			s.opt.Memory.Put(u.buf)
		}
		u.arena.Release()
		u.state.Store(gone)
		return
	}
	for {
		u.next = s.finished.Load()
		if s.finished.CompareAndSwap(u.next, u) {
			break
		}
	}
	s.wakeUp()
}

// take gives an unused unit.
func (s *Stream) take() *unit {
	if n := len(s.units); n > 0 {
		u := s.units[n-1]
		s.units = s.units[:n-1]
		return u
	}
	u := &unit{}
	u.io.Done = s.done
	u.io.Owner = u
	return u
}

// keepUnits bounds what a stream keeps for reuse.
const keepUnits = 1 << 12

// recycle takes back a unit that nobody else knows any more.
func (s *Stream) recycle(u *unit) {
	s.free(u)
	u.b, u.arena, u.next, u.io.Buf, u.io.Err = nil, nil, nil, nil, nil
	u.watched, u.told, u.cancelled, u.late = false, false, false, false
	if len(s.units) < keepUnits {
		s.units = append(s.units, u)
	}
}

// room gives a unit of group g for extent e a buffer; false: there is none now.
func (s *Stream) room(u *unit, e extent) bool {
	u.buf, u.own = nil, false
	if s.held+int64(e.n) <= s.opt.Staging {
		u.buf = s.opt.Memory.TryGet(e.n)
	}
	if u.buf == nil {
		if s.held > 0 {
			return false // one of ours will come back
		}
		if s.own == nil {
			s.own = aligned(s.opt.MaxRead)
		}
		u.buf, u.own, s.own = s.own, true, nil
		s.stats.ownBuffer.Add(1)
	}
	s.held += int64(e.n)
	u.ext = e
	u.io.Buf = u.buf[:e.n]
	return true
}

// free gives the unit's buffer back.
func (s *Stream) free(u *unit) {
	if u.buf == nil {
		return
	}
	s.held -= int64(u.ext.n)
	if u.own {
		s.own = u.buf
	} else {
		s.opt.Memory.Put(u.buf)
	}
	u.buf = nil
}

// scatter copies what was read to where it belongs.
func (u *unit) scatter() (err error) {
	defer recoverFault(&err)
	for i := u.ext.lo; i < u.ext.hi; i++ {
		sg := &u.b.segs[i]
		copy(sg.host, u.buf[sg.off-u.ext.off:])
	}
	return nil
}

// gather fills the buffer with what is to be written. Between the end of a
// piece and the end of its last block are zeros.
func (u *unit) gather() (err error) {
	defer recoverFault(&err)
	at := u.io.Buf
	for i := u.ext.lo; i < u.ext.hi; i++ {
		sg := &u.b.segs[i]
		from := sg.off - u.ext.off
		n := copy(at[from:], sg.host)
		clear(at[from+int64(n) : sg.end()-u.ext.off])
	}
	return nil
}

// recoverFault turns a memory fault into an error: a mapping whose memory is
// gone must not end the process. Other panics go on.
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

// deviceError is err as the failure of an extent.
func deviceError(a *Arena, write bool, e extent, err error) *device.Error {
	var de *device.Error
	if errors.As(err, &de) {
		return de
	}
	op := "read"
	if write {
		op = "write"
	}
	return &device.Error{Device: a.info.Name, Op: op, Off: e.off, Len: e.n, Err: err}
}
