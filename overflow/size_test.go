package overflow

import (
	"os"
	"strings"
	"testing"
)

// TestOtherSize: a store stays as large as it was made, whatever the configuration
// says later, and what is cut off is not made good by emptiness.
func TestOtherSize(t *testing.T) {
	o, d := rig(t)
	format(t, o, d)
	o.Create = true
	slots := 0
	with(t, o, func(p *Pool) {
		put(t, p, 5)
		slots = p.Devices[0].Store.Stats().Slots
	})
	sizeIs := func(want int64) {
		t.Helper()
		if info, err := os.Stat(d.Path); err != nil || info.Size() != want {
			t.Errorf("the file has %d bytes, %v, want %d", info.Size(), err, want)
		}
	}
	o.Devices[0].Size = 2 * fileSize
	with(t, o, func(p *Pool) {
		if s := p.Devices[0].Store.Stats(); s.Slots != slots || s.Live != 5 {
			t.Errorf("%+v, want %d slots with 5 blocks", s, slots)
		}
		if text := p.Odd["d0"]; !strings.Contains(text, "made with 12582912 bytes") || !strings.Contains(text, "--force") {
			t.Errorf("odd: %q", text)
		}
	})
	sizeIs(fileSize)
	for _, c := range []struct {
		name   string
		change func() error
	}{
		{"a smaller size", func() error { o.Devices[0].Size = fileSize / 2; return nil }},
		{"a cut file", func() error { o.Devices[0].Size = fileSize; return os.Truncate(d.Path, fileSize/2) }},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		p, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Out["d0"]; err == nil || !strings.Contains(err.Error(), "want the size that it was made with") {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if c.name == "a cut file" {
			sizeIs(fileSize / 2)
		}
	}
}
