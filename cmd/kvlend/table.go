package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/internal/supervisor"
	"github.com/kvlend/kvlend/planner"
)

// systemView is what `kvlend up` prints, for people and for machines.
type systemView struct {
	Endpoint   string       `json:"endpoint"`
	GatewayPID int          `json:"gateway_pid"`
	RunDir     string       `json:"run_dir"`
	Fabric     string       `json:"fabric"`
	Emulated   bool         `json:"emulated"`
	Policy     string       `json:"unit_policy"`
	Models     []modelView  `json:"models"`
	Lenders    []lenderView `json:"lending"`
}

type modelView struct {
	Name           string `json:"name"`
	Role           string `json:"role"`
	PID            int    `json:"pid"`
	Device         string `json:"device"`
	Layers         int    `json:"layers"`
	Arena          int64  `json:"arena_bytes"`
	Block          int64  `json:"block_bytes"`
	Kernels        string `json:"kernels"`
	MaxTokens      int    `json:"max_tokens"`
	MaxTokensAlone int    `json:"max_tokens_without_lending"`
	NLSC           int    `json:"n_lsc,omitempty"`
	NRC            int    `json:"n_rc,omitempty"`
}

type lenderView struct {
	Master   string `json:"master"`
	Worker   string `json:"worker"`
	Unit     int64  `json:"unit_bytes"`
	Units    int    `json:"units"`
	Lendable int    `json:"lendable_units"`
	MEUm     int    `json:"meu_master"`
	MEUi     int    `json:"meu_worker"`
	K        int    `json:"k"`
	// Link is what loads are expected to carry, in bytes per second, and
	// LinkSource where that comes from; 0: nothing says.
	Link       float64 `json:"link_bytes_per_sec,omitempty"`
	LinkSource string  `json:"link_source,omitempty"`
}

func viewSystem(sys *planner.System, emulated bool, procs []supervisor.Process, dir string) (systemView, error) {
	v := systemView{
		RunDir: dir, Fabric: sys.Config.Fabric.Kind, Emulated: emulated,
		Policy: string(sys.Config.Lending.Unit.Policy),
	}
	byName := map[string]supervisor.Process{}
	for _, p := range procs {
		byName[p.Name] = p
		if p.Name == supervisor.GatewayName {
			v.Endpoint, v.GatewayPID = "http://"+p.Listen, p.PID
		}
	}
	for _, m := range sys.Models {
		p := byName[m.Config.Name]
		tokens, alone := m.MaxTokens()
		own, err := source.MaxContext(m.Config)
		if err != nil {
			return v, fmt.Errorf("model %s: %w", m.Config.Name, err)
		}
		tokens, alone = min(tokens, own), min(alone, own)
		v.Models = append(v.Models, modelView{
			Name: m.Config.Name, Role: m.Config.Role, PID: p.PID, Device: m.Config.Device,
			Layers: m.Geometry.Layers, Arena: m.Arena, Block: m.Geometry.FullBlockBytes(), Kernels: p.Kernels,
			MaxTokens: tokens, MaxTokensAlone: alone, NLSC: m.Capacity.NLSC, NRC: m.Capacity.NRC,
		})
		for _, l := range m.Lenders {
			w := l.Worker
			one := lenderView{
				Master: m.Config.Name, Worker: w.Config.Name, Unit: w.Unit.Bytes, Units: w.Units, Lendable: w.Lendable,
				MEUm: w.Unit.PerUnit[m.Config.Name], MEUi: w.Unit.PerUnit[w.Config.Name], K: l.Blocks,
			}
			if link, ok := sys.Config.Link(w.Config.Device, m.Config.Device); ok {
				one.Link, one.LinkSource = float64(link.Bandwidth), origin(link)
			}
			v.Lenders = append(v.Lenders, one)
		}
	}
	return v, nil
}

func printSystem(w io.Writer, sys *planner.System, emulated bool, procs []supervisor.Process, dir string, asJSON bool) error {
	v, err := viewSystem(sys, emulated, procs, dir)
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(w).Encode(v)
	}
	note := ""
	switch {
	case v.Emulated && v.Fabric == "cuda":
		note = ", EMULATED by the fake driver"
	case v.Emulated:
		note = " (links emulated)"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nkvlend is up at %s (gateway pid %d, fabric %s%s)\n\n", v.Endpoint, v.GatewayPID, v.Fabric, note)
	b.WriteString(modelTable(v))
	if len(v.Lenders) > 0 {
		fmt.Fprintf(&b, "\n\n%s\n", lenderTable(v))
	}
	fmt.Fprintf(&b, "\n  kvlend chat      talk to it\n  kvlend status    who holds whose memory\n  Ctrl-C           stop everything\n")
	_, err = io.WriteString(w, b.String())
	return err
}

// terminal reports whether a stream of a command is one that a person looks at or
// types into.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

func newTable(header ...any) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Options.SeparateRows = false
	t.Style().Format.Header = 0 // as written
	t.AppendHeader(table.Row(header))
	return t
}

func modelTable(v systemView) string {
	t := newTable("model", "role", "pid", "device", "kernels", "arena", "block", "N_LSC", "N_RC", "longest context", "without lending")
	for _, m := range v.Models {
		lsc, rc := "-", "-"
		if m.Role == configs.RoleMaster {
			lsc, rc = fmt.Sprint(m.NLSC), fmt.Sprint(m.NRC)
		}
		t.AppendRow(table.Row{m.Name, m.Role, m.PID, m.Device, m.Kernels, configs.Bytes(m.Arena), configs.Bytes(m.Block),
			lsc, rc, fmt.Sprintf("%d tokens", m.MaxTokens), fmt.Sprintf("%d tokens", m.MaxTokensAlone)})
	}
	return t.Render()
}

func lenderTable(v systemView) string {
	header := []any{"master", "borrows from", "unit policy", "unit", "units (lendable)", "MEU_m:MEU_i", "K_i"}
	linked := slices.ContainsFunc(v.Lenders, func(l lenderView) bool { return l.Link > 0 })
	if linked {
		header = append(header, "link")
	}
	t := newTable(header...)
	for _, l := range v.Lenders {
		row := table.Row{l.Master, l.Worker, v.Policy, configs.Bytes(l.Unit), fmt.Sprintf("%d (%d)", l.Units, l.Lendable),
			fmt.Sprintf("%d:%d", l.MEUm, l.MEUi), fmt.Sprintf("%d blocks", l.K)}
		if linked {
			row = append(row, linkText(l.Link, l.LinkSource))
		}
		t.AppendRow(row)
	}
	return t.Render()
}
