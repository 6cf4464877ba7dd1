package configs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDisks: what cannot be meant is refused when the configuration is read, and says
// what would be accepted.
func TestDisks(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	const config = `version: 1
devices: [{name: gpu0, kind: cpu, memory: 0B}]
models:
  - {name: atlas, source: "builtin:random-atlas", role: master, device: gpu0, arena: 4MiB, overflow: {%s}}
  - {name: atlas2, source: "builtin:random-atlas", role: master, device: gpu0, arena: 4MiB, overflow: {devices: [{name: z, path: %s, size: 64MiB}]}}
`
	disk := func(text string) string { return "devices: [{" + text + "}]" }
	file := "name: a, path: " + dir + "/a, size: 64MiB"
	for _, c := range []struct{ overflow, want string }{
		{disk(file), ""},
		{disk("name: a, path: dram, size: 64MiB, numa_node: 1"), ""},
		{disk(file + ", block: /dev/nvme0n1"), "devices[0].block: \"/dev/nvme0n1\": only an NVMe namespace has this"},
		{disk(file + ", numa_node: 1"), "devices[0].numa_node: \"1\": only memory"},
		{disk("name: a, path: dram, size: 64MiB, write_budget: 1GiB"), "write_budget: \"1GiB\": memory does not wear out"},
		{disk(`name: "a b/c", path: ` + dir + "/a, size: 64MiB"), "not a name; want up to 64 letters"},
		{disk("name: a, path: " + dir + "/a, size: 9999999TiB"), "too large, at most 8388607TiB"},
		{disk("name: a, path: " + dir + "/a, size: -5MiB"), "less than 0"},
		{"timeout: 1000h, " + disk(file), "overflow.timeout: \"1000h\": too large; want a duration"},
		{"buffers: 1TiB, " + disk(file), "overflow.buffers: \"1TiB\": too large"},
		{"devices: [{" + file + "}, {name: b, path: " + dir + "/../" + filepath.Base(dir) + "/a, size: 64MiB}]", "devices[1].path"},
		{"devices: [{" + file + "}, {name: b, path: " + dir + "/link, size: 64MiB}]", "device atlas/a has this path"},
		{disk("name: a, path: " + dir + "/other, size: 64MiB"), "models[1].overflow.devices[0].path"},
	} {
		_, err := Parse(fmt.Appendf(nil, config, c.overflow, dir+"/other"), "x")
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.overflow, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.overflow, err, c.want)
		}
	}
}
