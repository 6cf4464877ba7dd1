package device

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// judgeErrno says what a result of a read or write of bytes means: as many
// bytes as res says, or the errno -res.
func judgeErrno(o *op, res int32) verdict {
	if res > 0 || res == 0 && o.sync != nil {
		return verdict{n: int(res)}
	}
	if res == 0 {
		return verdict{err: fmt.Errorf("%w: it ends before offset %d", ErrGone, o.off)}
	}
	errno := unix.Errno(-res)
	if errno == unix.EINTR || errno == unix.EAGAIN {
		return verdict{again: true, err: wrap(ErrIO, errno)}
	}
	return verdict{err: typed(errno)}
}

// typed wraps err, the system's, with what it means for a device.
func typed(err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err
	}
	switch errno {
	case unix.ECANCELED:
		return wrap(ErrCancelled, err)
	case unix.ENXIO, unix.ENODEV, unix.ENOENT, unix.ESHUTDOWN, unix.ESTALE, unix.ENOTCONN:
		return wrap(ErrGone, err)
	case unix.EROFS, unix.EBADF, unix.EPERM, unix.EACCES:
		return wrap(ErrReadOnly, err)
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
		return wrap(ErrFull, err)
	case unix.EBUSY, unix.EWOULDBLOCK:
		return wrap(ErrInUse, err)
	}
	return wrap(ErrIO, err)
}

func wrap(kind, err error) error { return fmt.Errorf("%w: %w", kind, err) }
