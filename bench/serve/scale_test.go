package serve

import (
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/configs"
)

// TestWithScale: links to the host get PCIe's speed, the others NVLink's, and the
// configuration that was given stays as it was.
func TestWithScale(t *testing.T) {
	s := Scale{Compute: 27 * time.Millisecond, KVBytes: 75e6, PCIe: 1e9, NVLink: 12.5e9}
	if line := s.String(); !strings.Contains(line, "*emulated*") || !strings.Contains(line, "75 ms over PCIe") {
		t.Errorf("the report says %q", line)
	}
	c := &configs.Config{
		Fabric: configs.Fabric{Pace: true},
		Links:  []configs.Link{{From: "gpu0", To: "gpu1", Bandwidth: 1}, {From: "host", To: "gpu0", Bandwidth: 2}, {From: "gpu0", To: "host", Bandwidth: 3}},
	}
	out, err := WithScale(c, s)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []configs.Rate{s.NVLink, s.PCIe, s.PCIe} {
		if got := out.Links[i].Bandwidth; got != want || c.Links[i].Bandwidth != configs.Rate(i+1) {
			t.Errorf("link %d: %v, want %v; it was %v", i, got, want, c.Links[i].Bandwidth)
		}
	}
	c.Fabric.Pace = false
	if _, err := WithScale(c, s); err == nil {
		t.Error("links that are not paced were scaled")
	}
}
