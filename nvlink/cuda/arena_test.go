//go:build cuda && cgo

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
)

func TestHandleText(t *testing.T) {
	ipc := Handle{Kind: IPC, Size: 12345}
	for i := range ipc.IPC {
		ipc.IPC[i] = byte(i * 3)
	}
	copy(ipc.Device[:], "0123456789abcdef")
	vmm := Handle{Kind: VMM, Size: maxSize, ID: [16]byte{1, 2, 3}}
	for _, h := range []Handle{ipc, vmm} {
		got, err := ParseHandle(h.String())
		if err != nil || got != h {
			t.Errorf("%q became %+v, %v", h, got, err)
		}
	}
	for _, s := range []string{
		"", "vmm", "shm:1:00:00", "vmm:0:" + strings.Repeat("0", 32) + ":" + strings.Repeat("0", 32),
		strings.Replace(vmm.String(), ":0000", ":00", 1), ipc.String() + "00", ipc.String() + ":00", strings.Replace(ipc.String(), "12345", "-1", 1),
	} {
		if h, err := ParseHandle(s); err == nil {
			t.Errorf("%q was accepted: %+v", s, h)
		}
	}
}

func FuzzParseHandle(f *testing.F) {
	f.Add(Handle{Kind: VMM, Size: 1}.String())
	f.Add(Handle{Kind: IPC, Size: 1 << 40}.String())
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ParseHandle(s)
		if err != nil {
			return
		}
		again, err := ParseHandle(h.String())
		if err != nil || again != h {
			t.Errorf("%q: %+v became %+v, %v", s, h, again, err)
		}
	})
}

func TestArenaIsZero(t *testing.T) {
	for _, kind := range kinds(t) {
		f := newTestFabric(t, Config{Memory: kind})
		a := mustArena(t, f, "a", "gpu0", 3<<20+5)
		if !bytes.Equal(contents(t, a), make([]byte, a.Size())) {
			t.Errorf("a new %s arena is not zero", kind)
		}
		if a.Bytes() != nil || a.Kind() != kind {
			t.Errorf("%s arena: kind %s, the host can address %d bytes", kind, a.Kind(), len(a.Bytes()))
		}
	}
}

func TestArenaRefusals(t *testing.T) {
	f := newTestFabric(t, Config{})
	a := mustArena(t, f, "a", "gpu0", 4096)
	h, file, err := a.Export()
	must(t, err)
	if file != nil {
		defer file.Close()
	}
	far := h
	far.Device[0] ^= 1
	notMemory, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	defer notMemory.Close()
	open := func(h Handle, file *os.File) error {
		a, err := f.Open(h, file, "opened")
		if err == nil {
			a.Close()
		}
		return err
	}
	for want, err := range map[string]error{
		"arena name":        lastError(f.NewArena("", "gpu0", 1)),
		"size 0":            lastError(f.NewArena("x", "gpu0", 0)),
		`unknown device "x`: lastError(f.NewArena("x", "xpu", 1)),
		"with UUID":         open(far, file),
		"comes with a file": open(Handle{Kind: VMM, Size: 1, Device: h.Device}, nil),
		"of kind":           open(Handle{Kind: Pinned, Size: 1, Device: h.Device}, nil),
		"cuMemImport":       open(Handle{Kind: VMM, Size: 1, Device: h.Device}, notMemory),
		"cuIpcOpen":         open(Handle{Kind: IPC, Size: 1, Device: h.Device}, nil),
		"crossover of -1":   lastError(f.StreamAt("gpu0", "s", -1)),
		"not a GPU's":       lastError(f.NewHostArena("x", "gpu0", 1)),
		"outside its arena": lastError(a.ReadAt(make([]byte, 2), 4095)),
		"[-1, +1)":          lastError(a.WriteAt(make([]byte, 1), -1)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want it to say %q", err, want)
		}
	}
}

func lastError[T any](_ T, err error) error { return err }

func TestConfigRefusals(t *testing.T) {
	for want, cfg := range map[string]Config{
		"Memory is":    {Memory: "shm"},
		"Crossover is": {Crossover: -1},
		"Staging is":   {Staging: 1},
		"Spin is":      {Spin: 1 << 40},
		"named twice":  {Devices: []string{"a", "a"}},
		"no device":    {Devices: []string{""}},
		"devices are":  {Devices: make([]string, 100)},
		"Home is":      {Home: "x"},
	} {
		cfg.Library = os.Getenv(libraryEnv)
		f, err := New(cfg)
		if err == nil {
			f.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v): %v, want it to say %q", cfg, err, want)
		}
	}
}

func TestNoDriver(t *testing.T) {
	_, err := New(Config{Library: "/nonexistent/libcuda.so.1"})
	var load *LoadError
	if !errors.As(err, &load) || !strings.Contains(err.Error(), "/nonexistent/libcuda.so.1") {
		t.Errorf("without a driver: %v", err)
	}
	// A library that is no driver.
	if _, err := New(Config{Library: "libm.so.6"}); !errors.As(err, &load) || !strings.Contains(err.Error(), "cuInit") {
		t.Errorf("with a library that is no driver: %v", err)
	}
}

// TestHostArenas: between pinned memory, registered memory of the shm fabric, and
// a device.
func TestHostArenas(t *testing.T) {
	f := newTestFabric(t, Config{Crossover: 4 << 10})
	dev := mustArena(t, f, "dev", "gpu0", 1<<20)
	pinned, err := f.NewHostArena("pinned", "dram", 1<<20)
	must(t, err)
	defer pinned.Close()
	shared, err := shm.Create("shared", "dram", 1<<20)
	must(t, err)
	defer shared.Close()
	registered, err := f.RegisterHost("registered", "dram", shared.Bytes())
	must(t, err)
	defer registered.Close()
	if !bytes.Equal(pinned.Bytes(), make([]byte, 1<<20)) {
		t.Error("a new host arena is not zero")
	}
	want := noise(1<<20, 8)
	copy(pinned.Bytes(), want)
	s := mustStream(t, f, "gpu0")
	var back []nvlink.Copy
	for off := int64(0); off < 1<<20; off += 3000 { // crosses pages, below the crossover
		back = append([]nvlink.Copy{piece(registered, off, dev, off, min(3000, 1<<20-off))}, back...)
	}
	must(t, s.CopyBatch([]nvlink.Copy{piece(dev, 0, pinned, 0, 1<<20)}))
	must(t, s.CopyBatch(back))
	must(t, wait(s))
	if !bytes.Equal(shared.Bytes(), want) {
		t.Error("bytes that went through a device to registered memory differ")
	}
	if _, _, err := pinned.Export(); err == nil {
		t.Error("host memory was exported")
	}
	must(t, s.Close())
	must(t, registered.Close())
	must(t, pinned.Close())
}

// TestSameMemoryOpenedTwice: within one process, VMM memory by its file; copies
// onto themselves are noticed.
func TestSameMemoryOpenedTwice(t *testing.T) {
	f := newTestFabric(t, Config{})
	if !f.Info().Devices[0].VMM {
		t.Skip("skipped: the driver has no VMM memory")
	}
	a := mustArena(t, f, "a", "gpu0", 8192)
	h, file, err := a.Export()
	must(t, err)
	b, err := f.Open(h, file, "again")
	must(t, err)
	must(t, file.Close())
	want := fill(t, a, 3)
	if !bytes.Equal(contents(t, b), want) || b.Device() != "gpu0" || b.Name() != "again" {
		t.Error("a second mapping shows other memory")
	}
	s := mustStream(t, f, "gpu0")
	if err := s.CopyBatch([]nvlink.Copy{piece(b, 100, a, 0, 200)}); !errors.Is(err, nvlink.ErrBadSpan) {
		t.Errorf("a copy onto itself through another mapping: %v", err)
	}
	must(t, s.Close())
	must(t, b.Close())
	if !bytes.Equal(contents(t, a), want) {
		t.Error("closing one mapping changed the other")
	}
	if _, _, err := b.Export(); !errors.Is(err, nvlink.ErrClosed) {
		t.Errorf("export of a closed arena: %v", err)
	}
}

func TestArenasOfOtherFabricsAreRefused(t *testing.T) {
	f, g := newTestFabric(t, Config{}), newTestFabric(t, Config{})
	a, b := mustArena(t, f, "a", "gpu0", 64), mustArena(t, g, "b", "gpu0", 64)
	s := mustStream(t, f, "gpu0")
	if err := s.CopyBatch([]nvlink.Copy{piece(a, 0, b, 0, 8)}); !errors.Is(err, nvlink.ErrBadSpan) || !strings.Contains(fmt.Sprint(err), "another cuda fabric") {
		t.Errorf("an arena of another fabric: %v", err)
	}
}

// TestDevicesAreNamed: names, and devices that are left out.
func TestDevicesAreNamed(t *testing.T) {
	needFake(t)
	t.Setenv("KVLEND_FAKE_DEVICES", "3")
	f := newTestFabric(t, Config{Devices: []string{"left", "", "right"}, Home: "right"})
	a := mustArena(t, f, "a", "right", 4096)
	if got := f.Info().Devices; len(got) != 2 || got[1].Name != "right" || got[1].Model != "Fake GPU 2" || got[1].UUID != a.dev.uuid {
		t.Errorf("devices: %+v", got)
	}
	if f.m.devs[0].started() {
		t.Error("a device that nobody uses has a context")
	}
	if !f.Emulated() || f.Kind() != "cuda" {
		t.Error("the fake driver is not said to be one")
	}
}
