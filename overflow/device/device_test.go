package device_test

import (
	"bytes"
	"context"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/device/devicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine starts an engine that is closed when the test ends.
func engine(t testing.TB, o device.EngineOptions) *device.Engine {
	t.Helper()
	e, err := device.NewEngine(o)
	if err != nil {
		t.Fatal(err)
	}
	if !o.Portable && e.Stats().Degraded != "" {
		t.Logf("the tests run degraded: %s", e.Stats().Degraded)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close the engine: %v", err)
		}
	})
	return e
}

// file opens a fresh file of n bytes.
func file(t testing.TB, e *device.Engine, n int64) device.Device {
	t.Helper()
	d, err := device.Open(context.Background(), e, device.Options{
		Name: "file", Path: filepath.Join(t.TempDir(), "f"), Size: n, Create: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var engines = map[string]device.EngineOptions{
	"ring":    {InFlight: 2 << 20},
	"threads": {InFlight: 2 << 20, Portable: true},
}

func TestFile(t *testing.T) {
	for name, o := range engines {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f") // one for the whole suite: creating it takes long
			devicetest.Run(t, func(t *testing.T) devicetest.Subject {
				e := engine(t, o)
				d, err := device.Open(context.Background(), e, device.Options{
					Name: "file", Path: path, Size: devicetest.MinSize, Create: true,
				})
				if err != nil {
					t.Fatal(err)
				}
				return devicetest.Subject{Device: d, Memory: e.Memory()}
			})
		})
	}
}

func TestDRAM(t *testing.T) {
	for name, o := range engines {
		t.Run(name, func(t *testing.T) {
			devicetest.Run(t, func(t *testing.T) devicetest.Subject {
				e := engine(t, o)
				d, err := device.OpenDRAM(e, device.DRAMOptions{Name: "dram", Size: devicetest.MinSize, HugePages: true})
				if err != nil {
					t.Fatal(err)
				}
				return devicetest.Subject{Device: d, Memory: e.Memory()}
			})
		})
	}
}

// TestPoller: little, since the kernel's poller starves on few cores.
func TestPoller(t *testing.T) {
	e := engine(t, device.EngineOptions{Poller: true, Entries: 8})
	d := file(t, e, 1<<20)
	mem := e.Memory().TryGet(1 << 20)
	defer e.Memory().Put(mem)
	devicetest.Fill(mem, 1)
	want := bytes.Clone(mem)
	for _, write := range []bool{true, false} {
		var ios []*device.IO
		for at := 0; at < len(mem); at += 16 << 10 {
			ios = append(ios, &device.IO{Write: write, Off: int64(at), Buf: mem[at : at+16<<10]})
		}
		if err := devicetest.Do(d, ios...); err != nil {
			t.Fatal(err)
		}
		if write {
			clear(mem)
		}
	}
	if !bytes.Equal(mem, want) {
		t.Fatal("read back differently")
	}
}

// TestClosesAtOnce closes devices while their engine closes.
func TestClosesAtOnce(t *testing.T) {
	e, err := device.NewEngine(device.EngineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		d, err := device.OpenDRAM(e, device.DRAMOptions{Name: string(rune('a' + i)), Size: device.Align})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
