package calibrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/perf"
	"github.com/kvlend/kvlend/planner/sim"
)

// Probe tells how fast a machine is at the moment, compared with when it was
// calibrated: machines share their cores and memory with others, and do not run at
// one speed for hours. It keeps one model's engine in memory.
type Probe struct {
	e     *engine.Model
	model *perf.Engine
	grid  [][]perf.Seq
	s     *subject
}

// probeRounds are those of one probe.
const probeRounds = 5

// NewProbe makes the probe of a model that the machine has figures of. The caller
// ends it with Close.
func NewProbe(r *planner.Model, hw sim.Hardware) (*Probe, error) {
	model, err := hw.Engine(r)
	if err != nil {
		return nil, err
	}
	e, err := source.Engine(r.Config)
	if err != nil {
		return nil, err
	}
	most, _ := r.MaxTokens()
	chunk := r.Config.MaxBatchTokens
	grid := NewGrid(min(most, e.Config().MaxContext, 5*chunk), chunk, r.Config.MaxRunning, r.Config.BlockTokens, kvTokens(e))
	s, err := newSubject(e, grid)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return &Probe{e: e, model: model, grid: grid, s: s}, nil
}

// Close frees the engine.
func (p *Probe) Close() error {
	p.s.close()
	return p.e.Close()
}

// Slow is how much longer steps take now than the machine's figures say: the median
// over the batches of a small grid. 1: no longer.
func (p *Probe) Slow(ctx context.Context) (float64, error) {
	took := make([][]time.Duration, len(p.grid))
	for range probeRounds {
		if err := p.s.round(ctx, p.grid, false, took); err != nil {
			return 0, fmt.Errorf("probe: %w", err)
		}
	}
	ratios := make([]float64, len(p.grid))
	for i, batch := range p.grid {
		ratios[i] = median(took[i]).Seconds() / p.model.Step(batch).Total().Seconds()
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2], nil
}

// Slower is a machine whose engines take so many times as long.
func Slower(m sim.Machine, times float64) sim.Machine {
	out := m
	out.Models = map[string]sim.Calibrated{}
	for name, c := range m.Models {
		c.FLOPS /= times
		c.Bandwidth /= times
		for _, d := range []*time.Duration{&c.Step, &c.Layer, &c.Seq, &c.Token} {
			*d = time.Duration(float64(*d) * times)
		}
		out.Models[name] = c
	}
	return out
}
