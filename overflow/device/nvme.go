package device

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/overflow/ring"
)

const (
	// nvmeMaxIO bounds one command: registered memory fails above 508 KiB, and
	// larger ones bring nothing.
	nvmeMaxIO = 256 << 10
	// nvmeResets is how often an operation that a reset ended is repeated before
	// the block device is used instead.
	nvmeResets = 3
)

// NVMeOptions configure OpenNVMe.
type NVMeOptions struct {
	Name string // default: Path
	Path string // the namespace's character device, /dev/ngXnY
	// Block is its block device, /dev/nvmeXnY: it keeps everybody else out, and
	// takes over when passthrough cannot be used. Empty: without.
	Block    string
	Size     int64 // bytes to use, a multiple of Align; 0: the namespace's
	ReadOnly bool
	Depth    int // most operations under way (128)
}

// OpenNVMe opens an NVMe namespace whose commands go past the block layer. It
// is ErrInUse when another process has it open by OpenNVMe, or has Block open
// exclusively or mounted. Where passthrough cannot be had, Block is opened and
// Info says so.
func OpenNVMe(ctx context.Context, e *Engine, o NVMeOptions) (Device, error) {
	if o.Name == "" {
		o.Name = o.Path
	}
	var block *fileMedium
	fo, err := Options{Name: o.Name, Path: o.Block, Size: o.Size, ReadOnly: o.ReadOnly, Depth: o.Depth}.withDefaults()
	if o.Block == "" {
		fo.Path = o.Path
		fo, err = fo.withDefaults()
	}
	if err != nil {
		return nil, openError(o.Name, err)
	}
	info := Info{}
	if o.Block != "" {
		if block, info, err = openFile(ctx, e, fo); err != nil {
			return nil, openError(o.Name, err)
		}
	}
	s := &store{e: e, write: !o.ReadOnly, depth: fo.Depth, meter: NewMeter()}
	m, ns, err := openReleased(ctx, e, o)
	switch {
	case err == nil:
		m.block, m.store = block, s
		s.medium, s.info = m, ns
	case block != nil:
		info.Degraded = note(fmt.Sprintf("no passthrough: %v", err), info.Degraded)
		s.medium, s.info = block, info
	default:
		return nil, openError(o.Name, err)
	}
	if s, err = e.join(s); err != nil {
		return nil, errors.Join(err, closeMedium(m, block))
	}
	return s, nil
}

const (
	// releaseTime is how long a kernel may keep a namespace of a process that has
	// just ended: Linux 6.1 takes about a second to let go of a ring.
	releaseTime = 3 * time.Second
	releasePoll = 100 * time.Millisecond
)

// openReleased opens a namespace, which its last user may just have left.
func openReleased(ctx context.Context, e *Engine, o NVMeOptions) (m *nvmeMedium, info Info, err error) {
	for end := time.Now().Add(releaseTime); ; {
		m, info, err = openNamespace(e, o)
		if !errors.Is(err, ErrInUse) || time.Now().After(end) {
			return m, info, err
		}
		select {
		case <-ctx.Done():
			return m, info, err
		case <-time.After(releasePoll): // nothing tells when it is free
		}
	}
}

func closeMedium(m *nvmeMedium, block *fileMedium) error {
	if m != nil {
		return m.close() // and its block device
	}
	return block.close()
}

// nvmeMedium is an open NVMe namespace.
type nvmeMedium struct {
	store  *store
	fd     int
	slot   int
	nsid   uint32
	shift  uint        // logarithm of the size of a logical block
	block  *fileMedium // nil: none
	fallen bool        // block has taken over; the loop's own
	// plain: registered memory is not used. Kernels such as Linux 6.1 refuse a
	// command where the region behind its buffer, and not only the buffer, has
	// more pieces than the controller takes. The loop's own.
	plain bool
}

func openNamespace(e *Engine, o NVMeOptions) (*nvmeMedium, Info, error) {
	info := Info{Name: o.Name, Path: o.Path, Kind: NVMe, Degraded: e.degraded}
	if e.loop.ring == nil {
		return nil, info, errors.New(e.degraded)
	}
	if !e.loop.ring.Features().Passthrough {
		return nil, info, errors.New("this kernel's io_uring has no passthrough")
	}
	flags := unix.O_RDWR
	if o.ReadOnly {
		flags = unix.O_RDONLY
	}
	fd, err := unix.Open(o.Path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, info, fmt.Errorf("%s: %w", o.Path, typed(err))
	}
	m := &nvmeMedium{fd: fd}
	if err := m.identify(&info, o.Size); err != nil {
		// Nothing was done with it: its closing cannot matter.
		_ = unix.Close(fd)
		return nil, info, fmt.Errorf("%s: %w", o.Path, err)
	}
	return m, info, nil
}

// identify locks the namespace and asks what it is.
func (m *nvmeMedium) identify(info *Info, want int64) error {
	if err := unix.Flock(m.fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return wrap(ErrInUse, err)
	}
	id, err := unix.IoctlRetInt(m.fd, nvmeIoctlID)
	if err != nil {
		return fmt.Errorf("it has no NVMe namespace: %w", err)
	}
	m.nsid = uint32(id)
	data := make([]byte, identifySize)
	if err := nvmeIdentify(m.fd, m.nsid, identifyNamespace, data); err != nil {
		return fmt.Errorf("identify namespace %d: %w", m.nsid, err)
	}
	size, shift, err := parseNamespace(data)
	if err != nil {
		return fmt.Errorf("namespace %d: %w", m.nsid, err)
	}
	if err := nvmeIdentify(m.fd, 0, identifyController, data); err != nil {
		return fmt.Errorf("identify the controller: %w", err)
	}
	m.shift, info.MaxIO = shift, parseMaxIO(data)
	info.Size = size - size%Align
	if want > info.Size {
		return fmt.Errorf("it holds %d bytes, %d are wanted", info.Size, want)
	}
	if want > 0 {
		info.Size = want
	}
	return nil
}

// Of the NVMe base specification 2.0, sections 5.17.2.1 and 5.17.2.2 (Identify)
// and of its command set for NVM, section 4.1.5.1.
const (
	nvmeIoctlID        = 0x4E40     // _IO('N', 0x40)
	nvmeIoctlAdmin     = 0xC0484E41 // _IOWR('N', 0x41, struct nvme_passthru_cmd)
	nvmeAdminIdentify  = 0x06
	identifySize       = 4096
	identifyNamespace  = 0
	identifyController = 1
)

// parseNamespace reads the answer to Identify Namespace: the size in bytes and
// the logarithm of the logical block's size.
func parseNamespace(b []byte) (size int64, shift uint, err error) {
	if len(b) < identifySize {
		return 0, 0, fmt.Errorf("an answer of %d bytes, not %d", len(b), identifySize)
	}
	blocks := binary.LittleEndian.Uint64(b)
	format := int(b[26]&0xf) | int(b[26]>>5&3)<<4
	f := b[128+4*format:]
	if ms := binary.LittleEndian.Uint16(f); ms != 0 {
		return 0, 0, fmt.Errorf("its format has %d bytes of metadata in each block: format it without", ms)
	}
	shift = uint(f[2])
	if shift < 9 || 1<<shift > Align {
		return 0, 0, fmt.Errorf("logical blocks of 2^%d bytes: 512 to %d can be used", shift, Align)
	}
	if blocks == 0 || blocks > 1<<62>>shift {
		return 0, 0, fmt.Errorf("%d logical blocks of %d bytes", blocks, 1<<shift)
	}
	return int64(blocks << shift), shift, nil
}

// parseMaxIO reads from the answer to Identify Controller how large a command
// may be, in bytes: what it says in pages of 4 KiB, at most nvmeMaxIO.
func parseMaxIO(b []byte) int64 {
	mdts := b[77]
	if mdts == 0 || mdts > 16 {
		return nvmeMaxIO
	}
	return min(nvmeMaxIO, int64(4096)<<mdts)
}

func (m *nvmeMedium) attach(r *ring.Ring) (err error) {
	if m.slot, err = r.AddFile(m.fd); err != nil || m.block == nil {
		return err
	}
	if err = m.block.attach(r); err != nil {
		return errors.Join(err, r.RemoveFile(m.slot))
	}
	return nil
}

func (m *nvmeMedium) detach(r *ring.Ring) error {
	err := r.RemoveFile(m.slot)
	if m.block != nil {
		err = errors.Join(err, m.block.detach(r))
	}
	return err
}

func (m *nvmeMedium) threads() *pool { return nil }

func (m *nvmeMedium) prepare(r *ring.Ring, user uint64, o *op) {
	if o.alt = m.fallen; o.alt {
		m.block.prepare(r, user, o)
		return
	}
	if o.sync != nil {
		r.NVMe(user, m.slot, ring.Flush(m.nsid), nil, ring.Unregistered)
		return
	}
	c := ring.Transfer(o.write, m.nsid, uint64(o.off)>>m.shift, len(o.buf)>>m.shift, 1<<m.shift)
	region := o.region
	if m.plain {
		region = ring.Unregistered
	}
	r.NVMe(user, m.slot, c, o.buf, region)
}

func (m *nvmeMedium) perform(*op) int32 {
	panic("BUG: an NVMe command was given to a thread")
}

// judge: the kernel repeats no passthrough command. After a reset of the
// controller all that was under way ends with EINTR.
func (m *nvmeMedium) judge(o *op, res int32) verdict {
	if o.alt {
		return m.block.judge(o, res)
	}
	switch errno := unix.Errno(-res); {
	case res == 0:
		return verdict{n: len(o.buf)}
	case res > 0:
		err := nvmeError(uint32(res))
		return verdict{again: uint32(res)&nvmeNoRetry == 0 && !errors.Is(err, ErrCancelled), err: err}
	case errno == unix.EINTR:
		if o.retries >= nvmeResets && m.block != nil && !m.fallen {
			m.fallen = true
			m.store.degrade("passthrough was interrupted again and again: the block device has taken over")
		}
		return verdict{again: true, err: wrap(ErrIO, errno)}
	case errno == unix.EINVAL && o.sync == nil && o.region != ring.Unregistered:
		m.plain = true
		return verdict{again: true, err: typed(errno)}
	case errno == unix.EAGAIN:
		return verdict{again: true, err: wrap(ErrIO, errno)}
	default:
		return verdict{err: typed(errno)}
	}
}

const nvmeNoRetry = 0x4000 // the status field's DNR

// nvmeError is the meaning of a status field (type and code) other than 0. Of
// the NVMe base specification 2.0, section 3.3.3.2.1.
func nvmeError(status uint32) error {
	kind := ErrIO
	switch status & 0x7ff {
	case 0x007, 0x008: // abort requested; submission queue deleted
		kind = ErrCancelled
	case 0x00b, 0x080, 0x082: // no such namespace; LBA out of range; not ready
		kind = ErrGone
	case 0x081: // capacity exceeded
		kind = ErrFull
	case 0x020, 0x182: // namespace write protected; write to a read-only range
		kind = ErrReadOnly
	}
	return fmt.Errorf("%w: NVMe status type %d, code %#x", kind, status>>8&7, status&0xff)
}

func (m *nvmeMedium) close() error {
	err := unix.Close(m.fd)
	if m.block != nil {
		err = errors.Join(err, m.block.close())
	}
	return err
}
