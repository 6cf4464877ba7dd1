// Package resize measures what it costs a worker to lend an elastic unit and
// to take it back: in kvlend's block-major cache, where only books change, and
// in a layer-major cache, which really moves its bytes (SwiftCache Fig. 5 and
// 6). Both caches have the same geometry and change by the same unit. The messages
// by which the two models agree on it are the same for both and not counted.
package resize

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/kvlend/kvlend/elastic"
)

// Options say what is measured.
type Options struct {
	Layers []int `json:"layers"` // of the worker's model, one row of cells each
	Blocks []int `json:"blocks"` // full blocks in the worker's cache, one column each
	// LayerBlockBytes is the size of a layer block of both models.
	LayerBlockBytes int `json:"layer_block_bytes"`
	// MasterLayers are the layers of the borrowing model: with the worker's
	// they make the unit.
	MasterLayers int `json:"master_layers"`
	// MaxBytes skips cells whose cache would be larger; skipped cells are
	// listed in the result.
	MaxBytes int64 `json:"max_bytes"`
	// Rounds is how often each cell is measured. In every round each cell
	// takes its turn, and the two caches alternate in who goes first.
	Rounds int `json:"rounds"`
}

// DefaultOptions is a run of a few seconds with at most 512 MiB.
func DefaultOptions() Options {
	return Options{
		Layers:          []int{8, 16, 32, 64},
		Blocks:          []int{64, 256, 1024, 4096},
		LayerBlockBytes: 4096,
		MasterLayers:    12,
		MaxBytes:        512 << 20,
		Rounds:          7,
	}
}

// opsPerRound is the number of grants timed together: one takes less than a
// clock can tell.
const opsPerRound = 4096

// Timing is the time of one resize over the rounds, in nanoseconds.
type Timing struct {
	Median float64 `json:"median_ns"`
	Min    float64 `json:"min_ns"`
	Max    float64 `json:"max_ns"`
}

// Comparison is one direction of resizing.
type Comparison struct {
	LayerMajor Timing  `json:"layer_major"`
	BlockMajor Timing  `json:"block_major"`
	Ratio      float64 `json:"ratio"` // of the medians
}

// Cell is one geometry.
type Cell struct {
	Layers     int        `json:"layers"`
	Blocks     int        `json:"blocks"`
	UnitBlocks int        `json:"unit_blocks"` // the worker's blocks in a unit
	CacheBytes int64      `json:"cache_bytes"`
	MovedBytes int64      `json:"moved_bytes"` // by the layer-major cache, per resize
	Lend       Comparison `json:"lend"`        // shrink by a unit
	TakeBack   Comparison `json:"take_back"`   // grow by a unit
}

// Skipped is a cell that was not measured.
type Skipped struct {
	Layers int    `json:"layers"`
	Blocks int    `json:"blocks"`
	Reason string `json:"reason"`
}

// Result is a whole run.
type Result struct {
	Options Options   `json:"options"`
	Go      string    `json:"go"`
	Arch    string    `json:"arch"`
	Cores   int       `json:"cores"`
	Cells   []Cell    `json:"cells"`
	Skipped []Skipped `json:"skipped"`
}

// Validate reports every option that is out of range.
func (o Options) Validate() error {
	var errs []error
	check := func(name string, v, low, high int64) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s is %d, want %d to %d", name, v, low, high))
		}
	}
	if len(o.Layers) == 0 || len(o.Blocks) == 0 {
		errs = append(errs, errors.New("layers and blocks: want at least one of each"))
	}
	for _, l := range o.Layers {
		check("layers", int64(l), 1, 4096)
	}
	for _, b := range o.Blocks {
		check("blocks", int64(b), 1, 1<<24)
	}
	check("layer block bytes", int64(o.LayerBlockBytes), 64, 1<<18)
	if o.LayerBlockBytes%64 != 0 {
		errs = append(errs, fmt.Errorf("layer block bytes is %d, want a multiple of 64", o.LayerBlockBytes))
	}
	check("master layers", int64(o.MasterLayers), 1, 4096)
	check("max bytes", o.MaxBytes, 1, math.MaxInt64)
	check("rounds", int64(o.Rounds), 1, 1000)
	return errors.Join(errs...)
}

// Run measures every cell. Cancelling ctx ends it between two measurements.
func Run(ctx context.Context, o Options) (Result, error) {
	if err := o.Validate(); err != nil {
		return Result{}, err
	}
	r := Result{Options: o, Go: runtime.Version(), Arch: runtime.GOARCH, Cores: runtime.NumCPU(), Skipped: []Skipped{}}
	var cells []*cell
	for _, layers := range o.Layers {
		for _, blocks := range o.Blocks {
			c, reason, err := newCell(o, layers, blocks)
			if err != nil {
				return Result{}, err
			}
			if c == nil {
				r.Skipped = append(r.Skipped, Skipped{Layers: layers, Blocks: blocks, Reason: reason})
				continue
			}
			cells = append(cells, c)
		}
	}
	mem := touched(cells)
	for round := range o.Rounds {
		for _, c := range cells {
			if err := ctx.Err(); err != nil {
				return Result{}, err
			}
			if err := c.measure(mem, round); err != nil {
				return Result{}, fmt.Errorf("%d layers, %d blocks: %w", c.out.Layers, c.out.Blocks, err)
			}
		}
	}
	for _, c := range cells {
		r.Cells = append(r.Cells, c.result())
	}
	return r, nil
}

// touched returns memory for the largest cell, all of whose pages are present.
func touched(cells []*cell) []byte {
	largest := int64(0)
	for _, c := range cells {
		largest = max(largest, c.out.CacheBytes)
	}
	mem := make([]byte, largest)
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 1
	}
	return mem
}

// cell holds the block-major cache of one geometry and the samples of both.
// The layer-major caches of all cells take turns in one piece of memory.
type cell struct {
	out  Cell
	o    Options
	spec elastic.UnitSpec

	units  *elastic.Units      // the worker's book
	master *elastic.BlockSpace // what the master borrowed
	live   []elastic.BlockID   // the worker's blocks in use
	places []elastic.Extent    // of live, before anything was lent

	layerLend, layerBack, blockLend, blockBack []float64
}

// newCell returns nil and a reason when the cell is to be skipped.
func newCell(o Options, layers, blocks int) (*cell, string, error) {
	geometry := func(name string, layers int) elastic.Geometry {
		// K and V of one token and head: the shape below does not matter, only
		// its size does.
		return elastic.Geometry{Name: name, Layers: layers, BlockTokens: 1, KVHeads: o.LayerBlockBytes / 64, HeadDim: 32, ElemBytes: 1}
	}
	worker, master := geometry("worker", layers), geometry("master", o.MasterLayers)
	spec, err := elastic.NewUnitSpec(elastic.PolicyLCM, 0, worker, master)
	if err != nil {
		return nil, "", err
	}
	size := int64(blocks) * worker.FullBlockBytes()
	c := &cell{o: o, spec: spec, out: Cell{Layers: layers, Blocks: blocks, UnitBlocks: spec.PerUnit["worker"], CacheBytes: size}}
	switch {
	case size > o.MaxBytes:
		return nil, fmt.Sprintf("the cache would have %d bytes, the limit is %d", size, o.MaxBytes), nil
	case blocks <= c.out.UnitBlocks:
		return nil, fmt.Sprintf("a unit has %d blocks", c.out.UnitBlocks), nil
	}
	n, _ := spec.Divide(size)
	table, err := elastic.FormatUnitTable(make([]byte, elastic.UnitTableBytes(n)), spec, size, 0)
	if err != nil {
		return nil, "", err
	}
	if c.units, err = elastic.NewUnits(elastic.UnitsOptions{Geometry: worker, Spec: spec, Table: table}); err != nil {
		return nil, "", err
	}
	if c.master, err = elastic.NewBlockSpace(elastic.SpaceOptions{Geometry: master, Spec: spec, Arena: size}); err != nil {
		return nil, "", err
	}
	// Half of the cache is in use, as in a worker that lends.
	if c.live, err = c.units.Space().Alloc(blocks / 2); err != nil {
		return nil, "", err
	}
	c.places = c.extents()
	return c, "", nil
}

// extents are the places of all layers of the blocks in use.
func (c *cell) extents() []elastic.Extent {
	out := make([]elastic.Extent, 0, len(c.live)*c.out.Layers)
	for _, id := range c.live {
		for l := range c.out.Layers {
			out = append(out, c.units.Space().Extent(id, l))
		}
	}
	return out
}

func (c *cell) measure(mem []byte, round int) error {
	steps := []func() error{func() error { return c.measureLayerMajor(mem) }, c.measureBlockMajor}
	if round%2 == 1 {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (c *cell) measureLayerMajor(mem []byte) error {
	cache := newLayerMajor(mem, c.out.Layers, c.out.Blocks, c.o.LayerBlockBytes)
	keep := c.out.Blocks - c.out.UnitBlocks
	eachBlock(cache, keep, func(mem []byte, id uint64) { binary.LittleEndian.PutUint64(mem, id) })
	t0 := time.Now()
	down, err := cache.resize(keep)
	t1 := time.Now()
	if err != nil {
		return err
	}
	up, err := cache.resize(c.out.Blocks)
	t2 := time.Now()
	if err != nil {
		return err
	}
	c.layerLend = append(c.layerLend, float64(t1.Sub(t0)))
	c.layerBack = append(c.layerBack, float64(t2.Sub(t1)))
	if c.out.MovedBytes = int64(down); up != down {
		return fmt.Errorf("layer-major: %d bytes moved down and %d up", down, up)
	}
	lost := 0
	eachBlock(cache, keep, func(mem []byte, id uint64) {
		if binary.LittleEndian.Uint64(mem) != id {
			lost++
		}
	})
	if lost > 0 {
		return fmt.Errorf("layer-major: %d layer blocks lost their contents", lost)
	}
	return nil
}

// eachBlock visits the layer blocks with an index below keep.
func eachBlock(c *layerMajor, keep int, f func(mem []byte, id uint64)) {
	for l := range c.layers {
		for b := range keep {
			f(c.block(l, b), uint64(l)<<32|uint64(b))
		}
	}
}

// measureBlockMajor lends units one by one, each to the master's books, and
// takes them back the same way.
func (c *cell) measureBlockMajor() error {
	batch := min(c.units.Grantable(), opsPerRound)
	if batch == 0 {
		return errors.New("block-major: no unit is empty")
	}
	granted := make([]elastic.UnitEpoch, 0, batch)
	var lend, back time.Duration
	ops := 0
	for ; ops < opsPerRound; ops += batch {
		granted = granted[:0]
		t0 := time.Now()
		for range batch {
			g, err := c.units.Grant(1, 1, 1, time.Second)
			if err != nil {
				return err
			}
			if err := c.master.AddUnit(int(g[0].Unit)); err != nil {
				return err
			}
			granted = append(granted, g[0])
		}
		t1 := time.Now()
		for _, g := range granted {
			if err := c.master.RemoveUnit(int(g.Unit)); err != nil {
				return err
			}
			if err := c.units.Return(1, g); err != nil {
				return err
			}
		}
		lend += t1.Sub(t0)
		back += time.Since(t1)
	}
	c.blockLend = append(c.blockLend, float64(lend)/float64(ops))
	c.blockBack = append(c.blockBack, float64(back)/float64(ops))
	if !slices.Equal(c.extents(), c.places) {
		return errors.New("block-major: a block in use has moved")
	}
	return nil
}

func (c *cell) result() Cell {
	c.out.Lend = compare(c.layerLend, c.blockLend)
	c.out.TakeBack = compare(c.layerBack, c.blockBack)
	return c.out
}

func compare(layerMajor, blockMajor []float64) Comparison {
	c := Comparison{LayerMajor: timing(layerMajor), BlockMajor: timing(blockMajor)}
	c.Ratio = c.LayerMajor.Median / c.BlockMajor.Median
	return c
}

func timing(samples []float64) Timing {
	s := slices.Sorted(slices.Values(samples))
	mid := len(s) / 2
	median := s[mid]
	if len(s)%2 == 0 {
		median = (s[mid-1] + s[mid]) / 2
	}
	return Timing{Median: median, Min: s[0], Max: s[len(s)-1]}
}
