//go:build cuda && cgo

package cuda

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/cuda/fakedriver"
	"github.com/kvlend/kvlend/nvlink/fabrictest"
)

// libraryEnv names the driver that the tests use, "libcuda.so.1" for a real GPU;
// empty: the fake one. It also tells children which one their parent uses.
const libraryEnv = "KVLEND_TEST_LIBCUDA"

// kindEnv tells a child which memory its own arenas are to be of.
const kindEnv = "KVLEND_TEST_MEMORY"

func TestMain(m *testing.M) {
	if fabrictest.Main(processes) || borrowerMain() {
		return
	}
	code := runTests(m)
	if code != 0 {
		os.Exit(code)
	}
}

// runTests builds the fake driver, unless a real one is to be used, and runs the tests.
func runTests(m *testing.M) int {
	if os.Getenv(libraryEnv) == "" {
		dir, err := os.MkdirTemp("", "kvlend-fakedriver")
		if err != nil {
			fmt.Println(err)
			return 1
		}
		defer os.RemoveAll(dir)
		lib, err := fakedriver.Build(dir)
		if errors.Is(err, fakedriver.ErrUnavailable) {
			fmt.Println("all tests of the cuda fabric are skipped:", err)
			return 0
		}
		if err == nil {
			err = os.Setenv(libraryEnv, lib)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Println(err)
		return 1
	}
	return code
}

func newTestFabric(t testing.TB, cfg Config) *Fabric {
	t.Helper()
	cfg.Library = os.Getenv(libraryEnv)
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close fabric: %v", err)
		}
	})
	return f
}

// needFake skips what only the fake driver can show, and gives it two devices.
func needFake(t testing.TB) {
	t.Helper()
	f, err := New(Config{Library: os.Getenv(libraryEnv)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !f.Emulated() {
		t.Skip("skipped: this test configures the fake driver, and a real one is in use")
	}
	t.Setenv("KVLEND_FAKE_DEVICES", "2")
}

func harness(cfg Config) fabrictest.Harness {
	return fabrictest.Harness{
		Devices: testDevices(),
		New: func(t testing.TB) nvlink.Fabric {
			cfg.Library = os.Getenv(libraryEnv)
			f, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			return f
		},
		NewArena: func(t testing.TB, f nvlink.Fabric, name, device string, size int64) nvlink.Arena {
			a, err := f.(*Fabric).NewArena(name, device, size)
			if err != nil {
				t.Fatal(err)
			}
			return a
		},
		Read: func(t testing.TB, a nvlink.Arena, off int64, dst []byte) {
			if _, err := a.(*Arena).ReadAt(dst, off); err != nil {
				t.Fatal(err)
			}
		},
		Write: func(t testing.TB, a nvlink.Arena, off int64, src []byte) {
			if _, err := a.(*Arena).WriteAt(src, off); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// testDevices are two devices where there are two.
func testDevices() [2]string {
	f, err := New(Config{Library: os.Getenv(libraryEnv)})
	if err != nil {
		return [2]string{"gpu0", "gpu0"}
	}
	defer f.Close()
	d := f.Info().Devices
	return [2]string{d[0].Name, d[min(1, len(d)-1)].Name}
}

var processes = fabrictest.Processes{
	Export: func(t testing.TB, a nvlink.Arena) ([]*os.File, string) {
		h, file, err := a.(*Arena).Export()
		if err != nil {
			t.Fatal(err)
		}
		if file == nil {
			return nil, h.String()
		}
		t.Cleanup(func() { file.Close() })
		return []*os.File{file}, h.String()
	},
	Open: func(handle string, size int64) (nvlink.Fabric, nvlink.Arena, nvlink.Arena, error) {
		f, err := New(Config{Library: os.Getenv(libraryEnv), Crossover: 64 << 10, Memory: MemoryKind(os.Getenv(kindEnv))})
		if err != nil {
			return nil, nil, nil, err
		}
		shared, err := openInherited(f, handle, "shared")
		if err != nil {
			return nil, nil, nil, err
		}
		if shared.Size() != size {
			return nil, nil, nil, fmt.Errorf("the arena has %d bytes, want %d", shared.Size(), size)
		}
		own, err := f.NewArena("own", "gpu0", size)
		return f, shared, own, err
	},
}

// openInherited opens an arena whose file, if it has one, is descriptor 3.
func openInherited(f *Fabric, handle, name string) (*Arena, error) {
	h, err := ParseHandle(handle)
	if err != nil {
		return nil, err
	}
	if h.Kind == IPC {
		return f.Open(h, nil, name)
	}
	file := os.NewFile(3, "arena")
	defer file.Close()
	return f.Open(h, file, name)
}

// kinds are the kinds of memory that the driver has.
func kinds(t testing.TB) []MemoryKind {
	f := newTestFabric(t, Config{})
	if f.Info().Devices[0].VMM {
		return []MemoryKind{VMM, IPC}
	}
	return []MemoryKind{IPC}
}

func TestBehaviour(t *testing.T) {
	for _, kind := range kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			t.Setenv(kindEnv, string(kind))
			// Pieces of the suite lie on both sides of this crossover.
			h := harness(Config{Crossover: 64 << 10, Memory: kind})
			fabrictest.Run(t, h)
			t.Run("Processes", func(t *testing.T) { fabrictest.RunProcesses(t, h, processes) })
		})
	}
}

// TestBehaviourByOneEngine: all by the kernel, all by the copy engine.
func TestBehaviourByOneEngine(t *testing.T) {
	for name, crossover := range map[string]int64{"Engine": 1, "Kernel": 1 << 40} {
		t.Run(name, func(t *testing.T) { fabrictest.Run(t, harness(Config{Crossover: crossover, Spin: -1})) })
	}
}

// TestBehaviourStaged: no device reaches another.
func TestBehaviourStaged(t *testing.T) {
	needFake(t)
	t.Setenv("KVLEND_FAKE_NO_PEER", "0-1")
	for _, kind := range []MemoryKind{VMM, IPC} {
		t.Run(string(kind), func(t *testing.T) {
			t.Setenv(kindEnv, string(kind))
			h := harness(Config{Crossover: 64 << 10, Memory: kind, Staging: 48 << 10})
			fabrictest.Run(t, h)
			t.Run("Processes", func(t *testing.T) { fabrictest.RunProcesses(t, h, processes) })
		})
	}
}

// TestBehaviourOfOldDrivers: without VMM memory and without batched calls.
func TestBehaviourOfOldDrivers(t *testing.T) {
	needFake(t)
	t.Setenv("KVLEND_FAKE_NO_VMM", "1")
	t.Setenv("KVLEND_FAKE_VERSION", "12010")
	if f := newTestFabric(t, Config{}); f.Info().Batchless == "" || f.Info().Devices[0].VMM {
		t.Fatalf("an old driver has %+v", f.Info())
	}
	fabrictest.Run(t, harness(Config{Crossover: 4 << 10}))
}
