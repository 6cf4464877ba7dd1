// Package planner works out, from a configuration alone, what a system will
// be able to hold: block sizes, units and their policy, what every worker can
// lend, and every master's longest context with and without lending. The
// running system builds its arenas from the same figures.
package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/elastic"
)

// System is a configuration worked out. It is read-only.
type System struct {
	Config *configs.Config
	Models []*Model // in the configuration's order, which is their index in unit tables
}

// Model is one model of a System.
type Model struct {
	Config   *configs.Model
	Index    int
	Geometry elastic.Geometry
	// Arena is the KV cache in bytes; Tails more full blocks lie behind it in
	// the same allocation (masters only).
	Arena int64
	Tails int

	// Workers and local models.
	Unit     elastic.UnitSpec
	Units    int // whole units in the arena
	Lendable int // units that may be away at once
	// Shares of what it can lend, of masters that the configuration names.
	Shares []Share

	// Masters. Lenders are in the order in which they are asked: by the
	// bandwidth of the link from the lender's device, the fastest first, then
	// in the configuration's order. Memory on the master's own device comes
	// before any link, and a link that the configuration does not describe
	// after all others.
	Lenders  []Lender
	Capacity elastic.Capacity
}

// Lender is a worker as one master sees it.
type Lender struct {
	Worker *Model
	// Units is how many of the worker's units the master may hold at once: all
	// lendable ones, or its quota.
	Units int
	// Blocks is K_i: the master's full blocks in these units.
	Blocks int
}

// Share is a master's part of what a worker can lend.
type Share struct {
	Owner  uint32 // the master's index in unit tables
	Weight int
	Quota  int // units that it may hold at once
}

// AllocBytes is the size of the model's allocation: arena and tails.
func (m *Model) AllocBytes() int64 {
	return m.Arena + int64(m.Tails)*m.Geometry.FullBlockBytes()
}

// MaxTokens is the longest sequence the model's cache can hold; alone, the
// longest without lending.
func (m *Model) MaxTokens() (tokens, alone int) {
	if m.Config.Role == configs.RoleMaster {
		return m.Capacity.Tokens, m.Capacity.AloneTokens
	}
	// A worker's units can all come home; blocks do not straddle the border
	// between units and remainder.
	_, rest := m.Unit.Divide(m.Arena)
	blocks := m.Unit.BlocksPer(m.Geometry, m.Units) + m.Geometry.FullBlocks(rest)
	t := blocks * m.Geometry.BlockTokens
	return t, t
}

// Model returns the model of that name, or nil.
func (s *System) Model(name string) *Model {
	for _, m := range s.Models {
		if m.Config.Name == name {
			return m
		}
	}
	return nil
}

// Resolve works out a configuration.
func Resolve(cfg *configs.Config, find configs.GeometryFunc) (*System, error) {
	s := &System{Config: cfg}
	for i := range cfg.Models {
		m, err := resolveModel(cfg, i, find)
		if err != nil {
			return nil, fmt.Errorf("models[%d] (%s): %w", i, cfg.Models[i].Name, err)
		}
		s.Models = append(s.Models, m)
	}
	for _, m := range s.Models {
		m.Shares = shares(cfg, m)
		if err := s.capacity(m, find); err != nil {
			return nil, fmt.Errorf("models[%d] (%s): %w", m.Index, m.Config.Name, err)
		}
	}
	return s, nil
}

func resolveModel(cfg *configs.Config, i int, find configs.GeometryFunc) (*Model, error) {
	c := &cfg.Models[i]
	g, err := c.Geometry(find)
	if err != nil {
		return nil, err
	}
	m := &Model{Config: c, Index: i, Geometry: g, Arena: int64(c.Arena)}
	if m.Arena < g.FullBlockBytes() {
		return nil, fmt.Errorf("arena is %s, one block needs %s", c.Arena, configs.Bytes(g.FullBlockBytes()))
	}
	if c.Role == configs.RoleMaster {
		m.Tails = c.MaxRunning
		return m, nil
	}
	// A model that lends to nobody has units of its own full blocks.
	if m.Unit, err = cfg.UnitSpec(c, find); err != nil {
		return nil, err
	}
	m.Units, _ = m.Unit.Divide(m.Arena)
	if len(cfg.Masters(c)) > 0 {
		m.Lendable = m.Unit.Lendable(m.Arena, int64(c.Floor))
	}
	return m, nil
}

func (s *System) capacity(m *Model, find configs.GeometryFunc) error {
	if m.Config.Role != configs.RoleMaster {
		return nil
	}
	for _, c := range s.Config.Workers(m.Config) {
		w := s.Model(c.Name)
		units := c.Quota(m.Config.Name, w.Lendable)
		m.Lenders = append(m.Lenders, Lender{Worker: w, Units: units, Blocks: w.Unit.BlocksPer(m.Geometry, units)})
	}
	slices.SortStableFunc(m.Lenders, func(a, b Lender) int {
		return cmp.Compare(s.bandwidth(b.Worker, m), s.bandwidth(a.Worker, m))
	})
	var err error
	m.Capacity, err = s.Config.Capacity(m.Config, find)
	return err
}

// bandwidth of loads from a worker's device to a master's; 0: not known.
func (s *System) bandwidth(from, to *Model) configs.Rate {
	if from.Config.Device == to.Config.Device {
		return math.MaxInt64
	}
	l, _ := s.Config.Link(from.Config.Device, to.Config.Device)
	return l.Bandwidth
}

func shares(cfg *configs.Config, m *Model) []Share {
	out := make([]Share, 0, len(m.Config.Shares))
	for _, c := range m.Config.Shares {
		_, owner := cfg.Model(c.Master)
		out = append(out, Share{Owner: uint32(owner), Weight: c.Weight, Quota: m.Config.Quota(c.Master, m.Lendable)})
	}
	return out
}
