//go:build cuda && cgo

package cuda

// unsafe, in this file: pointers go to C and back. What C gets of Go's memory
// are arrays without pointers, used only during the call (cgo's rules); what Go
// gets are addresses of driver memory, which the garbage collector does not know
// and which stay valid until the driver is told to free them.

/*
#cgo CFLAGS: -I${SRCDIR}/../../.cache/cuda/include -I/usr/local/cuda/include
#cgo linux LDFLAGS: -ldl
#include <stdlib.h>
#include "driver.h"
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// driver is a table of the driver's functions. All methods are safe for
// concurrent use; those that take a context make it current for the call.
type driver struct {
	t       *C.kv_driver
	path    string
	version int // 12080 is CUDA 12.8
	count   int // of devices
	// lost is told of the first error after which a context is lost.
	lost     func(error)
	isLost   atomic.Bool
	lostOnce sync.Once
}

// run is one copy: the layout that the kernels read (kv_run).
type run struct{ dst, src, len uint64 }

// ranged is a range to hash or to wipe (kv_range).
type ranged struct{ at, len, seed uint64 }

// entryBytes is the size of both.
const entryBytes = 24

// list is memory for entries that a kernel reads.
type list struct {
	mem          []byte // pinned host memory
	hostDev, dev uint64 // its address for devices; as much device memory
}

// openDriver loads the library and initialises it.
func openDriver(path string) (*driver, error) {
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var why [512]C.char
	t := C.kv_open(cpath, &why[0], C.size_t(len(why)))
	if t == nil {
		return nil, &LoadError{Library: path, Reason: C.GoString(&why[0])}
	}
	d := &driver{t: t, path: path}
	var version, count C.int
	if err := d.fail("driver", C.kv_init(t, &version, &count)); err != nil {
		d.close()
		return nil, err
	}
	d.version, d.count = int(version), int(count)
	return d, nil
}

func (d *driver) close() { C.kv_close(d.t) }

func (d *driver) fake() bool    { return d.t.fake != 0 }
func (d *driver) batched() bool { return d.t.batched != 0 }

// fail makes an error of what a call on device dev answered, nil: it succeeded.
func (d *driver) fail(dev string, r C.kv_result) error {
	if r.code == 0 {
		return nil
	}
	var name, text *C.char
	C.kv_explain(d.t, r.code, &name, &text)
	e := newError(dev, C.GoString(r.call), int(r.code), C.GoString(name), C.GoString(text), int(r.at))
	if !e.Lost {
		return e
	}
	if d.isLost.Load() && givesBack(e.Call) {
		return nil // it ends with the process, and the first error said so
	}
	d.isLost.Store(true)
	d.lostOnce.Do(func() {
		if d.lost != nil {
			d.lost(e)
		}
	})
	return e
}

func (d *driver) device(ordinal int) (*device, error) {
	var dev C.int
	var name [128]C.char
	var uuid [16]C.uchar
	var memory C.uint64_t
	label := fmt.Sprintf("device %d", ordinal)
	if err := d.fail(label, C.kv_device(d.t, C.int(ordinal), &dev, &name[0], C.size_t(len(name)), &uuid[0], &memory)); err != nil {
		return nil, err
	}
	out := &device{ordinal: ordinal, handle: int(dev), model: C.GoString(&name[0]), memory: int64(memory)}
	for i, b := range uuid {
		out.uuid[i] = byte(b)
	}
	return out, nil
}

// The attributes that the fabric asks for.
const (
	attributeProcessors = C.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
	attributeUnified    = C.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
	attributeVMM        = C.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
	attributeFD         = C.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
)

func (d *driver) attribute(dev *device, attribute int) (int, error) {
	var v C.int
	err := d.fail(dev.name, C.kv_attribute(d.t, C.int(attribute), C.int(dev.handle), &v))
	return int(v), err
}

func (d *driver) canPeer(dev, peer *device) (bool, error) {
	var can C.int
	err := d.fail(dev.name, C.kv_can_peer(d.t, C.int(dev.handle), C.int(peer.handle), &can))
	return can != 0, err
}

func (d *driver) retain(dev *device) (ctx uint64, err error) {
	err = d.fail(dev.name, C.kv_ctx_retain(d.t, C.int(dev.handle), (*C.uint64_t)(&ctx)))
	return ctx, err
}

func (d *driver) release(dev *device) error {
	return d.fail(dev.name, C.kv_ctx_release(d.t, C.int(dev.handle)))
}

func (d *driver) enablePeer(dev, peer *device) error {
	return d.fail(dev.name, C.kv_peer(d.t, C.uint64_t(dev.ctx), C.uint64_t(peer.ctx)))
}

func (d *driver) load(dev *device, ptx string) error {
	text := C.CString(ptx)
	defer C.free(unsafe.Pointer(text))
	var log [4096]C.char
	r := C.kv_module(d.t, C.uint64_t(dev.ctx), text, &log[0], C.size_t(len(log)),
		(*C.uint64_t)(&dev.module), (*C.uint64_t)(&dev.copyFn), (*C.uint64_t)(&dev.hashFn))
	if err := d.fail(dev.name, r); err != nil {
		if said := C.GoString(&log[0]); said != "" {
			err = fmt.Errorf("%w\n%s", err, said)
		}
		return err
	}
	return nil
}

func (d *driver) unload(dev *device) error {
	return d.fail(dev.name, C.kv_unload(d.t, C.uint64_t(dev.ctx), C.uint64_t(dev.module)))
}

func (d *driver) alloc(dev *device, size int64) (at uint64, err error) {
	err = d.fail(dev.name, C.kv_alloc(d.t, C.uint64_t(dev.ctx), C.uint64_t(size), (*C.uint64_t)(&at)))
	return at, err
}

func (d *driver) free(dev *device, at uint64) error {
	return d.fail(dev.name, C.kv_free(d.t, C.uint64_t(dev.ctx), C.uint64_t(at)))
}

func (d *driver) hostAlloc(dev *device, size int64) (mem []byte, at uint64, err error) {
	var p unsafe.Pointer
	err = d.fail(dev.name, C.kv_host_alloc(d.t, C.uint64_t(dev.ctx), C.uint64_t(size), &p, (*C.uint64_t)(&at)))
	if err != nil {
		return nil, 0, err
	}
	return unsafe.Slice((*byte)(p), size), at, nil
}

func (d *driver) hostFree(dev *device, mem []byte) error {
	return d.fail(dev.name, C.kv_host_free(d.t, C.uint64_t(dev.ctx), unsafe.Pointer(&mem[0])))
}

func (d *driver) hostRegister(dev *device, mem []byte) (at uint64, err error) {
	err = d.fail(dev.name, C.kv_host_register(d.t, C.uint64_t(dev.ctx), unsafe.Pointer(&mem[0]), C.uint64_t(len(mem)), (*C.uint64_t)(&at)))
	return at, err
}

func (d *driver) hostUnregister(dev *device, mem []byte) error {
	return d.fail(dev.name, C.kv_host_unregister(d.t, C.uint64_t(dev.ctx), unsafe.Pointer(&mem[0])))
}

// read and write copy at once; p is any memory.
func (d *driver) read(dev *device, p []byte, at uint64) error {
	return d.fail(dev.name, C.kv_read(d.t, C.uint64_t(dev.ctx), unsafe.Pointer(&p[0]), C.uint64_t(at), C.uint64_t(len(p))))
}

func (d *driver) write(dev *device, at uint64, p []byte) error {
	return d.fail(dev.name, C.kv_write(d.t, C.uint64_t(dev.ctx), C.uint64_t(at), unsafe.Pointer(&p[0]), C.uint64_t(len(p))))
}

func (d *driver) ipcGet(dev *device, at uint64) (h [64]byte, err error) {
	err = d.fail(dev.name, C.kv_ipc_get(d.t, C.uint64_t(dev.ctx), C.uint64_t(at), (*C.uchar)(&h[0])))
	return h, err
}

func (d *driver) ipcOpen(dev *device, h [64]byte) (at uint64, err error) {
	err = d.fail(dev.name, C.kv_ipc_open(d.t, C.uint64_t(dev.ctx), (*C.uchar)(&h[0]), (*C.uint64_t)(&at)))
	return at, err
}

func (d *driver) ipcClose(dev *device, at uint64) error {
	return d.fail(dev.name, C.kv_ipc_close(d.t, C.uint64_t(dev.ctx), C.uint64_t(at)))
}

func (d *driver) granularity(dev *device) (n int64, err error) {
	err = d.fail(dev.name, C.kv_vmm_granularity(d.t, C.int(dev.handle), (*C.uint64_t)(unsafe.Pointer(&n))))
	return n, err
}

func (d *driver) vmmCreate(dev *device, size int64) (h uint64, err error) {
	err = d.fail(dev.name, C.kv_vmm_create(d.t, C.int(dev.handle), C.uint64_t(size), (*C.uint64_t)(&h)))
	return h, err
}

func (d *driver) vmmImport(dev *device, f *os.File) (h uint64, err error) {
	err = d.fail(dev.name, C.kv_vmm_import(d.t, C.int(f.Fd()), (*C.uint64_t)(&h)))
	runtime.KeepAlive(f)
	return h, err
}

func (d *driver) vmmExport(dev *device, h uint64, name string) (*os.File, error) {
	var fd C.int
	if err := d.fail(dev.name, C.kv_vmm_export(d.t, C.uint64_t(h), &fd)); err != nil {
		return nil, err
	}
	syscall.CloseOnExec(int(fd))
	return os.NewFile(uintptr(fd), "kvlend:"+name), nil
}

func (d *driver) vmmMap(dev *device, h uint64, size int64) (at uint64, err error) {
	err = d.fail(dev.name, C.kv_vmm_map(d.t, C.uint64_t(h), C.uint64_t(size), (*C.uint64_t)(&at)))
	return at, err
}

// vmmAccess lets a device use a mapping.
func (d *driver) vmmAccess(dev *device, at uint64, size int64) error {
	return d.fail(dev.name, C.kv_vmm_access(d.t, C.uint64_t(at), C.uint64_t(size), C.int(dev.handle)))
}

func (d *driver) vmmUnmap(dev *device, at uint64, size int64) error {
	return d.fail(dev.name, C.kv_vmm_unmap(d.t, C.uint64_t(at), C.uint64_t(size)))
}

func (d *driver) vmmRelease(dev *device, h uint64) error {
	return d.fail(dev.name, C.kv_vmm_release(d.t, C.uint64_t(h)))
}

func (d *driver) newStream(dev *device) (s uint64, err error) {
	err = d.fail(dev.name, C.kv_stream(d.t, C.uint64_t(dev.ctx), (*C.uint64_t)(&s)))
	return s, err
}

func (d *driver) destroyStream(dev *device, s uint64) error {
	return d.fail(dev.name, C.kv_stream_destroy(d.t, C.uint64_t(dev.ctx), C.uint64_t(s)))
}

func (d *driver) newEvent(dev *device) (e uint64, err error) {
	err = d.fail(dev.name, C.kv_event(d.t, C.uint64_t(dev.ctx), (*C.uint64_t)(&e)))
	return e, err
}

func (d *driver) destroyEvent(dev *device, e uint64) error {
	return d.fail(dev.name, C.kv_event_destroy(d.t, C.uint64_t(e)))
}

func (d *driver) record(dev *device, e, stream uint64) error {
	return d.fail(dev.name, C.kv_record(d.t, C.uint64_t(dev.ctx), C.uint64_t(e), C.uint64_t(stream)))
}

func (d *driver) streamWait(dev *device, stream, e uint64) error {
	return d.fail(dev.name, C.kv_stream_wait(d.t, C.uint64_t(dev.ctx), C.uint64_t(stream), C.uint64_t(e)))
}

// sync blocks until the stream is idle.
func (d *driver) sync(dev *device, stream uint64) error {
	return d.fail(dev.name, C.kv_sync(d.t, C.uint64_t(dev.ctx), C.uint64_t(stream)))
}

// wait blocks until e has happened, asking in a loop for the first spin.
func (d *driver) wait(dev *device, e uint64, spin time.Duration) error {
	return d.fail(dev.name, C.kv_wait(d.t, C.uint64_t(dev.ctx), C.uint64_t(e), C.int64_t(spin)))
}

// elapsed is the time between two events that have happened.
func (d *driver) elapsed(dev *device, from, to uint64) (time.Duration, error) {
	var ms C.float
	err := d.fail(dev.name, C.kv_elapsed(d.t, C.uint64_t(dev.ctx), C.uint64_t(from), C.uint64_t(to), &ms))
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}

// engine gives each run to the copy engine.
func (d *driver) engine(dev *device, stream uint64, runs []run, batched bool) error {
	var b C.int
	if batched {
		b = 1
	}
	return d.fail(dev.name, C.kv_engine(d.t, C.uint64_t(dev.ctx), C.uint64_t(stream), (*C.kv_run)(unsafe.Pointer(&runs[0])), C.size_t(len(runs)), b))
}

func (l *list) c() C.kv_list {
	return C.kv_list{host: unsafe.Pointer(&l.mem[0]), host_dev: C.uint64_t(l.hostDev), dev: C.uint64_t(l.dev)}
}

// gather copies all runs with one kernel of that many thread blocks.
func (d *driver) gather(dev *device, stream uint64, l *list, runs []run, parts, partBytes int64, blocks int) error {
	if len(runs)*entryBytes > len(l.mem) {
		panic(fmt.Sprintf("BUG: list of %d bytes for %d runs", len(l.mem), len(runs)))
	}
	return d.fail(dev.name, C.kv_gather(d.t, C.uint64_t(dev.ctx), C.uint64_t(stream), C.uint64_t(dev.copyFn), l.c(),
		(*C.kv_run)(unsafe.Pointer(&runs[0])), C.size_t(len(runs)), C.uint64_t(parts), C.uint64_t(partBytes), C.uint(blocks), send(len(runs))))
}

// hash writes the checksum of each range to sums, a device address.
func (d *driver) hash(dev *device, stream uint64, l *list, ranges []ranged, sums uint64, blocks int) error {
	if len(ranges)*entryBytes > len(l.mem) {
		panic(fmt.Sprintf("BUG: list of %d bytes for %d ranges", len(l.mem), len(ranges)))
	}
	return d.fail(dev.name, C.kv_hash(d.t, C.uint64_t(dev.ctx), C.uint64_t(stream), C.uint64_t(dev.hashFn), l.c(),
		(*C.kv_range)(unsafe.Pointer(&ranges[0])), C.size_t(len(ranges)), C.uint64_t(sums), C.uint(blocks), send(len(ranges))))
}

// sendFrom is the number of entries from which a list is sent to the device
// before the kernel reads it: a copy engine reads host memory faster than
// threads do, but takes some microseconds to begin.
const sendFrom = 256

func send(n int) C.int {
	if n >= sendFrom {
		return 1
	}
	return 0
}

func (d *driver) wipe(dev *device, stream uint64, ranges []ranged) error {
	return d.fail(dev.name, C.kv_wipe(d.t, C.uint64_t(dev.ctx), C.uint64_t(stream), (*C.kv_range)(unsafe.Pointer(&ranges[0])), C.size_t(len(ranges))))
}

// words is the memory of a list as words: pinned memory is aligned to pages.
func (l *list) words() []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(&l.mem[0])), len(l.mem)/8)
}
