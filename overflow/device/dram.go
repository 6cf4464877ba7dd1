package device

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/overflow/ring"
)

// DRAMOptions configure OpenDRAM.
type DRAMOptions struct {
	Name string
	Size int64 // bytes, a multiple of Align
	// NUMANode the memory must lie on, counted from 1; 0: wherever the system puts it.
	NUMANode  int
	HugePages bool // where there are any
}

// Mapped is implemented by devices whose bytes are memory of this process, so
// that a fabric can pin it. The memory is valid until the device is closed, and
// belongs to the device: use it between I/Os that touch the same bytes.
type Mapped interface{ Bytes() []byte }

// Metered is implemented by devices that keep a Meter.
type Metered interface{ Meter() *Meter }

// dramStore is a store that is Mapped.
type dramStore struct {
	*store
	mem []byte
}

func (d dramStore) Bytes() []byte { return d.mem }

// OpenDRAM opens a device made of this process's memory. All its pages are
// there when OpenDRAM returns. Its content is zeros. The device is Mapped.
func OpenDRAM(e *Engine, o DRAMOptions) (Device, error) {
	switch {
	case o.Name == "":
		return nil, openError(o.Name, errors.New("no Name is given"))
	case o.Size < Align || o.Size%Align != 0:
		return nil, openError(o.Name, fmt.Errorf("option Size %d is not a positive multiple of %d", o.Size, Align))
	case o.NUMANode < 0 || o.NUMANode > 1024:
		return nil, openError(o.Name, fmt.Errorf("option NUMANode %d is not in 0..1024", o.NUMANode))
	}
	mem, whole, err := mapMemory(o.Size, o.HugePages)
	if err != nil {
		return nil, openError(o.Name, err)
	}
	m := &dramMedium{mem: mem, whole: whole, pool: e.loop.copies}
	if o.NUMANode > 0 {
		err = bindMemory(mem, o.NUMANode-1)
	}
	if err == nil {
		err = populate(mem)
	}
	var s *store
	if err == nil {
		info := Info{Name: o.Name, Kind: DRAM, Size: o.Size, MaxIO: 1 << 20}
		s, err = e.join(&store{e: e, medium: m, info: info, write: true, depth: 4 * e.opts.CopyThreads, meter: NewMeter()})
	} else {
		err = openError(o.Name, err)
	}
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return dramStore{s, mem}, nil
}

// populate makes all pages be there, so that none is missing later. A kernel
// before 5.14 cannot: touching them does the same, short of an error.
func populate(mem []byte) error {
	const step = 256 << 20
	for at := 0; at < len(mem); at += step {
		part := mem[at:min(at+step, len(mem))]
		err := unix.Madvise(part, unix.MADV_POPULATE_WRITE)
		if errors.Is(err, unix.EINVAL) {
			for i := 0; i < len(part); i += Align {
				part[i] = 0
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("populate %d bytes of memory: %w", len(mem), wrap(ErrFull, err))
		}
	}
	return nil
}

// dramMedium copies.
type dramMedium struct {
	mem, whole []byte
	pool       *pool
}

func (m *dramMedium) attach(*ring.Ring) error { return nil }
func (m *dramMedium) detach(*ring.Ring) error { return nil }
func (m *dramMedium) threads() *pool          { return m.pool }

func (m *dramMedium) prepare(*ring.Ring, uint64, *op) {
	panic("BUG: a copy in memory was given to the ring")
}

func (m *dramMedium) perform(o *op) int32 {
	at := m.mem[o.off : o.off+int64(len(o.buf))]
	if o.write {
		return int32(copy(at, o.buf))
	}
	return int32(copy(o.buf, at))
}

func (m *dramMedium) judge(o *op, res int32) verdict { return judgeErrno(o, res) }

func (m *dramMedium) close() error { return unix.Munmap(m.whole) }
