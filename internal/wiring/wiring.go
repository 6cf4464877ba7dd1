// Package wiring works out the links between the devices of a configuration:
// as measured, as the GPUs' driver describes them, or as the configuration says.
// Masters ask the lenders with the fastest links first.
//
// The process that starts a system does this once, and hands the result to the
// others as the links of their configuration, so that all agree.
package wiring

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/nvlink/topology"
)

// Wiring is what was worked out.
type Wiring struct {
	// Links between devices of the configuration, each with its source.
	Links []topology.Link
	// GPUs is the index of each device's GPU in the inventory, where it is known.
	GPUs map[string]int
	// UUIDs of those GPUs: indices mean nothing to whoever numbers them in
	// another order.
	UUIDs map[string]string
	// Notes say what was expected and not found.
	Notes []string
	// Topology has the same links.
	Topology *topology.Topology
}

// Reader describes the GPUs of this machine (nvml.Read).
type Reader func(context.Context) (*topology.Inventory, error)

// Load reads the sources that the configuration names and works out the links.
// With fabric.topology "nvml" the driver must answer; with "auto" it may be
// missing, and a note says so. list says which GPUs there are, and may be nil:
// measured links are of UUIDs, which are known without NVML, too.
func Load(ctx context.Context, cfg *configs.Config, read, list Reader) (*Wiring, error) {
	var inv *topology.Inventory
	var notes []string
	if AsksDriver(cfg) {
		var err error
		if inv, err = read(ctx); err != nil {
			if cfg.Fabric.Topology == configs.TopologyNVML {
				return nil, fmt.Errorf("fabric.topology: %q, and the driver does not describe the GPUs: %w", configs.TopologyNVML, err)
			}
			notes = append(notes, fmt.Sprintf("fabric.topology: the driver does not describe the GPUs (%v): only the links of the configuration count", err))
		}
	}
	var measured *topology.Measured
	if cfg.Fabric.Measured != "" {
		var err error
		if measured, err = topology.LoadMeasured(cfg.Fabric.Measured); err != nil {
			return nil, fmt.Errorf("fabric.measured: %w", err)
		}
	}
	if inv == nil && measured != nil && cfg.Fabric.Kind == "cuda" && list != nil {
		var err error
		if inv, err = list(ctx); err != nil {
			notes = append(notes, fmt.Sprintf("fabric.measured: which GPUs its UUIDs are is not known: %v", err))
		}
	}
	w, err := Resolve(cfg, inv, measured)
	if err != nil {
		return nil, err
	}
	w.Notes = append(notes, w.Notes...)
	return w, nil
}

// AsksDriver reports whether the driver's description of the GPUs counts.
func AsksDriver(cfg *configs.Config) bool {
	return cfg.Fabric.Kind == "cuda" && cfg.Fabric.Topology != configs.TopologyConfig
}

// Resolve works out the links from what is known: the inventory and the
// measured links may be nil.
func Resolve(cfg *configs.Config, inv *topology.Inventory, measured *topology.Measured) (*Wiring, error) {
	w := &Wiring{GPUs: map[string]int{}, UUIDs: map[string]string{}}
	names := make([]string, len(cfg.Devices))
	for i, d := range cfg.Devices {
		names[i] = d.Name
	}
	if inv != nil {
		if err := w.findGPUs(cfg, inv); err != nil {
			return nil, err
		}
	}
	lists := [][]topology.Link{w.matched(cfg, inv, measured), configLinks(cfg)}
	if inv != nil {
		nominal := inv.Links(names, w.GPUs)
		if cfg.Fabric.Topology == configs.TopologyNVML {
			lists[1] = elsewhere(lists[1], w.GPUs)
		}
		lists = append(lists, nominal)
	}
	w.Links = topology.Combine(lists...)
	var err error
	if w.Topology, err = topology.New(names, w.Links); err != nil {
		return nil, fmt.Errorf("links: %w", err)
	}
	return w, nil
}

// findGPUs finds the GPU of each device. That one that holds an arena has none
// is an error only if the driver has the last word.
func (w *Wiring) findGPUs(cfg *configs.Config, inv *topology.Inventory) error {
	var errs []error
	for i, d := range cfg.Devices {
		selector := d.Selector()
		if selector == "" {
			continue // the host, or nothing that NVML knows
		}
		g, err := inv.Find(selector)
		if err == nil && g.Fault != "" {
			err = fmt.Errorf("GPU %d is not usable: %s", g.Index, g.Fault)
		}
		if err != nil {
			err = fmt.Errorf("devices[%d] (%s): %w", i, d.Name, err)
			errs = append(errs, err)
			w.Notes = append(w.Notes, err.Error())
			continue
		}
		w.GPUs[d.Name] = g.Index
		if g.UUID != "" {
			w.UUIDs[d.Name] = g.UUID
		}
	}
	if cfg.Fabric.Topology == configs.TopologyNVML {
		return errors.Join(errs...)
	}
	return nil
}

// matched are the measured links between devices of the configuration, which
// they name, or whose GPUs they name.
func (w *Wiring) matched(cfg *configs.Config, inv *topology.Inventory, m *topology.Measured) []topology.Link {
	if m == nil {
		return nil
	}
	if m.Fabric != "" && m.Fabric != cfg.Fabric.Kind {
		w.Notes = append(w.Notes, fmt.Sprintf("fabric.measured: %s holds links of the fabric %q, not %q: it is not used", cfg.Fabric.Measured, m.Fabric, cfg.Fabric.Kind))
		return nil
	}
	devices := map[string][]string{} // by how they are named in the file
	for _, d := range cfg.Devices {
		devices[d.Name] = append(devices[d.Name], d.Name)
		uuid := d.GPU
		if index, ok := w.GPUs[d.Name]; ok {
			uuid = inv.GPU(index).UUID
		}
		if uuid != "" && uuid != d.Name {
			devices[uuid] = append(devices[uuid], d.Name)
		}
	}
	var out []topology.Link
	strange := 0
	for _, l := range m.Links {
		if len(devices[l.From]) == 0 || len(devices[l.To]) == 0 {
			strange++
		}
		for _, from := range devices[l.From] {
			for _, to := range devices[l.To] {
				if from != to {
					out = append(out, l.Link(from, to))
				}
			}
		}
	}
	if strange > 0 {
		w.Notes = append(w.Notes, fmt.Sprintf("fabric.measured: %d of %d links in %s are of GPUs or devices that the configuration does not have", strange, len(m.Links), cfg.Fabric.Measured))
	}
	return out
}

// configLinks are the links of the configuration, one for each direction.
func configLinks(cfg *configs.Config) []topology.Link {
	var out []topology.Link
	for _, l := range cfg.Links {
		source := topology.Source(l.Origin)
		if source == "" {
			source = topology.FromConfig
		}
		one := topology.Link{From: l.From, To: l.To, BytesPerSec: float64(l.Bandwidth), Latency: l.Latency.D(), Source: source}
		out = append(out, one)
		if !l.OneWay {
			one.From, one.To = l.To, l.From
			out = append(out, one)
		}
	}
	return out
}

// elsewhere are the links that do not join two GPUs, of which NVML knows nothing.
func elsewhere(links []topology.Link, gpus map[string]int) []topology.Link {
	var out []topology.Link
	for _, l := range links {
		_, from := gpus[l.From]
		_, to := gpus[l.To]
		if !from || !to {
			out = append(out, l)
		}
	}
	return out
}

// Apply returns the configuration with these links instead of its own, and with
// the UUIDs of its GPUs. Where nothing would change it comes back as it is.
func (w *Wiring) Apply(cfg *configs.Config) *configs.Config {
	own := true
	for _, l := range w.Links {
		own = own && l.Source == topology.FromConfig
	}
	if own && len(w.UUIDs) == 0 {
		return cfg
	}
	c := *cfg
	c.Devices = slices.Clone(cfg.Devices)
	for i := range c.Devices {
		if uuid := w.UUIDs[c.Devices[i].Name]; uuid != "" {
			c.Devices[i].GPU = uuid
		}
	}
	if own {
		return &c
	}
	c.Links = make([]configs.Link, 0, len(w.Links))
	for _, l := range w.Links {
		c.Links = append(c.Links, configs.Link{
			From: l.From, To: l.To, OneWay: true, Origin: string(l.Source),
			Bandwidth: configs.Rate(math.Round(max(1, l.BytesPerSec))), Latency: configs.Duration(l.Latency),
		})
	}
	return &c
}
