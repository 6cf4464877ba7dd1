//go:build cuda && cgo

package nvml

import (
	"context"
	"fmt"
	"runtime/debug"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/kvlend/kvlend/nvlink/topology"
)

// Built reports whether this binary can ask.
const Built = true

// Read asks the library. What single GPUs do not answer is missing or stands in
// their Fault; the error says that nothing could be asked, and wraps one of this
// package's where the cause is known.
//
// A driver can hang for good, and a call into it cannot be taken back: Read
// returns when ctx ends, and its goroutine stays behind until the driver
// answers.
func Read(ctx context.Context) (*topology.Inventory, error) { return readFrom(ctx, lib.New()) }

type answer struct {
	inv *topology.Inventory
	err error
}

func readFrom(ctx context.Context, l lib.Interface) (*topology.Inventory, error) {
	done := make(chan answer, 1)
	go func() {
		var a answer
		defer func() {
			if p := recover(); p != nil {
				a = answer{err: fmt.Errorf("NVML: asking panicked: %v\n%s", p, debug.Stack())}
			}
			done <- a
		}()
		a.inv, a.err = read(l)
	}()
	select {
	case a := <-done:
		return a.inv, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("NVML: the driver does not answer: %w", ctx.Err())
	}
}

// read loads the library and asks. After a failed Init any other call would
// kill the process: its functions are not there.
func read(l lib.Interface) (*topology.Inventory, error) {
	if r := l.Init(); r != lib.SUCCESS {
		return nil, initError(r)
	}
	defer l.Shutdown()
	s := &session{lib: l, inv: &topology.Inventory{}, known: map[string]bool{}}
	if err := s.system(); err != nil {
		return nil, err
	}
	for i := range s.devices {
		s.inv.GPUs[i] = s.gpu(i)
	}
	s.inv.Pairs = topology.Connect(s.inv.GPUs, s.pair)
	return s.inv, nil
}

func initError(r lib.Return) error {
	cause := map[lib.Return]error{
		lib.ERROR_LIBRARY_NOT_FOUND: ErrNoLibrary, lib.ERROR_DRIVER_NOT_LOADED: ErrNoDriver,
		lib.ERROR_LIB_RM_VERSION_MISMATCH: ErrMismatch, lib.ERROR_NO_PERMISSION: ErrPermission,
	}[r]
	if cause == nil {
		cause = failure(r)
	}
	return fmt.Errorf("NVML: %w", cause)
}

// failure is a return code as an error. The library's own texts need the
// library, which may be what is missing.
func failure(r lib.Return) error { return fmt.Errorf("%s", codeName(r)) }

func codeName(r lib.Return) string {
	names := map[lib.Return]string{
		lib.ERROR_UNINITIALIZED: "not initialized", lib.ERROR_INVALID_ARGUMENT: "invalid argument",
		lib.ERROR_NOT_SUPPORTED: "not supported", lib.ERROR_NO_PERMISSION: "no permission",
		lib.ERROR_NOT_FOUND: "not found", lib.ERROR_INSUFFICIENT_POWER: "its power cables are not attached",
		lib.ERROR_TIMEOUT: "timeout", lib.ERROR_IRQ_ISSUE: "the kernel found an issue with its interrupts",
		lib.ERROR_CORRUPTED_INFOROM: "its infoROM is corrupted", lib.ERROR_GPU_IS_LOST: "the GPU has fallen off the bus",
		lib.ERROR_RESET_REQUIRED: "the GPU needs a reset", lib.ERROR_OPERATING_SYSTEM: "the operating system refused",
		lib.ERROR_IN_USE: "the GPU is in use", lib.ERROR_MEMORY: "out of memory", lib.ERROR_NO_DATA: "no data",
		lib.ERROR_UNKNOWN: "unknown error",
	}
	if n, ok := names[r]; ok {
		return n
	}
	return fmt.Sprintf("NVML error %d", int(r))
}

// session asks an initialized library.
type session struct {
	lib     lib.Interface
	inv     *topology.Inventory
	devices []lib.Device // nil where there is no handle; as long as inv.GPUs
	known   map[string]bool
}

// has reports whether the library has a function: older ones lack some, and
// calling what is missing kills the process.
func (s *session) has(symbol string) bool {
	ok, asked := s.known[symbol]
	if !asked {
		ok = s.lib.Extensions().LookupSymbol(symbol) == nil
		s.known[symbol] = ok
		if !ok {
			s.inv.Gaps = append(s.inv.Gaps, symbol+": this driver's library does not have it")
		}
	}
	return ok
}

func (s *session) system() error {
	if v, r := s.lib.SystemGetDriverVersion(); r == lib.SUCCESS {
		s.inv.Driver = v
	}
	if v, r := s.lib.SystemGetNVMLVersion(); r == lib.SUCCESS {
		s.inv.NVML = v
	}
	if v, r := s.lib.SystemGetCudaDriverVersion(); r == lib.SUCCESS {
		s.inv.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	n, r := s.lib.DeviceGetCount()
	if r != lib.SUCCESS {
		return fmt.Errorf("NVML: count the GPUs: %w", failure(r))
	}
	s.devices = make([]lib.Device, n)
	s.inv.GPUs = make([]topology.GPU, n)
	return nil
}

// pair asks what the driver allows between two GPUs.
func (s *session) pair(from, to int) (p topology.P2P, path string) {
	a, b := s.devices[from], s.devices[to]
	if s.has("nvmlDeviceGetP2PStatus") {
		for _, q := range []struct {
			index lib.GpuP2PCapsIndex
			out   *string
		}{
			{lib.P2P_CAPS_INDEX_READ, &p.Read}, {lib.P2P_CAPS_INDEX_WRITE, &p.Write},
			{lib.P2P_CAPS_INDEX_NVLINK, &p.NVLink}, {lib.P2P_CAPS_INDEX_ATOMICS, &p.Atomics},
		} {
			if v, r := a.GetP2PStatus(b, q.index); r == lib.SUCCESS {
				*q.out = p2pStatus(v)
			}
		}
	}
	if s.has("nvmlDeviceGetTopologyCommonAncestor") {
		if level, r := a.GetTopologyCommonAncestor(b); r == lib.SUCCESS {
			path = pathName(level)
		}
	}
	return p, path
}

func p2pStatus(v lib.GpuP2PStatus) string {
	switch v {
	case lib.P2P_STATUS_OK:
		return topology.P2PYes
	case lib.P2P_STATUS_CHIPSET_NOT_SUPPORTED:
		return "the chipset does not support it"
	case lib.P2P_STATUS_GPU_NOT_SUPPORTED:
		return "the GPU does not support it"
	case lib.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED:
		return "the way over the host bridge does not support it"
	case lib.P2P_STATUS_DISABLED_BY_REGKEY:
		return "disabled in the driver's settings"
	case lib.P2P_STATUS_NOT_SUPPORTED:
		return "not supported"
	}
	return "" // the driver does not know
}

func pathName(l lib.GpuTopologyLevel) string {
	switch l {
	case lib.TOPOLOGY_INTERNAL:
		return "same board"
	case lib.TOPOLOGY_SINGLE:
		return "PIX"
	case lib.TOPOLOGY_MULTIPLE:
		return "PXB"
	case lib.TOPOLOGY_HOSTBRIDGE:
		return "PHB"
	case lib.TOPOLOGY_NODE:
		return "NODE"
	case lib.TOPOLOGY_SYSTEM:
		return "SYS"
	}
	return ""
}
