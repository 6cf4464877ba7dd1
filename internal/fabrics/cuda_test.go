//go:build cuda && cgo

package fabrics

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/nvlink/cuda/fakedriver"
)

// driver is the fake driver's library, or that of KVLEND_TEST_LIBCUDA.
func driver(t *testing.T) string {
	t.Helper()
	if lib := os.Getenv("KVLEND_TEST_LIBCUDA"); lib != "" {
		return lib
	}
	lib, err := fakedriver.Build(t.TempDir())
	if errors.Is(err, fakedriver.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

func TestDeviceMemory(t *testing.T) {
	cfg := server(t, "kind: cuda, driver: "+driver(t), "")
	cfg.Devices[1].GPU = "0" // both on one GPU
	o, f := crossing(t, cfg)
	if !strings.HasPrefix(o.Handle, "vmm:") || o.File == nil || o.Bytes() != nil {
		t.Errorf("handle %q, file %v", o.Handle, o.File)
	}
	if !f.Emulated() && os.Getenv("KVLEND_TEST_LIBCUDA") == "" {
		t.Error("the fake driver passes for a real one")
	}
	for want, err := range map[string]error{
		"want 64000": func() error { _, err := f.Open(o.Handle, handDown(t, o), "w", "gpu1", 64000); return err }(),
		"kind":       func() error { _, err := f.Open("", handDown(t, o), "w", "gpu1", 64<<10); return err }(),
		"host":       func() error { _, err := f.NewStream("host", "s"); return err }(),
		"none":       func() error { _, err := f.Create("a", "none", 1); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

// TestWithoutVMM: where the driver cannot export a descriptor, the handle is
// enough. Opening it takes another process, which kvlend bench chaos has.
func TestWithoutVMM(t *testing.T) {
	if os.Getenv("KVLEND_TEST_LIBCUDA") != "" {
		t.Skip("a real driver has what it has")
	}
	t.Setenv("KVLEND_FAKE_NO_VMM", "1")
	f := open(t, Options{Config: server(t, "kind: cuda, driver: "+driver(t), "")})
	o, err := f.Create("w", "gpu1", 4096)
	if err != nil {
		t.Fatal(err)
	}
	closeArena(t, o)
	if !strings.HasPrefix(o.Handle, "ipc:") || o.File != nil {
		t.Errorf("handle %q, file %v", o.Handle, o.File)
	}
}

func TestGPUsOfDevices(t *testing.T) {
	lib := driver(t)
	for name, c := range map[string]struct {
		name, gpu, want string
	}{
		"no such index": {"gpu1", "7", "no GPU 7"},
		"no such UUID":  {"gpu1", "GPU-ffffffff-ffff", "devices[1]"},
		"no number":     {"x", "", "which GPU it is"},
	} {
		cfg := server(t, "kind: cuda, driver: "+lib, "")
		cfg.Devices[1].Name, cfg.Devices[1].GPU = c.name, c.gpu
		cfg.Models[1].Device = c.name
		if _, err := Open(Options{Config: cfg}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
	cfg := server(t, "kind: cuda, driver: /nowhere/libcuda.so.1", "")
	if _, err := Open(Options{Config: cfg}); err == nil || !strings.Contains(err.Error(), "/nowhere/libcuda.so.1") {
		t.Errorf("no driver: %v", err)
	}
}

// TestArenaIsWhereItShouldBe: the processes must agree on what a device is.
func TestArenaIsWhereItShouldBe(t *testing.T) {
	lib := driver(t)
	cfg := server(t, "kind: cuda, driver: "+lib, "")
	f := open(t, Options{Config: cfg})
	if f.(*gpus).names["gpu0"] == f.(*gpus).names["gpu1"] {
		t.Fatal("two GPUs are one")
	}
	o, err := f.Create("w", "gpu1", 4096)
	if err != nil {
		t.Fatal(err)
	}
	closeArena(t, o)
	if _, err := f.Open(o.Handle, handDown(t, o), "w", "gpu0", 4096); err == nil || !strings.Contains(err.Error(), "device gpu0") {
		t.Errorf("an arena of gpu1 as one of gpu0: %v", err)
	}
}
