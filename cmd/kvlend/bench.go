package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/kvlend/kvlend/bench/copybw"
	"github.com/kvlend/kvlend/bench/enginebench"
	"github.com/kvlend/kvlend/bench/resize"
	"github.com/kvlend/kvlend/engine"
)

func benchCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure the engine, the fabric and the elastic cache on this machine",
		Long: `Each benchmark prints ratios against a baseline that it measures in the same run,
interleaved, as medians: machines are noisy.`,
		Example: `  kvlend bench engine                     # prefill and decode against the roofline; 4 GB, minutes
  kvlend bench engine --models builtin    # only the built-in models; seconds
  kvlend bench fabric                     # copies against plain memory copy
  kvlend bench resize --plot resize.svg   # block-major against layer-major`,
	}
	c.AddCommand(benchEngineCmd(), benchFabricCmd(), benchResizeCmd())
	c.AddCommand(benchChaosCmd(), benchLendingCmd(), benchServeCmd(), benchOverlapCmd(), benchLayoutCmd(), benchInterferenceCmd(), benchDiskCmd(), benchSimulateCmd())
	return c
}

// busy shows what a long command is doing, on a terminal only.
func busy(title string, f func(progress func(string)) error) error {
	if !terminal(os.Stderr) {
		return f(func(string) {})
	}
	var doing atomic.Value
	doing.Store("")
	p := mpb.New(mpb.WithOutput(os.Stderr))
	bar := p.New(0, mpb.SpinnerStyle(), mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(title+" ")),
		mpb.AppendDecorators(decor.Elapsed(decor.ET_STYLE_GO), decor.Any(func(decor.Statistics) string {
			return "  " + doing.Load().(string)
		})))
	err := f(func(s string) { doing.Store(s) })
	bar.Abort(true)
	p.Wait()
	return err
}

// result is what every benchmark can print.
type result interface {
	WriteTable(io.Writer) error
	WriteJSON(io.Writer) error
}

func show(cmd *cobra.Command, r result, asJSON bool) error {
	if asJSON {
		return r.WriteJSON(cmd.OutOrStdout())
	}
	return r.WriteTable(cmd.OutOrStdout())
}

func benchEngineCmd() *cobra.Command {
	var models string
	var asJSON bool
	opt := enginebench.Options{}
	c := &cobra.Command{
		Use:   "engine",
		Short: "Prefill and decode as a share of this machine's roofline",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if opt.Models, err = benchModels(models); err != nil {
				return err
			}
			var r *enginebench.Result
			err = busy("engine", func(progress func(string)) error {
				opt.Progress = progress
				r, err = enginebench.Run(cmd.Context(), opt)
				return err
			})
			if err != nil {
				return err
			}
			return show(cmd, r, asJSON)
		},
	}
	f := c.Flags()
	f.StringVar(&models, "models", "all", "all, builtin, or Qwen3-0.6B (its shape, random weights)")
	f.IntVar(&opt.Rounds, "rounds", 3, "rounds; medians are reported")
	f.IntVar(&opt.Threads, "threads", 0, "threads; 0: all cores")
	f.StringVar(&opt.ISA, "isa", "", "instruction set: avx512, avx2 or go; empty: the best")
	f.IntSliceVar(&opt.Prefill, "prefill", []int{128, 512, 2048}, "prompt lengths")
	f.IntSliceVar(&opt.Depths, "depths", []int{0, 2048, 8192}, "depths of decode")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func benchModels(which string) ([]*engine.Config, error) {
	all, err := enginebench.Default()
	if err != nil {
		return nil, err
	}
	var out []*engine.Config
	for _, m := range all {
		big := m.Name == enginebench.Qwen3Small().Name
		if which == "all" || (which == "builtin") != big && (which == "builtin" || strings.EqualFold(which, m.Name)) {
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		return nil, usage("--models is %q: want all, builtin or %s", which, enginebench.Qwen3Small().Name)
	}
	return out, nil
}

func benchFabricCmd() *cobra.Command {
	var asJSON bool
	var kind string
	var onGPUs func(cmd *cobra.Command, rounds int, asJSON bool) error
	cfg := copybw.Config{}
	c := &cobra.Command{
		Use:   "fabric",
		Short: "A fabric's copies as a share of plain memory copy, or of one long copy between GPUs",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch kind {
			case "shm":
			case "cuda":
				return onGPUs(cmd, cfg.Rounds, asJSON)
			default:
				return usage("--fabric is %q: want shm or cuda", kind)
			}
			var r *copybw.Report
			err := busy("fabric", func(func(string)) (err error) {
				r, err = copybw.Run(cmd.Context(), cfg)
				return err
			})
			if err != nil {
				return err
			}
			return show(cmd, r, asJSON)
		},
	}
	c.Flags().StringVar(&kind, "fabric", "shm", "shm, or cuda in builds for GPUs")
	c.Flags().IntVar(&cfg.Rounds, "rounds", 9, "rounds; medians are reported")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	onGPUs = benchGPUs(c)
	return c
}

// resizeResult gives resize's functions the form of the others.
type resizeResult struct{ resize.Result }

func (r resizeResult) WriteTable(w io.Writer) error { return resize.RenderTable(w, r.Result) }
func (r resizeResult) WriteJSON(w io.Writer) error  { return resize.RenderJSON(w, r.Result) }

func benchResizeCmd() *cobra.Command {
	var plot string
	var asJSON bool
	opt := resize.DefaultOptions()
	c := &cobra.Command{
		Use:   "resize",
		Short: "Growing and shrinking: block-major against a layer-major cache that moves its bytes",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opt.Validate(); err != nil {
				return &codeError{exitUsage, err}
			}
			format := strings.TrimPrefix(filepath.Ext(plot), ".")
			if plot != "" && format != "svg" && format != "png" {
				return usage("--plot is %q: the name must end in .svg or .png", plot)
			}
			var r resize.Result
			err := busy("resize", func(func(string)) (err error) {
				r, err = resize.Run(cmd.Context(), opt)
				return err
			})
			if err != nil {
				return err
			}
			if plot != "" {
				if err := writePlot(plot, func(w io.Writer) error { return resize.RenderPlot(w, r, format) }); err != nil {
					return err
				}
			}
			return show(cmd, resizeResult{r}, asJSON)
		},
	}
	f := c.Flags()
	f.IntSliceVar(&opt.Layers, "layers", opt.Layers, "layers of the worker's model")
	f.IntSliceVar(&opt.Blocks, "blocks", opt.Blocks, "blocks in the worker's cache")
	f.IntVar(&opt.Rounds, "rounds", opt.Rounds, "rounds; medians are reported")
	f.StringVar(&plot, "plot", "", "also draw a plot: a file name that ends in .svg or .png")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func writePlot(path string, draw func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	if err := draw(f); err != nil {
		f.Close()
		return fmt.Errorf("plot: %w", err)
	}
	return f.Close()
}
