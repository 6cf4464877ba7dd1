// Package sim runs a configuration on a virtual clock: what a server would do,
// and how long it would take, on hardware that need not be there.
//
// # What is real
//
// The schedulers, the caches of masters and workers with their prefix indices and
// arbiters, the elastic units and their tables, the scale policies, and both
// machines of the lending protocol are those of the running system, called as it
// calls them. So a change of policy is a change of the simulation.
//
// # What is not
//
// Models do not compute: a step takes what package perf says (a roofline with
// measured efficiencies). Memory has no bytes. Links take a time per batch that
// depends on its size and that of its pieces, and carry one batch after the other.
// Loads and stores of a step follow the order of the layer stream cache, worked out
// layer by layer in pass.go rather than by it. Messages of the lending protocol
// take a fixed time. Nobody dies, and nothing is corrupt.
//
// # Time
//
// There is one goroutine. A step takes place at once, and its process is busy until
// the time that it ends; what reaches a master meanwhile waits until then, as it
// does in the running system. A worker answers meanwhile, from the state that its
// cache has after the step. Equal input gives equal output, to the byte.
package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/perf"
)

// Hardware says how fast things are.
type Hardware interface {
	// Engine reckons the steps of a model.
	Engine(m *planner.Model) (*perf.Engine, error)
	// Context is the longest sequence that a model was made for; 0: not known.
	Context(m *planner.Model) int
	// Memory is the bandwidth of a device's memory in bytes per second; 0: not
	// known.
	Memory(device string) float64
	// Link is the way from one device to another, which may be the same; limit
	// bounds its bandwidth, 0: nothing does.
	Link(from, to string, limit configs.Rate) (Mover, error)
	// Disk is a device of the overflow pool.
	Disk(d configs.Disk) (*perf.Disk, error)
}

// Mover says how long a batch takes over a link that carries nothing else
// (perf.Link).
type Mover interface {
	Time(bytes, piece int64) time.Duration
}

// Options of a run.
type Options struct {
	System   *planner.System
	Hardware Hardware
	// Loads are replayed at the same time, each against a model of its own.
	Loads []Load
	// Progress, if not nil, is called now and then with the virtual time and how
	// many requests have been answered.
	Progress func(now time.Duration, answered int)
}

// Result is what a run came to.
type Result struct {
	Answers []*Answers    `json:"answers"` // by load
	Models  []ModelUse    `json:"models"`
	Links   []LinkUse     `json:"links"`
	Disks   []DiskUse     `json:"disks,omitempty"`
	Control Control       `json:"control"`
	Lent    Series        `json:"lent_bytes"` // units away from their workers
	End     time.Duration `json:"end_ns"`
	Events  uint64        `json:"events"`
}

// ModelUse is what one model's process did.
type ModelUse struct {
	Name    string        `json:"name"`
	Role    string        `json:"role"`
	Device  string        `json:"device"`
	Steps   uint64        `json:"steps"`
	Worked  time.Duration `json:"worked_ns"`
	Slowed  time.Duration `json:"slowed_ns"` // of Worked, by others' traffic
	Loaded  int64         `json:"loaded_bytes,omitempty"`
	Stored  int64         `json:"stored_bytes,omitempty"`
	Moved   Moves         `json:"moved_blocks"`
	Evicted uint64        `json:"evicted_sequences,omitempty"`
}

// Moves counts blocks by where they moved.
type Moves struct {
	RC       uint64 `json:"rc,omitempty"`
	Borrowed uint64 `json:"borrowed,omitempty"`
	Host     uint64 `json:"host,omitempty"`
	Pool     uint64 `json:"pool,omitempty"`
	Dropped  uint64 `json:"dropped,omitempty"`
}

// DiskUse is what one device of the overflow pool did.
type DiskUse struct {
	Name    string `json:"name"`
	Read    int64  `json:"read_bytes"`
	Written int64  `json:"written_bytes"`
	// Years is how long it lasts at this rate of writes; 0: it is not known how
	// much it can take, or nothing was written.
	Years float64 `json:"endurance_years,omitempty"`
}

// LinkUse is what one link carried.
type LinkUse struct {
	From  string        `json:"from"`
	To    string        `json:"to"`
	Bytes int64         `json:"bytes"`
	Busy  time.Duration `json:"busy_ns"`
}

// ErrStuck: requests are left that nothing will ever answer.
var ErrStuck = errors.New("the simulation has come to a stop with requests unanswered")

// progressEvery is how many events pass between two looks at the context.
const progressEvery = 1 << 8

// Run replays the loads. It returns when every request has been answered, with
// ctx's error when that ends first.
func Run(ctx context.Context, o Options) (*Result, error) {
	w, err := newWorld(o.System, o.Hardware)
	if err != nil {
		return nil, err
	}
	var drivers []*driver
	for i := range o.Loads {
		l := &o.Loads[i]
		m := o.System.Model(l.Model)
		if m == nil {
			return nil, fmt.Errorf("loads[%d]: model %q: the configuration has none of that name", i, l.Model)
		}
		d := newDriver(l, w.procs[m.Index], frontOf(o.Hardware), NewAnswers(l.Model))
		drivers = append(drivers, d)
		d.begin()
	}
	end, err := w.run(ctx, drivers, o.Progress)
	if err != nil {
		return nil, err
	}
	return w.result(drivers, end), nil
}

// run lets things happen until every driver is through.
func (w *world) run(ctx context.Context, drivers []*driver, progress func(time.Duration, int)) (time.Duration, error) {
	var now time.Duration
	for {
		if w.events%progressEvery == 0 {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			if progress != nil {
				progress(now, answered(drivers))
			}
		}
		if through(drivers) {
			return ended(now, drivers), nil
		}
		e, ok := w.next()
		if !ok {
			return 0, ErrStuck
		}
		now = e.at
		e.do()
	}
}

func through(drivers []*driver) bool {
	for _, d := range drivers {
		if d.alive > 0 || d.next != nil {
			return false
		}
	}
	return true
}

// ended is when the last answer was there: steps reach beyond the event that began
// them.
func ended(now time.Duration, drivers []*driver) time.Duration {
	for _, d := range drivers {
		now = max(now, d.out.End)
	}
	return now
}

func answered(drivers []*driver) int {
	n := 0
	for _, d := range drivers {
		n += d.out.Answered
	}
	return n
}

func (w *world) result(drivers []*driver, end time.Duration) *Result {
	r := &Result{End: end, Control: w.control, Lent: w.lent.report(end), Events: w.events}
	for _, d := range drivers {
		d.out.Waiting = d.waits.report(end)
		r.Answers = append(r.Answers, d.out)
	}
	for _, p := range w.procs {
		u := ModelUse{Name: p.model.Config.Name, Role: p.model.Config.Role, Device: p.device.name, Steps: p.steps, Worked: p.worked, Slowed: p.slowed}
		if c := w.masters[p.model]; c != nil {
			s := c.Stats()
			u.Loaded, u.Stored, u.Evicted = s.LoadedBytes, s.StoredBytes, s.EvictedSequences
			m := s.MovedBlocks
			u.Moved = Moves{RC: m["rc"], Borrowed: m["borrowed"], Host: m["host"], Pool: m["pool"], Dropped: m["dropped"]}
		}
		r.Models = append(r.Models, u)
	}
	for _, d := range w.disks {
		u := DiskUse{Name: d.name, Read: d.read.bytes, Written: d.write.bytes}
		if years := d.model.Endurance().Years(float64(u.Written), end, 1); !math.IsInf(years, 0) {
			u.Years = years
		}
		r.Disks = append(r.Disks, u)
	}
	for _, l := range w.links {
		r.Links = append(r.Links, LinkUse{l.from.name, l.to.name, l.bytes, l.busy})
	}
	return r
}
