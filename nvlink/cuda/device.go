//go:build cuda && cgo

package cuda

import (
	_ "embed" // the kernels
	"errors"
	"fmt"
	"runtime"
	"sync"
)

// kernels is what tools/cuda/kernels made of kernels/kernels.cu.
//
//go:embed kernels/kernels.ptx
var kernels string

// blocksPerProcessor is the thread blocks of 256 threads that a kernel has for
// each multiprocessor: with four 16-byte loads in flight for each thread, two
// are enough to fill a link, and leave room for the kernels of an engine.
const blocksPerProcessor = 2

// device is one GPU. Its goroutine runs from the first use to stop.
type device struct {
	m       *machine
	name    string
	index   int // in machine.devs
	ordinal int
	handle  int // CUdevice
	model   string
	uuid    [16]byte
	memory  int64
	blocks  int // of a kernel at most
	vmm     bool

	mu    sync.Mutex  // guards tasks' start and end
	tasks chan func() // nil: not started
	ended chan error

	// Set by the goroutine before start returns.
	ctx, module, copyFn, hashFn uint64

	try  sync.Once
	kind MemoryKind // of arenas for which nothing is said, after try

	measure   sync.Mutex // held while the crossover is measured
	crossover crossover
}

// ask finds out what the device can do.
func (d *device) ask() error {
	values := map[int]int{attributeProcessors: 0, attributeUnified: 0, attributeVMM: 0, attributeFD: 0}
	for a := range values {
		v, err := d.m.drv.attribute(d, a)
		if err != nil {
			return err
		}
		values[a] = v
	}
	if values[attributeUnified] == 0 {
		return fmt.Errorf("%s (%s) has no unified addressing, which the fabric needs", d.name, d.model)
	}
	d.blocks = max(values[attributeProcessors], 1) * blocksPerProcessor
	d.vmm = values[attributeVMM] != 0 && values[attributeFD] != 0
	return nil
}

// sharing is how memory of the device is shared where nobody says: as a file
// descriptor, if the driver makes one, and not only says that it can.
func (d *device) sharing() MemoryKind {
	d.try.Do(func() {
		d.kind = IPC
		if !d.vmm {
			return
		}
		if err := d.do(d.tryVMM); err != nil {
			d.m.notice(fmt.Sprintf("memory of %s is shared by CUDA IPC: the driver says that it can export file descriptors, and does not: %v", d.name, err))
			return
		}
		d.kind = VMM
	})
	return d.kind
}

// tryVMM makes, exports and frees one granule. It runs on the device's goroutine.
func (d *device) tryVMM() error {
	a := &Arena{m: d.m, name: "trial", dev: d, with: d, kind: VMM, size: 1}
	if err := a.allocate(); err != nil {
		return err
	}
	file, err := d.m.drv.vmmExport(d, a.handle, a.name)
	if err == nil {
		err = file.Close()
	}
	return errors.Join(err, a.freeVMM())
}

// start makes the context and loads the kernels, once.
func (d *device) start() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tasks != nil {
		return nil
	}
	tasks, started := make(chan func()), make(chan error)
	ended := make(chan error, 1)
	go func() {
		// The thread has the context: it ends with the goroutine.
		runtime.LockOSThread()
		err := d.begin()
		started <- err
		if err != nil {
			return
		}
		for f := range tasks {
			f()
		}
		ended <- d.end()
	}()
	if err := <-started; err != nil {
		return err
	}
	d.tasks, d.ended = tasks, ended
	return nil
}

func (d *device) begin() error {
	var err error
	if d.ctx, err = d.m.drv.retain(d); err != nil {
		return err
	}
	if err = d.m.drv.load(d, kernels); err != nil {
		return errors.Join(err, d.m.drv.release(d))
	}
	return nil
}

func (d *device) end() error {
	return errors.Join(d.m.drv.unload(d), d.m.drv.release(d))
}

// stop ends the goroutine and gives the context back. Nothing may use the
// device any more.
func (d *device) stop() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tasks == nil {
		return nil
	}
	close(d.tasks)
	d.tasks = nil
	return <-d.ended
}

// do runs f on the device's goroutine, starting it if need be.
func (d *device) do(f func() error) error {
	if err := d.start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	d.tasks <- func() { done <- f() }
	return <-done
}

// started reports whether the device has a context in this process.
func (d *device) started() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tasks != nil
}
