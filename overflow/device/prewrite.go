package device

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// fillStep is how much one write of prewriting takes.
	fillStep = 4 << 20
	// Blank is how many bytes at the beginning of a prewritten file are zeros,
	// so that a store sees that nothing was ever kept there. The rest is noise:
	// disks and hypervisors may recognise zeros and not write them.
	Blank = 1 << 20
)

// noise is what prewriting writes.
type noise struct{ buf, whole []byte }

func newNoise() (*noise, error) {
	mem, whole, err := mapMemory(fillStep, false)
	if err != nil {
		return nil, err
	}
	rnd := rand.NewChaCha8([32]byte{1})
	for i := 0; i < len(mem); i += 8 {
		binary.LittleEndian.PutUint64(mem[i:], rnd.Uint64())
	}
	return &noise{buf: mem, whole: whole}, nil
}

// at is n bytes of noise for offset off: no two pages are equal, so that no
// layer below finds duplicates.
func (z *noise) at(off int64, n int) []byte {
	b := z.buf[:n]
	for i := 0; i < n; i += Align {
		binary.LittleEndian.PutUint64(b[i:], uint64(off)+uint64(i))
	}
	return b
}

func (z *noise) close() error { return unix.Munmap(z.whole) }

// fill makes a file size bytes long (0: as long as it is) of which every byte
// was written. The file only ever grows by what is written: after a crash it is
// too short, and fill goes on where it stopped.
func fill(ctx context.Context, fd int, size int64, progress func(done, total int64)) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	if err := fillHoles(ctx, fd, st.Size); err != nil {
		return err
	}
	if size <= st.Size {
		return nil
	}
	// Blocks side by side, without making the file longer yet. Where the
	// filesystem cannot, writing allocates them.
	err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		// Give back what was allocated before the space ended.
		return errors.Join(fmt.Errorf("preallocate %d bytes: %w", size, typed(err)), unix.Ftruncate(fd, st.Size))
	}
	from := st.Size
	if rest := from % Align; rest != 0 {
		if err := writeAll(fd, make([]byte, Align-rest), from); err != nil {
			return fmt.Errorf("prewrite at %d: %w", from, typed(err))
		}
		from += Align - rest
	}
	return prewrite(ctx, fd, from, size, progress)
}

// prewrite writes noise (and what is Blank) from one offset to another, and
// makes it durable.
func prewrite(ctx context.Context, fd int, from, to int64, progress func(done, total int64)) error {
	z, err := newNoise()
	if err != nil {
		return err
	}
	defer z.close()
	for off := from; off < to; {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := z.at(off, int(min(to-off, fillStep)))
		if off < Blank {
			b = make([]byte, min(to, Blank)-off)
		}
		if err := writeAll(fd, b, off); err != nil {
			return fmt.Errorf("prewrite at %d: %w", off, typed(err))
		}
		off += int64(len(b))
		if progress != nil {
			progress(off, to)
		}
		// Otherwise the page cache fills with what nobody will read from it.
		if off%(64<<20) == 0 {
			if err := settle(fd); err != nil {
				return err
			}
		}
	}
	return settle(fd)
}

// Prewrite overwrites n bytes at off of a device with noise (all of it, also
// the beginning) and makes that durable, so that reads of them are real. It is
// what Create does for a file, for a block device or an NVMe namespace.
func Prewrite(ctx context.Context, d Device, off, n int64, progress func(done, total int64)) error {
	if i := d.Info(); off < 0 || n < 0 || off%Align != 0 || n%Align != 0 || n > i.Size-off {
		return openError(i.Name, fmt.Errorf("prewrite: %d bytes at %d are %w its %d bytes", n, off, ErrUnaligned, i.Size))
	}
	z, err := newNoise()
	if err != nil {
		return err
	}
	defer z.close()
	done := make(chan struct{}, 1)
	for at := int64(0); at < n; {
		if err := ctx.Err(); err != nil {
			return err
		}
		io := &IO{Write: true, Off: off + at, Buf: z.at(off+at, int(min(n-at, fillStep))), Done: func(*IO) { done <- struct{}{} }}
		if err := d.Submit([]*IO{io}); err != nil {
			return err
		}
		if <-done; io.Err != nil {
			return io.Err
		}
		at += int64(len(io.Buf))
		if progress != nil {
			progress(at, n)
		}
	}
	return d.Sync(ctx)
}

// settle makes what was written durable and drops it from the page cache.
func settle(fd int) error {
	if err := unix.Fsync(fd); err != nil {
		return fmt.Errorf("sync what was prewritten: %w", typed(err))
	}
	// Advice only.
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
	return nil
}

func writeAll(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, off)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// fillHoles writes the zeros that a file's unwritten parts read as.
func fillHoles(ctx context.Context, fd int, size int64) error {
	zeros := make([]byte, fillStep)
	wrote := false
	err := holes(fd, 0, size, func(from, to int64) error {
		for off := from; off < to; off += fillStep {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := writeAll(fd, zeros[:min(to-off, fillStep)], off); err != nil {
				return fmt.Errorf("fill the hole at %d: %w", off, typed(err))
			}
			wrote = true
		}
		return nil
	})
	if err != nil || !wrote {
		return err
	}
	return settle(fd)
}

// unwritten is how many of a file's bytes in a range were never written.
func unwritten(fd int, from, to int64) (n int64, err error) {
	err = holes(fd, from, to, func(from, to int64) error {
		n += to - from
		return nil
	})
	return n, err
}

// holes calls f for every part of a file's range that was never written;
// extents that were preallocated only are such parts.
func holes(fd int, off, end int64, f func(from, to int64) error) error {
	for off < end {
		from, err := unix.Seek(fd, off, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("look for holes: %w", err)
		}
		if from >= end {
			return nil
		}
		to, err := unix.Seek(fd, from, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			to, err = end, nil // a hole to the end
		}
		if err != nil {
			return fmt.Errorf("look for data: %w", err)
		}
		if err := f(from, min(to, end)); err != nil {
			return err
		}
		off = to
	}
	return nil
}

// syncDir makes a new file's name durable.
func syncDir(path string) error {
	fd, err := unix.Open(filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the directory of %s: %w", path, err)
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); err != nil {
		return fmt.Errorf("sync the directory of %s: %w", path, err)
	}
	return nil
}
