package serve

import (
	"context"
	"errors"
	"fmt"
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

// Baseline is base changed into the named one (configs.Baseline).
func Baseline(name string, base *configs.Config) (System, error) {
	c, err := configs.Baseline(name, base)
	return System{Name: name, Config: c}, err
}

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

// Longest finds the model that a load is for in every system, the named one or the
// first master of any, and the longest context that it has in all.
func Longest(systems []System, name string) (model string, tokens int, err error) {
	if model, err = pick(systems, name); err != nil {
		return "", 0, err
	}
	tokens, err = longest(systems, model)
	return model, tokens, err
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
