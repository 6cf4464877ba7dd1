package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/harness"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/planner"
)

// System is a configuration that the load is replayed against.
type System struct {
	Name   string
	Config *configs.Config
	// LinkTimes: see WithLinks; 0: the configuration's own links.
	LinkTimes float64
}

// WithLinks is the system with paced links that are so many times as fast:
// bandwidths multiplied, latencies divided.
func (s System) WithLinks(times float64) (System, error) {
	if !(times >= 1e-3 && times <= 1e3) {
		return System{}, fmt.Errorf("links %v times as fast: want from 0.001 to 1000", times)
	}
	if !s.Config.Fabric.Pace {
		return System{}, fmt.Errorf("configuration %s does not pace its links (fabric.pace): none can be made faster or slower", s.Name)
	}
	c := *s.Config
	c.Links = slices.Clone(c.Links)
	for i := range c.Links {
		l := &c.Links[i]
		l.Bandwidth = max(1, configs.Rate(float64(l.Bandwidth)*times))
		l.Latency = configs.Duration(float64(l.Latency) / times)
	}
	return System{fmt.Sprintf("%s, links x%g", s.Name, times), &c, times}, nil
}

// baselines change a copy of a configuration into one to compare with.
var baselines = map[string]func(*configs.Config) error{
	"local-only":        localOnly,
	"host-offload":      func(c *configs.Config) error { return hostOffload(c, false) },
	"host-offload-sync": func(c *configs.Config) error { return hostOffload(c, true) },
	"lending":           func(c *configs.Config) error { noPool(c); return nil },
	"pool":              withPool,
}

// Baselines lists the names that Baseline knows.
func Baselines() []string { return slices.Sorted(maps.Keys(baselines)) }

// Baseline is base changed into the named one, with the same arenas and links:
// local-only lends nothing, host-offload and host-offload-sync keep prefixes in
// host memory, lending is base without an overflow pool, pool is base itself.
func Baseline(name string, base *configs.Config) (System, error) {
	change := baselines[name]
	if change == nil {
		return System{}, fmt.Errorf("baseline %q: want one of %q", name, Baselines())
	}
	raw, err := base.Marshal()
	if err != nil {
		return System{}, err
	}
	c, err := configs.Parse(raw, name)
	if err != nil {
		return System{}, err
	}
	if err := change(c); err != nil {
		return System{}, fmt.Errorf("baseline %s: %w", name, err)
	}
	return System{Name: name, Config: c}, nil
}

// localOnly lets nobody lend: masters keep what fits into their arenas, and
// compute the rest again.
func localOnly(c *configs.Config) error {
	for i := range c.Models {
		if m := &c.Models[i]; m.Role == configs.RoleWorker {
			m.Role, m.Floor, m.ZeroOnReturn = configs.RoleLocal, 0, false
		}
		c.Models[i].BorrowFrom, c.Models[i].Host = nil, configs.Host{}
	}
	noPool(c)
	return nil
}

// noPool takes the disks away.
func noPool(c *configs.Config) {
	for i := range c.Models {
		c.Models[i].Overflow.Devices = nil
	}
}

// withPool asks for disks.
func withPool(c *configs.Config) error {
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
func hostOffload(c *configs.Config, sync bool) error {
	if err := localOnly(c); err != nil {
		return err
	}
	for i := range c.Models {
		m := &c.Models[i]
		if m.Role != configs.RoleMaster {
			continue
		}
		m.Host = configs.Host{Bytes: m.Arena * hostArenas, Sync: sync}
		if !c.Fabric.Pace {
			continue
		}
		m.Host.Device = hostDevice
		if _, ok := c.Link(m.Device, hostDevice); !ok {
			return fmt.Errorf("fabric.pace: no link leads from %q, of %s, to a device %q", m.Device, m.Name, hostDevice)
		}
	}
	return nil
}

// hostDevice is the device that stands for the host.
const hostDevice = "host"

// pick finds the model that the load is for in every system: the named one, or
// the first master of any. All must compute the same.
func pick(systems []System, name string) (string, error) {
	for _, s := range systems {
		for _, m := range s.Config.Models {
			if name == "" && m.Role == configs.RoleMaster {
				name = m.Name
			}
		}
	}
	if name == "" {
		name = systems[0].Config.Models[0].Name
	}
	var first *configs.Model
	for _, s := range systems {
		m, _ := s.Config.Model(name)
		if m == nil {
			return "", fmt.Errorf("serve: configuration %s has no model %q", s.Name, name)
		}
		if first == nil {
			first = m
		}
		if m.Source != first.Source || m.KVDtype != first.KVDtype {
			return "", fmt.Errorf("serve: model %s is %s with kv_dtype %s in %s, and %s with %s in %s: want the same in all",
				name, first.Source, first.KVDtype, systems[0].Name, m.Source, m.KVDtype, s.Name)
		}
	}
	return name, nil
}

// longest is the longest context that the model has in every system.
func longest(systems []System, model string) (int, error) {
	least := 0
	for _, s := range systems {
		sys, err := planner.Resolve(s.Config, source.Geometry)
		if err != nil {
			return 0, fmt.Errorf("serve: configuration %s: %w", s.Name, err)
		}
		tokens, _ := sys.Model(model).MaxTokens()
		if least == 0 || tokens < least {
			least = tokens
		}
	}
	return least, nil
}

// links describes the links of a system that paces them.
func (s *System) links() []string {
	if !s.Config.Fabric.Pace {
		return nil
	}
	var out []string
	for _, l := range s.Config.Links {
		arrow := "<->"
		if l.OneWay {
			arrow = "->"
		}
		out = append(out, fmt.Sprintf("%s%s%s %s, %s", l.From, arrow, l.To, l.Bandwidth, l.Latency))
	}
	return out
}

// with starts the system, calls f with its address, and stops it.
func (s *System) with(ctx context.Context, binary string, f func(endpoint string) error) (err error) {
	dir, err := os.MkdirTemp("", "kvs") // run directories must have short names
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c := *s.Config
	if c.Gateway.Listen, err = harness.FreePort(); err != nil {
		return err
	}
	c.Gateway.APIKeys = nil // the port is the loopback's, and ours
	c.Models = freshDisks(c.Models, dir)
	sys, err := harness.Start(ctx, harness.Options{Binary: binary, Dir: dir, Config: &c})
	if err != nil {
		return fmt.Errorf("configuration %s: %w", s.Name, err)
	}
	defer sys.Kill()
	if err := f(sys.Endpoint); err != nil {
		return fmt.Errorf("configuration %s: %w%s", s.Name, err, lastLines(sys.Log()))
	}
	var errs []error
	if err := sys.Stop(); err != nil {
		errs = append(errs, fmt.Errorf("stop: %w", err))
	}
	for _, sign := range []string{"panic:", "BUG:", "fatal error:"} {
		if strings.Contains(sys.Log(), sign) {
			errs = append(errs, fmt.Errorf("a process wrote %q%s", sign, lastLines(sys.Log())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("configuration %s: %w", s.Name, err)
	}
	return nil
}

// freshDisks moves files of the overflow pool to dir, so that no run finds what
// another left. Devices stay what they are.
func freshDisks(models []configs.Model, dir string) []configs.Model {
	out := slices.Clone(models)
	for i := range out {
		o := &out[i].Overflow
		o.Devices = slices.Clone(o.Devices)
		for j := range o.Devices {
			if d := &o.Devices[j]; filepath.IsAbs(d.Path) && !strings.HasPrefix(d.Path, "/dev/") {
				d.Path = filepath.Join(dir, fmt.Sprintf("disk-%d-%d", i, j))
			}
		}
	}
	return out
}

// lastLines is the end of a log, on lines of its own.
func lastLines(log string) string {
	if log = strings.TrimSpace(log); log == "" {
		return ""
	}
	lines := strings.Split(log, "\n")
	return "\n" + strings.Join(lines[max(0, len(lines)-20):], "\n")
}
