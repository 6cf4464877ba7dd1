package device_test

import (
	"context"
	"path/filepath"
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
			devicetest.Run(t, func(t *testing.T) devicetest.Subject {
				e := engine(t, o)
				return devicetest.Subject{Device: file(t, e, devicetest.MinSize), Memory: e.Memory()}
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
