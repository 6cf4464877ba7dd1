package configs

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// diskMemory is the path of memory.
const diskMemory = "dram"

// leastDisk is enough for a store's log and some blocks.
const leastDisk = 8 << 20

// A name of a disk is a label of metrics and an argument of commands.
var diskName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func (k *checker) overflow(m *Model, path string) {
	names := map[string]bool{}
	for i, d := range m.Overflow.Devices {
		at := fmt.Sprintf("%s.devices[%d]", path, i)
		if names[d.Name] {
			k.fail(at+".name", d.Name, "another device of the model has this name", "a name of its own")
		}
		names[d.Name] = true
		if !diskName.MatchString(d.Name) {
			k.fail(at+".name", d.Name, "not a name", "up to 64 letters, digits, dots, dashes and underscores, a letter or digit first")
		}
		if d.Size != 0 && d.Size < leastDisk {
			k.fail(at+".size", d.Size.String(), "too small", "at least "+Bytes(leastDisk).String())
		}
		if d.Size == 0 && !strings.HasPrefix(d.Path, "/dev/") {
			k.fail(at+".size", "", "missing: only a device has a size of its own", "at least "+Bytes(leastDisk).String())
		}
		k.diskPath(m, d, at)
		k.diskKind(d, at)
	}
}

// diskPath checks that no other device has the path, in whatever words.
func (k *checker) diskPath(m *Model, d Disk, at string) {
	if d.Path == diskMemory {
		return
	}
	if !filepath.IsAbs(d.Path) {
		k.fail(at+".path", d.Path, "not absolute", "a path that begins with /, or "+diskMemory)
		return
	}
	real := filepath.Clean(d.Path)
	if target, err := filepath.EvalSymlinks(real); err == nil {
		real = target
	}
	if other := k.disks[real]; other != "" {
		k.fail(at+".path", d.Path, "device "+other+" has this path", "a path of its own")
	}
	k.disks[real] = m.Name + "/" + d.Name
}

// diskKind checks that settings are those of the kind of device.
func (k *checker) diskKind(d Disk, at string) {
	memory := d.Path == diskMemory
	namespace := strings.HasPrefix(d.Path, "/dev/") && strings.HasPrefix(filepath.Base(d.Path), "ng")
	if d.Block != "" && !namespace {
		k.fail(at+".block", d.Block, "only an NVMe namespace has this, and "+d.Path+" is none", "nothing, or a path such as /dev/ng0n1")
	}
	if d.NUMANode > 0 && !memory {
		k.fail(at+".numa_node", fmt.Sprint(d.NUMANode), "only memory has this (path: "+diskMemory+")", "nothing")
	}
	for _, f := range []struct {
		key   string
		bytes Bytes
	}{{"write_budget", d.WriteBudget}, {"rated_writes", d.RatedWrites}} {
		if memory && f.bytes != 0 {
			k.fail(at+"."+f.key, f.bytes.String(), "memory does not wear out", "nothing")
		}
	}
}
