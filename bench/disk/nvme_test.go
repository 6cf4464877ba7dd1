package disk

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/device/devicetest"
)

// nvmeVariable names a namespace that TestNVMe may overwrite, e.g. /dev/ng0n1.
const nvmeVariable = "KVLEND_TEST_NVME"

// TestNVMe runs the behaviour suite of the devices on a real namespace.
// tools/nvme-guest runs it in a guest with emulated drives.
func TestNVMe(t *testing.T) {
	path := os.Getenv(nvmeVariable)
	if path == "" {
		t.Skipf("%s names no NVMe namespace that may be overwritten", nvmeVariable)
	}
	block := strings.Replace(path, "/ng", "/nvme", 1)
	if block == path {
		t.Fatalf("%s is %q; want a path like /dev/ng0n1", nvmeVariable, path)
	}
	for name, o := range map[string]device.NVMeOptions{
		"passthrough":               {Path: path},
		"passthrough and block":     {Path: path, Block: block},
		"no passthrough, but block": {Path: path + "-missing", Block: block},
	} {
		t.Run(name, func(t *testing.T) {
			devicetest.Run(t, func(t *testing.T) devicetest.Subject {
				e, err := device.NewEngine(device.EngineOptions{InFlight: 2 << 20})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := e.Close(); err != nil {
						t.Errorf("close the engine: %v", err)
					}
				})
				d, err := device.OpenNVMe(context.Background(), e, o)
				if err != nil {
					t.Fatal(err)
				}
				info := d.Info()
				if without := name == "no passthrough, but block"; (info.Degraded != "") != without || (info.Kind == device.NVMe) == without {
					t.Fatalf("%+v", info)
				}
				return devicetest.Subject{Device: d, Memory: e.Memory()}
			})
		})
	}
}
