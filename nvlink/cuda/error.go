//go:build cuda && cgo

package cuda

import (
	"fmt"
	"strings"
)

// Error is what the driver answered to a call.
type Error struct {
	Device string // as the fabric names it
	Call   string // "cuMemAlloc"
	Code   int    // CUresult
	Name   string // "CUDA_ERROR_OUT_OF_MEMORY"
	Text   string // the driver's own words
	Entry  int    // of a list of copies, -1: none in particular
	Hint   string // what to do, may be empty
	// Lost: the context is lost. Every later call of this process on the device
	// fails, whatever it is.
	Lost bool
}

func newError(dev, call string, code int, name, text string, entry int) *Error {
	if name == "" {
		name = "an error that this driver does not name"
	}
	hint := hints[name]
	if name == "CUDA_ERROR_OUT_OF_MEMORY" && strings.HasPrefix(call, "cuMemHost") {
		hint = "it is memory of the host that is to be pinned: free, the cgroup's limit, models[].host.bytes"
	}
	return &Error{Device: dev, Call: call, Code: code, Name: name, Text: text, Entry: entry, Hint: hint, Lost: sticky[name]}
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: %s (%d)", e.Device, e.Call, e.Name, e.Code)
	if e.Entry >= 0 {
		fmt.Fprintf(&b, " at run %d", e.Entry)
	}
	if e.Text != "" {
		fmt.Fprintf(&b, ": %s", e.Text)
	}
	if e.Hint != "" {
		fmt.Fprintf(&b, "; %s", e.Hint)
	}
	return b.String()
}

// sticky are the errors after which a context answers nothing else.
var sticky = map[string]bool{
	"CUDA_ERROR_ILLEGAL_ADDRESS": true, "CUDA_ERROR_LAUNCH_TIMEOUT": true, "CUDA_ERROR_CONTEXT_IS_DESTROYED": true,
	"CUDA_ERROR_ASSERT": true, "CUDA_ERROR_HARDWARE_STACK_ERROR": true, "CUDA_ERROR_ILLEGAL_INSTRUCTION": true,
	"CUDA_ERROR_MISALIGNED_ADDRESS": true, "CUDA_ERROR_INVALID_ADDRESS_SPACE": true, "CUDA_ERROR_INVALID_PC": true,
	"CUDA_ERROR_LAUNCH_FAILED": true, "CUDA_ERROR_CONTAINED": true, "CUDA_ERROR_ECC_UNCORRECTABLE": true,
	"CUDA_ERROR_NVLINK_UNCORRECTABLE": true, "CUDA_ERROR_MPS_CLIENT_TERMINATED": true,
}

// givesBack reports whether a call only gives something back.
func givesBack(call string) bool {
	for _, part := range []string{"Free", "Destroy", "Unload", "Unmap", "Release", "Unregister", "IpcClose"} {
		if strings.Contains(call, part) {
			return true
		}
	}
	return false
}

// hints says what people can do, by the name of the error.
var hints = map[string]string{
	"CUDA_ERROR_OUT_OF_MEMORY":                  "see with nvidia-smi who holds the memory, or make the arenas smaller",
	"CUDA_ERROR_NO_DEVICE":                      "the driver sees no GPU: look at CUDA_VISIBLE_DEVICES and at the container's device settings",
	"CUDA_ERROR_INVALID_DEVICE":                 "the device number is beyond what CUDA_VISIBLE_DEVICES leaves visible",
	"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH":         "libcuda and the kernel module are of different versions: reboot, or reinstall the driver",
	"CUDA_ERROR_SYSTEM_NOT_READY":               "on machines with NVSwitch the fabric manager must run: systemctl status nvidia-fabricmanager",
	"CUDA_ERROR_UNSUPPORTED_PTX_VERSION":        "the driver is older than the kernels: CUDA 12.1 (driver 530) is the oldest",
	"CUDA_ERROR_JIT_COMPILER_NOT_FOUND":         "libnvidia-ptxjitcompiler.so.1, a part of the driver, is missing from the container",
	"CUDA_ERROR_NO_BINARY_FOR_GPU":              "the GPU is older than Volta (compute capability 7.0)",
	"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED":        "nvidia-smi topo -p2p rw shows which pairs reach each other",
	"CUDA_ERROR_TOO_MANY_PEERS":                 "a GPU without NVSwitch reaches eight peers at most",
	"CUDA_ERROR_ALREADY_MAPPED":                 "this process, or another library in it, has opened the same IPC handle",
	"CUDA_ERROR_INVALID_HANDLE":                 "the process that owns the memory has ended, or runs in another IPC or PID namespace",
	"CUDA_ERROR_MAP_FAILED":                     "the process that owns the memory has ended, or runs in another container",
	"CUDA_ERROR_ILLEGAL_ADDRESS":                "the context is lost and the process must be started again; compute-sanitizer shows the access",
	"CUDA_ERROR_ECC_UNCORRECTABLE":              "the GPU's memory is damaged: nvidia-smi -q -d ECC; the process must be started again",
	"CUDA_ERROR_NVLINK_UNCORRECTABLE":           "a link is damaged: nvidia-smi nvlink -e; the process must be started again",
	"CUDA_ERROR_LAUNCH_FAILED":                  "the context is lost and the process must be started again; dmesg shows the Xid",
	"CUDA_ERROR_DEVICES_UNAVAILABLE":            "another process has the GPU in exclusive mode: nvidia-smi -q -d COMPUTE",
	"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED":     "BUG in the fabric: the memory was not pinned",
	"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "a forward-compatible libcuda works on data-centre GPUs only: remove it from LD_LIBRARY_PATH",
}

// LoadError says why there is no driver.
type LoadError struct {
	Library string
	Reason  string
}

func (e *LoadError) Error() string {
	return fmt.Sprintf("CUDA driver %s: %s; is the NVIDIA driver installed, and visible in this container?", e.Library, e.Reason)
}
