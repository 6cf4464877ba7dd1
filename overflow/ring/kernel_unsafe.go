package ring

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is the memory that is shared with the kernel.
//
// unsafe: the kernel says where in the mapping each word and table lies, and
// open checks that they lie inside it; the words are aligned (the kernel's
// atomics), the memory is not Go heap and is unmapped only by close. Entries of
// a table are found by index under its mask.
type mapping struct {
	rings, entries []byte

	sqHead, sqTail, sqFlags *atomic.Uint32
	sqEntries, sqMask       uint32
	sqeSize, cqeSize        uint32
	cqHead, cqTail          *atomic.Uint32
	cqMask                  uint32
	cqeOff                  uint32
}

func (m *mapping) open(fd int, p *params) error {
	m.sqeSize, m.cqeSize = uint32(unsafe.Sizeof(sqe{})), uint32(unsafe.Sizeof(cqe{}))
	if p.flags&setupSQE128 != 0 {
		m.sqeSize *= 2
	}
	if p.flags&setupCQE32 != 0 {
		m.cqeSize *= 2
	}
	size := max(p.sqOff.array+4*p.sqEntries, p.cqOff.cqes+p.cqEntries*m.cqeSize)
	var err error
	m.rings, err = unix.Mmap(fd, offSQRing, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map the ring: %w", err)
	}
	m.entries, err = unix.Mmap(fd, offSQEs, int(p.sqEntries*m.sqeSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map the ring's entries: %w", err)
	}
	m.sqHead, m.sqTail, m.sqFlags = m.word(p.sqOff.head), m.word(p.sqOff.tail), m.word(p.sqOff.flags)
	m.cqHead, m.cqTail = m.word(p.cqOff.head), m.word(p.cqOff.tail)
	m.sqEntries, m.cqeOff = p.sqEntries, p.cqOff.cqes
	m.sqMask = m.word(p.sqOff.ringMask).Load()
	m.cqMask = m.word(p.cqOff.ringMask).Load()
	if m.sqMask != p.sqEntries-1 || m.cqMask != p.cqEntries-1 {
		return fmt.Errorf("the ring's masks %#x and %#x do not fit %d and %d entries", m.sqMask, m.cqMask, p.sqEntries, p.cqEntries)
	}
	for i := range p.sqEntries {
		m.word(p.sqOff.array + 4*i).Store(i) // entry i always stands in place i
	}
	return nil
}

func (m *mapping) word(off uint32) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&m.rings[off : off+4][0]))
}

// entry is the i-th of the submission queue, cleared.
func (m *mapping) entry(i uint32) *sqe {
	at := (i & m.sqMask) * m.sqeSize
	b := m.entries[at : at+m.sqeSize]
	s := (*sqe)(unsafe.Pointer(&b[0]))
	*s = sqe{}
	return s
}

// command is where the command of the i-th entry stands, 80 bytes in a ring for
// passthrough.
func (m *mapping) command(i uint32) []byte {
	at := (i & m.sqMask) * m.sqeSize
	return m.entries[at+uint32(unsafe.Offsetof(sqe{}.tail)) : at+m.sqeSize]
}

func (m *mapping) completion(i uint32) Completion {
	at := m.cqeOff + (i&m.cqMask)*m.cqeSize
	c := (*cqe)(unsafe.Pointer(&m.rings[at : at+m.cqeSize][0]))
	return Completion{User: c.user, Res: c.res, Flags: c.flags}
}

func (m *mapping) close() error {
	var first error
	for _, b := range [][]byte{m.entries, m.rings} {
		if b == nil {
			continue
		}
		if err := unix.Munmap(b); err != nil && first == nil {
			first = fmt.Errorf("unmap the ring: %w", err)
		}
	}
	m.entries, m.rings = nil, nil
	return first
}

// addr is b's address, for the kernel.
//
// unsafe: whoever prepares an operation keeps b reachable until it completes,
// and Go does not move heap memory.
func addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// The system calls below pass pointers to memory that outlives the call: the
// conversions stand in the call's own arguments, as package unsafe demands.

func setup(entries uint32, p *params) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// enter passes r.arg (and r.ts when it is set): both lie in the Ring, on the heap.
func enter(r *Ring, n, wait, flags uint32) (int, error) {
	var arg unsafe.Pointer
	var size uintptr
	if flags&enterExtArg != 0 {
		if r.ts != (timespec{}) {
			r.arg.ts = uint64(uintptr(unsafe.Pointer(&r.ts)))
		}
		arg, size = unsafe.Pointer(&r.arg), unsafe.Sizeof(r.arg)
	}
	got, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(n), uintptr(wait), uintptr(flags), uintptr(arg), size)
	if errno != 0 {
		return 0, errno
	}
	return int(got), nil
}

func register(fd int, op uintptr, arg unsafe.Pointer, n int) error {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), op, uintptr(arg), uintptr(n), 0, 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}

func registerFiles(fd int, fds []int32) error {
	return register(fd, registerOpFiles, unsafe.Pointer(&fds[0]), len(fds))
}

func updateFile(fd, slot int, file int32) error {
	fds := new(int32)
	*fds = file
	u := &filesUpdate{offset: uint32(slot), fds: uint64(uintptr(unsafe.Pointer(fds)))}
	err := register(fd, registerOpFilesUpdate, unsafe.Pointer(u), 1)
	runtime.KeepAlive(fds)
	return err
}

func registerBuffers(fd int, regions [][]byte) error {
	v := make([]unix.Iovec, len(regions))
	for i, b := range regions {
		v[i].Base = unsafe.SliceData(b)
		v[i].SetLen(len(b))
	}
	if len(v) == 0 {
		return nil
	}
	return register(fd, registerOpBuffers, unsafe.Pointer(&v[0]), len(v))
}

func probeOps(fd int) (known [256]bool, err error) {
	t := new(probeTable)
	if err := register(fd, registerOpProbe, unsafe.Pointer(t), len(t.ops)); err != nil {
		return known, err
	}
	for i := range t.ops[:t.opsLen] {
		known[t.ops[i].op] = t.ops[i].flags&probeOpSupported != 0
	}
	return known, nil
}
