package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/facts"
	"github.com/kvlend/kvlend/planner/sim"
)

// always holds for every simulation.
var always = [...]Assumption{
	{"steps", "a roofline: per layer the larger of arithmetic and memory traffic, for linear layers and attention apart, and the overheads of the calibration; nothing is computed, and answers have the length that the trace says"},
	{"links", "one batch after the other in each direction; whoever uses a link at the same time waits"},
	{"lending", "the running system's own schedulers, caches, arbiters and protocol; a message takes 60 us from process to process; nobody dies and nothing is lost"},
	{"interference", "a step is stretched by the share of its device's memory bandwidth that others' transfers take"},
}

// assume writes down what the figures rest on. What differs between systems is
// in their configurations.
func (c *Comparison) assume() error {
	r := c.report
	of := map[string][]string{} // what has the same assumption, by it
	var order []string
	add := func(one, what string) {
		if len(of[what]) == 0 {
			order = append(order, what)
		}
		if !slices.Contains(of[what], one) {
			of[what] = append(of[what], one)
		}
	}
	for i, sys := range c.systems {
		cfg := c.opt.Systems[i].Config
		hw := sim.NewHardware(cfg, c.opt.Machine)
		for k, m := range sys.Models {
			e, err := hw.Engine(m)
			if err != nil {
				return fmt.Errorf("%s: models[%d] (%s): %w", c.opt.Systems[i].Name, k, m.Config.Name, err)
			}
			cal := e.Calibration()
			add(m.Config.Name+" on "+m.Config.Device, fmt.Sprintf("%s; of the peak arithmetic linear layers reach %.0f %% and attention %.0f %%, of the memory bandwidth weights %.0f %% and KV %.0f %%; %s per step, %s per layer, %s per sequence, %s per token; calibration: %s",
				c.peaks(cfg, m), 100*cal.Linear, 100*cal.Attention, 100*cal.Weights, 100*cal.KV,
				cal.Step, cal.Layer, cal.Seq, cal.Token, cmp.Or(cal.Source, "of unknown origin")))
		}
		for _, m := range cfg.Models {
			if m.Host.Bytes > 0 {
				add("host memory of "+m.Name, m.Host.Bytes.String()+", in "+c.opt.Systems[i].Name)
			}
		}
		if err := c.assumeDisks(cfg, hw, add); err != nil {
			return fmt.Errorf("%s: %w", c.opt.Systems[i].Name, err)
		}
		if _, err := slowStores(sys, hw); err != nil {
			return fmt.Errorf("%s: %w", c.opt.Systems[i].Name, err)
		}
		if err := eachLink(sys, func(from, to string, limit configs.Rate) error {
			l, err := hw.Link(from, to, limit)
			if err != nil {
				return fmt.Errorf("%s: %w", c.opt.Systems[i].Name, err)
			}
			add(from+" to "+to, describe(l, cfg, from, to, limit))
			return nil
		}); err != nil {
			return err
		}
	}
	if f := c.opt.Machine.Front; f != (sim.Front{}) {
		add("requests", fmt.Sprintf("%s and %s for every token of the prompt go by in front of the scheduler", f.Request, f.Token))
	}
	for _, what := range order {
		r.Assumptions = append(r.Assumptions, Assumption{strings.Join(of[what], ", "), what})
	}
	r.Assumptions = append(r.Assumptions, always[:]...)
	return nil
}

// assumeDisks writes down what the devices of overflow pools are taken for.
func (c *Comparison) assumeDisks(cfg *configs.Config, hw sim.Hardware, add func(of, what string)) error {
	const piece, depth = 1 << 18, 32
	for i, m := range cfg.Models {
		for k, d := range m.Overflow.Devices {
			disk, err := hw.Disk(d)
			if err != nil {
				return fmt.Errorf("models[%d].overflow.devices[%d] (%s): %w", i, k, d.Name, err)
			}
			source := "nobody measured it: a guess for what its path is"
			if _, ok := c.opt.Machine.Disks[d.Name]; ok {
				source = "as measured"
			} else if _, ok := c.opt.Machine.Disks[""]; ok {
				source = "as measured of another"
			}
			wear := ""
			if e := float64(disk.Endurance()); e > 0 {
				wear = ", may be written " + size3(e)
			}
			add("device "+d.Name+" of "+m.Name, fmt.Sprintf("%s, reads %s/s and writes %s/s in pieces of 256KiB%s; %s",
				size3(float64(disk.Capacity())), size3(disk.ReadRate(piece, depth)), size3(disk.WriteRate(piece, depth)), wear, source))
		}
	}
	return nil
}

// peaks describes what a model computes on.
func (c *Comparison) peaks(cfg *configs.Config, m *planner.Model) string {
	cal, ok := c.opt.Machine.Models[m.Config.Name]
	if !ok {
		cal = c.opt.Machine.Models[m.Config.Source]
	}
	kind, flops, bandwidth := "as measured", cal.FLOPS, cal.Bandwidth
	if flops == 0 || bandwidth == 0 {
		for _, d := range cfg.Devices {
			if g, err := facts.LookupGPU(d.Kind); err == nil && d.Name == m.Config.Device {
				kind, flops, bandwidth = g.Name, g.FLOPS, g.MemoryBandwidth
			}
		}
	}
	return fmt.Sprintf("%s, %sFLOP/s, %s/s", kind, metric(flops), size3(bandwidth))
}

// eachLink calls f for each way between devices that a master uses.
func eachLink(sys *planner.System, f func(from, to string, limit configs.Rate) error) error {
	both := func(far, near string, limit configs.Rate) error {
		if err := f(far, near, limit); err != nil || far == near {
			return err
		}
		return f(near, far, limit)
	}
	for _, m := range sys.Models {
		near := m.Config.Device
		for _, l := range m.Lenders {
			if err := both(l.Worker.Config.Device, near, sys.Config.Lending.LinkBudget); err != nil {
				return err
			}
		}
		if h := m.Config.Host; h.Bytes > 0 {
			if err := both(cmp.Or(h.Device, configs.HostDevice), near, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// Of the running system: the part of a lease that a store may take, and how many
// blocks leave for a lender at once. Two such batches may be under way.
const (
	storeShare = 10
	atOnce     = 2 * 64
	absurdly   = 100
)

// slowStores says over which links blocks cannot be stored while a lease lasts:
// what leaves a master's memory is dropped then. Links over which nothing ever
// arrives are an error.
func slowStores(sys *planner.System, hw sim.Hardware) (out []string, absurd error) {
	lending := sys.Config.Lending
	most := time.Duration(lending.Lease) / storeShare
	for i, m := range sys.Models {
		for _, l := range m.Lenders {
			from, to := m.Config.Device, l.Worker.Config.Device
			link, err := hw.Link(from, to, lending.LinkBudget)
			if err != nil {
				continue // reported before
			}
			bytes := atOnce * m.Geometry.FullBlockBytes()
			t := link.Time(bytes, m.Geometry.LayerBlockBytes())
			if t > absurdly*most && absurd == nil {
				absurd = fmt.Errorf("links: from %s to %s %d blocks of models[%d] (%s), %s, take %s, and lending.lease allows %s: want a faster link or a larger lending.link_budget", from, to, atOnce, i, m.Config.Name, size3(float64(bytes)), t.Round(time.Second), most)
			}
			if t > most {
				out = append(out, fmt.Sprintf("links: from %s to %s %d blocks of models[%d] (%s), %s, take %s, and lending.lease %s allows a store to take %s: much of what leaves for there is dropped; want a faster link, a larger lending.link_budget or a longer lease",
					from, to, atOnce, i, m.Config.Name, size3(float64(bytes)), t.Round(time.Millisecond), time.Duration(lending.Lease), most))
			}
		}
	}
	return out, absurd
}

// describe says how fast a link is.
func describe(l sim.Mover, cfg *configs.Config, from, to string, limit configs.Rate) string {
	const large, small = 1 << 30, 1 << 16
	whole, half := l.Time(large, large), l.Time(large/2, large/2)
	text := fmt.Sprintf("%s/s with large pieces", size3(part(large/2, (whole-half).Seconds())))
	if first := 2*half - whole; first > 0 {
		text += fmt.Sprintf(" after %s", first.Round(time.Microsecond/10))
	}
	if a, b := l.Time(1<<24, small), l.Time(1<<24, 1<<24); float64(a) > 1.01*float64(b) {
		text += fmt.Sprintf(", %s/s with pieces of 64KiB", size3(part(1<<24, a.Seconds())))
	}
	if _, ok := cfg.Link(from, to); ok {
		text += " (configuration)"
	} else {
		text += " (of the devices' kinds)"
	}
	if limit > 0 {
		text += fmt.Sprintf(", bounded by lending.link_budget %s", limit)
	}
	return text
}
