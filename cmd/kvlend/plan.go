package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/planner/facts"
	"github.com/kvlend/kvlend/planner/plan"
)

// planFlags are the flags of kvlend plan.
type planFlags struct {
	config, output   string
	svg, html        string
	sweep            []string
	recommend, paper bool
	list, asJSON     bool
	reserve          string
}

// errImpossible is the result of a plan that cannot work: exit code 1.
var errImpossible = errors.New("the configuration cannot work as it is")

func planCmd() *cobra.Command {
	var f planFlags
	c := &cobra.Command{
		Use:   "plan",
		Short: "Tell what a configuration will hold, lend and stream, before anything runs",
		Long: `What fits on the devices, what each worker can lend to each master under every unit
policy, the longest contexts with and without lending, whether links hide transfers,
and warnings. Nothing is started, and no weights and no GPU are needed: a model may be
catalog:NAME and a device's kind the name of a GPU (see --list). Without -c it plans
the built-in default.

Exit codes: 0 it can work, 1 something does not fit or is impossible, 2 wrong usage
or configuration. docs/planning.md explains every figure, estimate and warning.`,
		Example: `  kvlend plan -c server.yaml
  kvlend plan -c server.yaml --json | jq '.findings[]'
  kvlend plan -c server.yaml --sweep block=16,32,64 --sweep policy=lcm,layer-lcm --svg sweep.svg
  kvlend plan -c server.yaml --sweep block=16,16/48 --sweep share=25%,50%,75% --sweep buffers=1,2
  kvlend plan -c server.yaml --recommend > better.yaml
  kvlend plan --paper                  # SwiftCache's Fig. 9, and what it takes to get it
  kvlend plan --list                   # GPUs and models that are known`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runPlan(cmd, &f) },
	}
	fl := c.Flags()
	fl.StringVarP(&f.config, "config", "c", "", "configuration file, - for standard input; default: the built-in default")
	fl.StringArrayVar(&f.sweep, "sweep", nil, "vary a setting, AXIS=VALUE,VALUE,...; repeat for combinations. Axes: "+strings.Join(plan.AxisNames(), ", "))
	fl.BoolVar(&f.recommend, "recommend", false, "print a changed configuration; each change has its reason as a comment")
	fl.BoolVar(&f.paper, "paper", false, "print SwiftCache's Fig. 9 under several assumptions")
	fl.BoolVar(&f.list, "list", false, "list the GPUs and models that are known by name")
	fl.StringVar(&f.reserve, "reserve", configs.Bytes(plan.DefaultReserve).String(), "memory of each process on a GPU beside weights, activations and arena")
	fl.StringVar(&f.svg, "svg", "", "also draw a plot into this file")
	fl.StringVar(&f.html, "html", "", "also write a report with plots into this file, which opens offline")
	fl.BoolVar(&f.asJSON, "json", false, "print JSON")
	c.MarkFlagsMutuallyExclusive("sweep", "recommend", "paper", "list")
	return c
}

// planReport is what every part of kvlend plan can print.
type planReport interface {
	WriteText(w io.Writer) error
	WriteJSON(w io.Writer) error
}

func runPlan(cmd *cobra.Command, f *planFlags) error {
	if (f.svg != "" || f.html != "") && (f.recommend || f.list || f.paper) {
		return usage("--svg and --html go with a plan or a --sweep")
	}
	if ext := filepath.Ext(f.svg); f.svg != "" && ext != ".svg" && ext != ".png" {
		return usage("--svg is %q: the name must end in .svg or .png", f.svg)
	}
	switch {
	case f.list:
		return planList(cmd, f)
	case f.paper:
		r, err := plan.NewFig9()
		if err != nil {
			return err
		}
		return f.print(cmd, r)
	}
	var reserve configs.Bytes
	if err := reserve.UnmarshalText([]byte(f.reserve)); err != nil {
		return usage("--reserve is %q: %v; want a size such as 2GiB, or 0B", f.reserve, err)
	}
	text, name, err := planText(cmd, f.config)
	if err != nil {
		return err
	}
	cfg, err := configs.Parse(text, name)
	if err == nil {
		err = cfg.CheckGeometry(source.Geometry)
	}
	if err != nil {
		return &codeError{exitUsage, err}
	}
	opt := plan.Options{Find: source.Geometry, File: name, Reserve: cmp.Or(int64(reserve), -1)}
	switch {
	case f.recommend:
		return f.runRecommend(cmd, text, name, opt)
	case len(f.sweep) > 0:
		return f.runSweep(cmd, cfg, opt)
	}
	p, err := plan.New(cfg, opt)
	if err != nil {
		return &codeError{exitUsage, err}
	}
	if err := errors.Join(f.print(cmd, p), f.draw(p)); err != nil {
		return err
	}
	if !p.Fits {
		return errImpossible
	}
	return nil
}

// planText is the configuration's text, since --recommend edits it.
func planText(cmd *cobra.Command, path string) (text []byte, name string, err error) {
	switch path {
	case "":
		text, err = configs.Example(configs.DefaultName)
		return text, configs.DefaultName, err
	case "-":
		text, err = io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxPlanText))
		name = "stdin"
	default:
		text, err = readLimited(path)
		name = path
	}
	if err != nil {
		return nil, "", usage("config: %v", err)
	}
	return text, name, nil
}

// maxPlanText is more than configs.Parse accepts.
const maxPlanText = 2 << 20

func readLimited(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxPlanText))
}

func (f *planFlags) print(cmd *cobra.Command, r planReport) error {
	if f.asJSON {
		return r.WriteJSON(cmd.OutOrStdout())
	}
	return r.WriteText(cmd.OutOrStdout())
}

func (f *planFlags) runRecommend(cmd *cobra.Command, text []byte, name string, opt plan.Options) error {
	r, err := plan.Recommend(text, name, opt)
	if err != nil {
		return &codeError{exitUsage, err}
	}
	if err := f.print(cmd, r); err != nil {
		return err
	}
	if !r.After.Fits {
		return errors.New("no change was found that makes the configuration work; see the remaining errors")
	}
	return nil
}

func (f *planFlags) runSweep(cmd *cobra.Command, cfg *configs.Config, opt plan.Options) error {
	var axes []plan.Axis
	for _, s := range f.sweep {
		a, err := plan.ParseAxis(s)
		if err != nil {
			return &codeError{exitUsage, err}
		}
		axes = append(axes, a)
	}
	r, err := plan.Sweep(cfg, axes, opt)
	if err != nil {
		return &codeError{exitUsage, err}
	}
	if err := errors.Join(f.print(cmd, r), f.draw(r)); err != nil {
		return err
	}
	if !r.Possible() {
		return errors.New("no combination of the sweep can work")
	}
	return nil
}

// drawing is what can be drawn.
type drawing interface {
	WritePlot(w io.Writer, format string) error
	WriteHTML(w io.Writer) error
}

func (f *planFlags) draw(d drawing) error {
	if f.svg != "" {
		format := strings.TrimPrefix(filepath.Ext(f.svg), ".")
		if err := writePlot(f.svg, func(w io.Writer) error { return d.WritePlot(w, format) }); err != nil {
			return err
		}
	}
	if f.html != "" {
		return writePlot(f.html, d.WriteHTML)
	}
	return nil
}

func planList(cmd *cobra.Command, f *planFlags) error {
	if f.asJSON {
		return encodeIndented(cmd.OutOrStdout(), map[string]any{"gpus": facts.GPUs(), "models": facts.Models()})
	}
	t := newTable("GPU (kind of a device)", "memory", "bandwidth", "16-bit TFLOPS", "NVLink, each direction", "slot")
	for _, g := range facts.GPUs() {
		nvlink := "-"
		if g.NVLink > 0 {
			nvlink = fmt.Sprintf("%.0f GB/s", g.NVLink/1e9)
		}
		t.AppendRow([]any{g.Name, fmt.Sprintf("%d GB", g.Memory/1e9), fmt.Sprintf("%.3g TB/s", g.MemoryBandwidth/1e12), fmt.Sprintf("%g", g.FLOPS/1e12), nvlink, "PCIe " + g.PCIe})
	}
	m := newTable("model (source: catalog:NAME)", "layers", "KV heads", "head dim", "parameters", "trained for", "note")
	for _, x := range facts.Models() {
		m.AppendRow([]any{x.Name, x.Layers, x.KVHeads, x.HeadDim, fmt.Sprintf("%.2f billion", float64(x.Params)/1e9), fmt.Sprintf("%d tokens", x.MaxContext), x.Note})
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n\n%s\n", t.Render(), m.Render())
	return err
}
