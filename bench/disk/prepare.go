package disk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"golang.org/x/sys/unix"
)

// prepare makes sure that path is a file of at least n bytes that were all
// really written: it reuses one without holes, and writes random bytes to a
// new one. A block device is taken as it is, if it is large enough.
func prepare(ctx context.Context, path string, n int64, progress func(string)) error {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return err
	case st.Mode()&os.ModeDevice != 0:
		return nil
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s is neither a file nor a block device", path)
	default:
		full, err := written(path, n)
		if err != nil || full {
			return err
		}
		return fmt.Errorf("%s has fewer than %d bytes that were really written: give another name or remove it", path, n)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := fill(ctx, f, n, progress); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), f.Close(), os.Remove(path))
	}
	return f.Close()
}

// written says whether the first n bytes of path have extents that were
// written. Preallocated ones count as holes for the kernel once their pages are
// not in memory, so what is dirty is synced first.
func written(path string, n int64) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return false, err
	}
	if err := forget(f); err != nil {
		return false, err
	}
	hole, err := f.Seek(0, unix.SEEK_HOLE)
	if errors.Is(err, unix.ENXIO) { // an empty file
		return n == 0, nil
	}
	return hole >= n, err
}

// fill writes n random bytes and makes them durable.
func fill(ctx context.Context, f *os.File, n int64, progress func(string)) error {
	buf := make([]byte, 1<<20)
	rng := rand.NewChaCha8([32]byte{1})
	for off := int64(0); off < n; off += int64(len(buf)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if off%(64<<20) == 0 {
			progress(fmt.Sprintf("writing %s, %d of %d MiB", f.Name(), off>>20, n>>20))
		}
		rng.Read(buf)
		if _, err := f.Write(buf[:min(int64(len(buf)), n-off)]); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return forget(f)
}

// forget drops a file's clean pages from the page cache.
func forget(f *os.File) error {
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop the cached pages of %s: %w", f.Name(), err)
	}
	return nil
}
