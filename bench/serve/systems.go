package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
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
}

// baselines change a copy of a configuration into one to compare with.
var baselines = map[string]func(*configs.Config){
	"local-only": localOnly,
	"lending":    func(*configs.Config) {},
}

// Baselines lists the names that Baseline knows.
func Baselines() []string { return slices.Sorted(maps.Keys(baselines)) }

// Baseline is base changed into the named one: local-only lends nothing and has
// the same arenas; lending is base itself.
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
	change(c)
	return System{name, c}, nil
}

// localOnly makes models of masters and workers that neither borrow nor lend.
func localOnly(c *configs.Config) {
	for i := range c.Models {
		m := &c.Models[i]
		m.Role, m.LSC, m.Floor, m.ZeroOnReturn, m.BorrowFrom = configs.RoleLocal, configs.LSC{}, 0, false, nil
	}
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

// lastLines is the end of a log, on lines of its own.
func lastLines(log string) string {
	if log = strings.TrimSpace(log); log == "" {
		return ""
	}
	lines := strings.Split(log, "\n")
	return "\n" + strings.Join(lines[max(0, len(lines)-20):], "\n")
}
