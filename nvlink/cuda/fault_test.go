//go:build cuda && cgo

package cuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

// TestErrorsNameDeviceCallAndHint: what people need to act.
func TestErrorsNameDeviceCallAndHint(t *testing.T) {
	needFake(t)
	t.Setenv("KVLEND_FAKE_MEMORY", "10000000")
	f := newTestFabric(t, Config{})
	_, err := f.NewArena("big", "gpu1", 1<<30)
	var e *Error
	if !errors.As(err, &e) || e.Device != "gpu1" || e.Call != "cuMemCreate" || e.Name != "CUDA_ERROR_OUT_OF_MEMORY" || e.Code != 2 {
		t.Fatalf("%+v", err)
	}
	for _, want := range []string{`"big"`, "gpu1: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", "nvidia-smi"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	t.Setenv("KVLEND_FAKE_DEVICES", "0")
	if _, err := New(Config{Library: os.Getenv(libraryEnv)}); !errors.As(err, &e) || e.Call != "cuInit" || !strings.Contains(err.Error(), "CUDA_VISIBLE_DEVICES") {
		t.Errorf("without a GPU: %v", err)
	}
}

// TestLostContext: an error on the device reaches the event after it and all
// later ones, and nobody waits for ever.
func TestLostContext(t *testing.T) {
	needFake(t)
	for _, what := range []string{"async.kvlend_copy", "async.copy", "async.kvlend_hash", "async.set"} {
		t.Run(what, func(t *testing.T) {
			t.Setenv("KVLEND_FAKE_FAIL", what+":1:700")
			var told []error
			f, err := New(Config{
				Library: os.Getenv(libraryEnv), Crossover: 4 << 10, Memory: IPC,
				Lost: func(err error) { told = append(told, err) },
			})
			must(t, err)
			t.Setenv("KVLEND_FAKE_FAIL", "")
			defer func() {
				var e *Error
				if len(told) != 1 || !errors.As(told[0], &e) || !e.Lost {
					t.Errorf("told %v, want one error of a lost context", told)
				}
			}()
			a := brokenArena(t, f, what)
			if a == nil {
				return
			}
			s, err := f.Stream("gpu0", "s")
			must(t, err)
			must(t, s.CopyBatch([]nvlink.Copy{piece(a, 0, a, 1<<16, 100)}))
			must(t, s.CopyBatch([]nvlink.Copy{piece(a, 0, a, 1<<16, 1<<15)}))
			must(t, s.HashBatch([]nvlink.Span{span(a, 0, 1000)}, []uint64{1}, make([]uint64, 1)))
			for i := range 2 {
				var e *Error
				if err := wait(s); !errors.As(err, &e) || e.Device != "gpu0" || e.Name != "CUDA_ERROR_ILLEGAL_ADDRESS" || !strings.Contains(err.Error(), `stream "s"`) {
					t.Errorf("event %d: %v", i, err)
				}
				must(t, s.CopyBatch([]nvlink.Copy{piece(a, 0, a, 100, 100)}))
			}
			// The call still runs: it may have to tell somebody.
			ran := false
			must(t, s.Call(func() error { ran = true; return nil }))
			if err := s.Close(); err == nil || !ran {
				t.Errorf("close: %v; the call ran: %v", err, ran)
			}
			// What is given back now ends with the process: the first error says it all.
			must(t, errors.Join(f.Close(), a.Close()))
		})
	}
}

// brokenArena makes the arena of TestLostContext. Wiping is what fails for "set".
func brokenArena(t *testing.T, f *Fabric, what string) *Arena {
	a, err := f.NewArena("a", "gpu0", 1<<20)
	if what != "async.set" {
		must(t, err)
		return a
	}
	if err == nil || !strings.Contains(err.Error(), "ILLEGAL_ADDRESS") {
		t.Errorf("an arena that could not be wiped: %v", err)
	}
	f.Close()
	return nil
}

// calls are the driver's functions that the scenario uses.
var calls = []string{
	"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid", "cuDeviceTotalMem", "cuDeviceGetAttribute",
	"cuDeviceCanAccessPeer", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuCtxSetCurrent", "cuCtxEnablePeerAccess",
	"cuModuleLoadDataEx", "cuModuleUnload", "cuModuleGetFunction", "cuLaunchKernel", "cuMemAlloc", "cuMemFree", "cuMemHostAlloc",
	"cuMemFreeHost", "cuMemHostGetDevicePointer", "cuMemcpyAsync", "cuMemcpyBatchAsync", "cuMemsetD8Async", "cuMemcpyHtoD", "cuMemcpyDtoH",
	"cuStreamCreate", "cuStreamDestroy", "cuStreamWaitEvent", "cuStreamSynchronize", "cuEventCreate", "cuEventDestroy", "cuEventRecord",
	"cuEventQuery", "cuEventSynchronize", "cuEventElapsedTime", "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemRelease",
	"cuMemAddressReserve", "cuMemAddressFree", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemExportToShareableHandle",
	"cuMemImportFromShareableHandle", "cuIpcGetMemHandle",
}

// TestAnyCallMayFail: each call of the driver fails once, early and later. Either
// an error says so, or the bytes are right; nothing hangs, and memory is given
// back unless giving it back is what failed.
func TestAnyCallMayFail(t *testing.T) {
	needFake(t)
	if testing.Short() {
		t.Skip("skipped: hundreds of fabrics, and -short")
	}
	for noPeer, nths := range map[string][]int{"": {1, 2, 5, 15}, "0-1": {1, 4}} {
		t.Setenv("KVLEND_FAKE_NO_PEER", noPeer)
		for _, call := range calls {
			for _, nth := range nths {
				name := fmt.Sprintf("%s %d%s", call, nth, noPeer)
				t.Setenv("KVLEND_FAKE_FAIL", fmt.Sprintf("%s:%d:1", call, nth))
				over := make(chan error, 1)
				go func() { over <- scenario() }()
				select {
				case err := <-over:
					if errors.Is(err, errWrongBytes) {
						t.Errorf("%s: %v", name, err)
					}
				case <-time.After(30 * time.Second):
					t.Fatalf("%s: hangs", name)
				}
			}
		}
	}
	// Nothing was left behind that would matter now.
	t.Setenv("KVLEND_FAKE_FAIL", "")
	must(t, scenario())
}

var errWrongBytes = errors.New("bytes are wrong although nothing failed")

// scenario does a bit of everything.
func scenario() (err error) {
	f, err := New(Config{Library: os.Getenv(libraryEnv), Crossover: 4 << 10, Staging: 8 << 10, Spin: -1})
	if err != nil {
		return err
	}
	var arenas []*Arena
	defer func() {
		err = errors.Join(err, f.Close())
		for _, a := range arenas {
			if e := a.Close(); errors.Is(e, nvlink.ErrBusy) {
				err = fmt.Errorf("%w: an arena is still held after all streams were closed", errWrongBytes)
			} else {
				err = errors.Join(err, e)
			}
		}
	}()
	want := noise(1<<16, 1)
	for i, dev := range []string{"gpu0", "gpu1"} {
		f.cfg.Memory = []MemoryKind{VMM, IPC}[i]
		a, err := f.NewArena("a", dev, 1<<16)
		if err != nil {
			return err
		}
		arenas = append(arenas, a)
		if _, err := a.WriteAt(want, 0); err != nil {
			return err
		}
		_, file, err := a.Export()
		if err != nil {
			return err
		}
		if file != nil {
			file.Close()
		}
	}
	return transfer(f, arenas[0], arenas[1], want)
}

// transfer wipes a, fills it from b out of order, and hashes it.
func transfer(f *Fabric, a, b *Arena, want []byte) error {
	s, err := f.Stream("gpu0", "s")
	if err != nil {
		return err
	}
	other, err := f.Stream("gpu1", "other")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var errs []error
	keep := func(err error) { errs = append(errs, err) }
	keep(s.WipeBatch([]nvlink.Span{span(a, 0, 1<<16)}))
	wiped, err := s.Record()
	keep(err)
	keep(other.WaitEvent(wiped))
	var pieces []nvlink.Copy
	for _, off := range []int64{3 << 14, 1 << 14, 2 << 14} {
		pieces = append(pieces, piece(a, off, b, off, 1<<14))
	}
	for off := int64(1<<14) - 512; off >= 0; off -= 512 {
		pieces = append(pieces, piece(a, off, b, off, 512))
	}
	keep(other.CopyBatch(pieces))
	copied, err := other.Record()
	keep(err)
	keep(s.WaitEvent(copied))
	sums := make([]uint64, 2)
	keep(s.HashBatch([]nvlink.Span{span(a, 0, 1<<16), span(b, 0, 1<<16)}, []uint64{1, 1}, sums))
	keep(s.Call(func() error { return nil }))
	hashed, err := s.Record()
	keep(err)
	for _, e := range []nvlink.Event{wiped, copied, hashed} {
		keep(e.Wait(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := a.ReadAt(got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, want) || sums[0] != sums[1] {
		return errWrongBytes
	}
	return nil
}
