package configs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// baselines change a copy of a configuration into one to compare with.
var baselines = map[string]func(*Config) error{
	"local-only":        localOnly,
	"host-offload":      func(c *Config) error { return hostOffload(c, false) },
	"host-offload-sync": func(c *Config) error { return hostOffload(c, true) },
	"lending":           func(c *Config) error { noPool(c); return nil },
	"pool":              withPool,
}

// Baselines lists the names that Baseline knows.
func Baselines() []string { return slices.Sorted(maps.Keys(baselines)) }

// Baseline is base changed into the named one, with the same arenas and links:
// local-only lends nothing, host-offload and host-offload-sync keep prefixes in
// host memory, lending is base without an overflow pool, pool is base itself.
func Baseline(name string, base *Config) (*Config, error) {
	change := baselines[name]
	if change == nil {
		return nil, fmt.Errorf("baseline %q: want one of %q", name, Baselines())
	}
	raw, err := base.Marshal()
	if err != nil {
		return nil, err
	}
	c, err := Parse(raw, name)
	if err != nil {
		return nil, err
	}
	if err := change(c); err != nil {
		return nil, fmt.Errorf("baseline %s: %w", name, err)
	}
	return c, nil
}

// localOnly lets nobody lend: masters keep what fits into their arenas, and
// compute the rest again.
func localOnly(c *Config) error {
	for i := range c.Models {
		if m := &c.Models[i]; m.Role == RoleWorker {
			m.Role, m.Floor, m.ZeroOnReturn = RoleLocal, 0, false
		}
		c.Models[i].BorrowFrom, c.Models[i].Host = nil, Host{}
	}
	noPool(c)
	return nil
}

// noPool takes the disks away.
func noPool(c *Config) {
	for i := range c.Models {
		c.Models[i].Overflow.Devices = nil
	}
}

// withPool asks for disks.
func withPool(c *Config) error {
	for i := range c.Models {
		if len(c.Models[i].Overflow.Devices) > 0 {
			return nil
		}
	}
	return errors.New("models[].overflow.devices: no model has any")
}

// hostArenas is how many times a master's arena its host memory is.
const hostArenas = 64

// hostOffload keeps prefixes in host memory instead of on other devices, as
// LMCache and HiCache do. Where links are paced, a device named host, linked to
// the masters', is the host.
func hostOffload(c *Config, sync bool) error {
	if err := localOnly(c); err != nil {
		return err
	}
	for i := range c.Models {
		m := &c.Models[i]
		if m.Role != RoleMaster {
			continue
		}
		m.Host = Host{Bytes: m.Arena * hostArenas, Sync: sync}
		if !c.Fabric.Pace {
			continue
		}
		m.Host.Device = HostDevice
		if _, ok := c.Link(m.Device, HostDevice); !ok {
			return fmt.Errorf("fabric.pace: no link leads from %q, of %s, to a device %q", m.Device, m.Name, HostDevice)
		}
	}
	return nil
}

// HostDevice is the name of the device that stands for the host.
const HostDevice = "host"
