package ring

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Unregistered stands for the region of a buffer that lies in none.
const Unregistered = -1

// next is the next free entry of the submission queue.
func (r *Ring) next() *sqe {
	if r.Room() == 0 {
		panic("BUG: an operation was prepared without room for it")
	}
	s := r.m.entry(r.tail)
	r.tail++
	r.unclaimed++
	return s
}

// Read prepares a read of buf at off of a registered file. region is the index
// of the registered region that holds buf, or Unregistered. The caller keeps
// buf reachable and untouched until the operation completes.
func (r *Ring) Read(user uint64, slot int, off int64, buf []byte, region int) {
	r.transfer(opRead, opReadFixed, user, slot, off, buf, region)
}

// Write prepares a write, as Read does a read.
func (r *Ring) Write(user uint64, slot int, off int64, buf []byte, region int) {
	r.transfer(opWrite, opWriteFixed, user, slot, off, buf, region)
}

func (r *Ring) transfer(op, fixed uint8, user uint64, slot int, off int64, buf []byte, region int) {
	s := r.next()
	s.opcode, s.flags, s.fd = op, sqeFixedFile, int32(slot)
	s.off, s.addr, s.len, s.user = uint64(off), addr(buf), uint32(len(buf)), user
	if region != Unregistered {
		s.opcode, s.bufIndex = fixed, uint16(region)
	}
}

// Sync prepares an fdatasync of a registered file. Operations in flight are not
// waited for.
func (r *Ring) Sync(user uint64, slot int) {
	s := r.next()
	s.opcode, s.flags, s.fd, s.opFlags, s.user = opFsync, sqeFixedFile, int32(slot), fsyncDatasync, user
}

// Cancel prepares the end of the operation target. It completes itself (0, or
// ENOENT when there was nothing to end, EALREADY when it could not be ended),
// and so does the target, with ECANCELED if it was ended.
func (r *Ring) Cancel(user, target uint64) {
	s := r.next()
	s.opcode, s.fd, s.addr, s.user = opAsyncCancel, -1, target, user
}

// AwaitWake prepares an operation that completes whenever Wake is called, until
// a completion without More: then it must be prepared anew.
func (r *Ring) AwaitWake(user uint64) {
	s := r.next()
	s.opcode, s.fd, s.len, s.opFlags, s.user = opPollAdd, int32(r.wakeFD), pollAddMulti, unix.POLLIN, user
}

// NVMe prepares a command to the namespace whose character device is registered
// in slot. buf is the data (nil: none), as for Read; it need not be aligned
// more than the controller asks for.
func (r *Ring) NVMe(user uint64, slot int, c Command, buf []byte, region int) {
	if !r.features.Passthrough {
		panic("BUG: a ring without passthrough was given an NVMe command")
	}
	if uint32(len(buf)) != c.DataLen {
		panic(fmt.Sprintf("BUG: an NVMe command for %d bytes with a buffer of %d", c.DataLen, len(buf)))
	}
	at := r.tail
	s := r.next()
	s.opcode, s.flags, s.fd, s.user = opUringCmd, sqeFixedFile, int32(slot), user
	s.off = nvmeURingCmdIO // cmd_op: the low half of off
	if region != Unregistered {
		s.opFlags, s.bufIndex = uringCmdFixed, uint16(region)
	}
	c.Addr = addr(buf)
	cmd := r.m.command(at)
	c.Encode(cmd)
	clear(cmd[CommandSize:])
}
