package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/nvlink/topology"
)

// TestMeasuredLinks: masters ask the lender with the faster measured link first,
// whatever the configuration says of links, and operators see which counted.
func TestMeasuredLinks(t *testing.T) {
	path := filepath.Join(tempDir(t), "links.json")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	m := topology.Measured{Version: topology.MeasuredVersion, Fabric: "shm", Taken: time.Now(), Links: []topology.MeasuredLink{
		{From: "gpu1", To: "gpu0", BytesPerSec: 2e9}, {From: "gpu2", To: "gpu0", BytesPerSec: 5e9},
	}}
	if err := m.Write(f); err != nil {
		t.Fatal(err)
	}
	f.Close()
	config := writeConfig(t, func(c *configs.Config) {
		c.Fabric.Measured = path
		c.Links = []configs.Link{{From: "gpu0", To: "gpu1", Bandwidth: 100e9}, {From: "gpu0", To: "gpu2", Bandwidth: 1e9}}
	})
	s := launch(t, filepath.Join(tempDir(t), "r"), "up", "-c", config)
	s.ready()
	if len(s.Lending) != 2 || s.Lending[0].Worker != "cedar" {
		t.Errorf("lenders: %+v", s.Lending)
	}
	out, err := exec.Command(kvlend, "status", "--run-dir", s.RunDir, "--json").Output()
	var st api.AdminStatus
	if err != nil || json.Unmarshal(out, &st) != nil {
		t.Fatalf("kvlend status: %v\n%s", err, out)
	}
	want := map[[2]string]api.AdminLink{
		{"gpu2", "gpu0"}: {From: "gpu2", To: "gpu0", BytesPerSec: 5e9, Source: "measured"},
		{"gpu0", "gpu2"}: {From: "gpu0", To: "gpu2", BytesPerSec: 1e9, Source: "config"},
		{"gpu1", "gpu0"}: {From: "gpu1", To: "gpu0", BytesPerSec: 2e9, Source: "measured"},
		{"gpu0", "gpu1"}: {From: "gpu0", To: "gpu1", BytesPerSec: 100e9, Source: "config"},
	}
	for _, l := range st.Links {
		if want[[2]string{l.From, l.To}] != l {
			t.Errorf("link %+v", l)
		}
	}
	if len(st.Links) != len(want) {
		t.Errorf("links: %+v", st.Links)
	}

	// Of a running system what it holds is no problem.
	doctor := exec.Command(kvlend, "doctor", "-c", config, "--run-dir", s.RunDir)
	said, err := doctor.CombinedOutput()
	if err != nil {
		t.Errorf("kvlend doctor: %v", err)
	}
	mention(t, string(said), "a running system listens already", "5 GB/s (measured)", "asked first to last: those on gpu2, gpu1", "0 problems")
}

// TestDoctorRefuses: what a machine cannot do is in the exit code, what nobody
// can do as well.
func TestDoctorRefuses(t *testing.T) {
	gpus := writeConfig(t, func(c *configs.Config) {
		c.Fabric.Kind = "cuda"
		c.Audit.Dir = "/none/such"
	})
	dir := filepath.Join(tempDir(t), "r")
	mention(t, refused(t, 3, "doctor", "-c", gpus, "--run-dir", dir), "/none cannot be written", "PROBLEM", "problems")
	mention(t, refused(t, 2, "doctor", "-c", filepath.Join(dir, "none.yaml")), "no such file")
	mention(t, refused(t, 2, "doctor", "--run-dir", dir), "--run-dir needs -c")
	mention(t, refused(t, 2, "doctor", "--timeout", "0s"), "must be positive")
	mention(t, refused(t, 2, "doctor", "now"), "takes no arguments")

	gone := writeConfig(t, func(c *configs.Config) { c.Fabric.Measured = "/none/links.json" })
	mention(t, refused(t, 1, "up", "-c", gone, "--run-dir", dir), "fabric.measured", "no such file")
}
