package serve

import (
	"context"
	"fmt"
	"slices"

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
func (s *System) with(ctx context.Context, binary string, f func(endpoint string) error) error {
	err := harness.With(ctx, binary, s.Config, func(sys *harness.System) error { return f(sys.Endpoint) })
	if err != nil {
		return fmt.Errorf("configuration %s: %w", s.Name, err)
	}
	return nil
}
