package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/fabrics"
	"github.com/kvlend/kvlend/internal/wiring"
	"github.com/kvlend/kvlend/nvlink/nvml"
	"github.com/kvlend/kvlend/nvlink/topology"
)

// driverTime is how long the GPUs' driver may take to describe them.
const driverTime = 30 * time.Second

// linked works out the links between devices, once for all processes of a system:
// they get them as the links of their configuration.
func linked(ctx context.Context, cfg *configs.Config, log hclog.Logger) (*configs.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, driverTime)
	defer cancel()
	w, err := wiring.Load(ctx, cfg, nvml.Read, func(context.Context) (*topology.Inventory, error) { return fabrics.GPUs(cfg.Fabric.Driver) })
	if err != nil {
		return nil, err
	}
	for _, n := range w.Notes {
		log.Warn("links", "problem", n)
	}
	return w.Apply(cfg), nil
}

// origin is where a link's bandwidth comes from.
func origin(l configs.Link) string {
	if l.Origin == "" {
		return string(topology.FromConfig)
	}
	return l.Origin
}

func linkText(bytesPerSec float64, source string) string {
	if bytesPerSec <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.3g GB/s (%s)", bytesPerSec/1e9, source)
}

// adminLinks are the links of a configuration, for its status.
func adminLinks(cfg *configs.Config) []api.AdminLink {
	var out []api.AdminLink
	for _, l := range cfg.Links {
		one := api.AdminLink{From: l.From, To: l.To, BytesPerSec: int64(l.Bandwidth), Source: origin(l)}
		out = append(out, one)
		if !l.OneWay {
			one.From, one.To = l.To, l.From
			out = append(out, one)
		}
	}
	return out
}

// linkTable shows the links that rank lenders; nothing where none is known.
func linkTable(st *api.AdminStatus) string {
	if len(st.Links) == 0 {
		return ""
	}
	t := newTable("link from", "to", "bandwidth", "as")
	for _, l := range st.Links {
		t.AppendRow(table.Row{l.From, l.To, fmt.Sprintf("%.3g GB/s", float64(l.BytesPerSec)/1e9), l.Source})
	}
	return "\n" + t.Render() + "\n"
}
