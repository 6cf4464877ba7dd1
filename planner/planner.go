// Package planner works out, from a configuration alone, what a system will
// be able to hold: block sizes, units and their policy, what every worker can
// lend, and every master's longest context with and without lending. The
// running system builds its arenas from the same figures.
package planner

import (
	"fmt"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/elastic"
)

// GeometryFunc returns the KV geometry of a model's source with the block size and
// element type that its configuration asks for.
type GeometryFunc func(m *configs.Model) (elastic.Geometry, error)

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

	// Workers.
	Unit     elastic.UnitSpec // Bytes is 0 where nobody borrows from it
	Units    int              // whole units in the arena
	Lendable int              // units that may be away at once

	// Masters.
	Lenders  []Lender
	Capacity elastic.Capacity
}

// Lender is a worker as one master sees it.
type Lender struct {
	Worker *Model
	// Blocks is K_i: the master's full blocks in the worker's lendable units.
	Blocks int
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
	blocks := m.Geometry.FullBlocks(m.Arena)
	if m.Unit.Bytes > 0 {
		_, rest := m.Unit.Divide(m.Arena)
		blocks = m.Unit.BlocksPer(m.Geometry, m.Units) + m.Geometry.FullBlocks(rest)
	}
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
func Resolve(cfg *configs.Config, geometry GeometryFunc) (*System, error) {
	s := &System{Config: cfg}
	for i := range cfg.Models {
		c := &cfg.Models[i]
		g, err := geometry(c)
		if err != nil {
			return nil, fmt.Errorf("models[%d] (%s): %w", i, c.Name, err)
		}
		g.Name = c.Name
		m := &Model{Config: c, Index: i, Geometry: g, Arena: int64(c.Arena)}
		if m.Arena < g.FullBlockBytes() {
			return nil, fmt.Errorf("models[%d] (%s): arena %s: one block needs %d bytes", i, c.Name, c.Arena, g.FullBlockBytes())
		}
		if c.Role == configs.RoleMaster {
			m.Tails = c.MaxRunning
		}
		s.Models = append(s.Models, m)
	}
	for _, m := range s.Models {
		if m.Config.Role == configs.RoleWorker {
			if err := s.units(m); err != nil {
				return nil, err
			}
		}
	}
	for _, m := range s.Models {
		if m.Config.Role == configs.RoleMaster {
			if err := s.capacity(m); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// borrows reports whether master m borrows from worker w.
func borrows(m, w *Model) bool {
	if m.Config.Role != configs.RoleMaster || w.Config.Role != configs.RoleWorker {
		return false
	}
	if len(m.Config.BorrowFrom) == 0 {
		return true
	}
	for _, n := range m.Config.BorrowFrom {
		if n == w.Config.Name {
			return true
		}
	}
	return false
}

// units chooses a worker's unit, which everyone who borrows from it shares.
func (s *System) units(w *Model) error {
	var masters []elastic.Geometry
	for _, m := range s.Models {
		if borrows(m, w) {
			masters = append(masters, m.Geometry)
		}
	}
	if len(masters) == 0 {
		return nil
	}
	u := s.Config.Lending.Unit
	spec, err := elastic.NewUnitSpec(u.Policy, float64(u.MaxWaste)/100, w.Geometry, masters...)
	if err != nil {
		return err
	}
	w.Unit = spec
	w.Units, _ = spec.Divide(w.Arena)
	w.Lendable = spec.Lendable(w.Arena, int64(w.Config.Floor))
	return nil
}

func (s *System) capacity(m *Model) error {
	var lendable []int
	for _, w := range s.Models {
		if !borrows(m, w) {
			continue
		}
		k := w.Unit.BlocksPer(m.Geometry, w.Lendable)
		m.Lenders = append(m.Lenders, Lender{Worker: w, Blocks: k})
		lendable = append(lendable, k)
	}
	var err error
	m.Capacity, err = elastic.NewCapacity(m.Geometry, m.Arena, lendable, m.Config.LSC.Buffers)
	if err != nil {
		return fmt.Errorf("model %s: %w", m.Config.Name, err)
	}
	return nil
}
