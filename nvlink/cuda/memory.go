//go:build cuda && cgo

package cuda

import (
	"errors"
	"fmt"
	"os"
)

// What happens to an arena's memory. All of it runs on the goroutine of the
// device arena.with, whose context is current there.

// ipcBlock is what the driver cuts small allocations from. An IPC handle shows
// the whole block, so arenas take whole ones.
const ipcBlock = 2 << 20

// allocate makes the memory of a new arena.
func (a *Arena) allocate() (err error) {
	drv := a.m.drv
	if a.kind == IPC {
		a.at, err = drv.alloc(a.dev, (a.size+ipcBlock-1)/ipcBlock*ipcBlock)
		return err
	}
	if err = a.granules(); err != nil {
		return err
	}
	if a.handle, err = drv.vmmCreate(a.dev, a.mapped); err != nil {
		return err
	}
	return a.mapVMM()
}

// granules rounds the size up to what VMM memory is allocated in.
func (a *Arena) granules() error {
	n, err := a.m.drv.granularity(a.dev)
	if err != nil {
		return err
	}
	if n <= 0 || n > maxSize {
		return fmt.Errorf("%s: VMM memory comes in granules of %d bytes; want 1 to %d", a.dev.name, n, int64(maxSize))
	}
	a.mapped = (a.size + n - 1) / n * n
	return nil
}

// mapVMM maps a.handle and gives it back on error. Every device that can reaches
// the mapping; at least one must.
func (a *Arena) mapVMM() (err error) {
	drv := a.m.drv
	if a.at, err = drv.vmmMap(a.dev, a.handle, a.mapped); err != nil {
		return errors.Join(err, drv.vmmRelease(a.dev, a.handle))
	}
	a.mapper = make([]bool, len(a.m.devs))
	var reasons []error
	for _, d := range a.m.devs {
		if !a.m.peer(d, a.dev) {
			continue
		}
		if err := drv.vmmAccess(d, a.at, a.mapped); err != nil {
			reasons = append(reasons, err)
			if d != a.dev {
				a.m.unreachable(d, a.dev, err)
			}
			continue
		}
		a.mapper[d.index] = true
	}
	if !a.mapper[a.dev.index] {
		return errors.Join(append(reasons, a.freeVMM())...)
	}
	return nil
}

func (a *Arena) openVMM(file *os.File) (err error) {
	if err = a.granules(); err != nil {
		return err
	}
	if a.handle, err = a.m.drv.vmmImport(a.dev, file); err != nil {
		return err
	}
	return a.mapVMM()
}

// openIPC opens a handle, or shares what this process has opened of it.
func (a *Arena) openIPC() error {
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	o := a.m.ipc[a.ipc]
	if o == nil {
		at, err := a.m.drv.ipcOpen(a.dev, a.ipc)
		if err != nil {
			return err
		}
		o = &opened{at: at}
		a.m.ipc[a.ipc] = o
	}
	o.refs++
	a.at = o.at
	return nil
}

func (a *Arena) closeIPC() error {
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	o := a.m.ipc[a.ipc]
	if o.refs--; o.refs > 0 {
		return nil
	}
	delete(a.m.ipc, a.ipc)
	return a.m.drv.ipcClose(a.dev, o.at)
}

func (a *Arena) freeVMM() error {
	return errors.Join(a.m.drv.vmmUnmap(a.dev, a.at, a.mapped), a.m.drv.vmmRelease(a.dev, a.handle))
}

// free gives back what the arena has.
func (a *Arena) free() error {
	drv := a.m.drv
	switch {
	case a.kind == VMM:
		return a.freeVMM()
	case a.kind == IPC && a.own:
		return drv.free(a.dev, a.at)
	case a.kind == IPC:
		return a.closeIPC()
	case a.kind == Pinned:
		return drv.hostFree(a.with, a.mem)
	}
	return drv.hostUnregister(a.with, a.mem)
}

// wipe zeroes a new arena: what a GPU hands out may be what others left.
func (a *Arena) wipe() error {
	return a.dev.do(func() (err error) {
		ln, err := newLane(a.dev)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, ln.close()) }()
		if err := a.m.drv.wipe(a.dev, ln.stream, []ranged{{at: a.at, len: uint64(a.size)}}); err != nil {
			return err
		}
		return a.m.drv.sync(a.dev, ln.stream)
	})
}
