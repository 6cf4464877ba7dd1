package main

import (
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/bench/overlap"
)

func benchOverlapCmd() *cobra.Command {
	var plot string
	var asJSON bool
	opt := overlap.Options{}
	c := &cobra.Command{
		Use:   "overlap",
		Short: "How much of the loads hides behind computation, against what could",
		Long: `The engine computes new tokens behind a history that comes from a lender layer by
layer, streamed through one or two buffers, promoted, or half and half. Links are
emulated, at speeds that stand to this machine's engine as an accelerator's do to
it; the engine has one thread, since an emulated link copies with a core.`,
		Example: "  kvlend bench overlap --plot overlap.svg\n  kvlend bench overlap --history 1024 --new 64 --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format := strings.TrimPrefix(filepath.Ext(plot), ".")
			if plot != "" && format != "svg" && format != "png" {
				return usage("--plot is %q: the name must end in .svg or .png", plot)
			}
			var r *overlap.Result
			err := busy("overlap", func(progress func(string)) (err error) {
				opt.Progress = progress
				r, err = overlap.Run(cmd.Context(), opt)
				return err
			})
			if err != nil {
				return err
			}
			if plot != "" {
				if err := writePlot(plot, func(w io.Writer) error { return r.WritePlot(w, format) }); err != nil {
					return err
				}
			}
			return show(cmd, r, asJSON)
		},
	}
	f := c.Flags()
	f.IntSliceVar(&opt.History, "history", []int{1024, 2048, 4096}, "tokens of history, multiples of 16")
	f.IntSliceVar(&opt.New, "new", []int{16, 64, 256}, "new tokens")
	f.IntVar(&opt.Rounds, "rounds", 3, "rounds; medians are reported")
	f.IntVar(&opt.Tries, "tries", 5, "measurements of a pass that has to wait for a core, in each round")
	f.StringVar(&plot, "plot", "", "also draw a plot: a file name that ends in .svg or .png")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(benchDecodeCmd())
	return c
}

func benchDecodeCmd() *cobra.Command {
	var plot string
	var asJSON bool
	opt := overlap.DecodeOptions{}
	c := &cobra.Command{
		Use:   "decode",
		Short: "Time per output token where history is at home, streamed in every step, or half and half",
		Long: `Batches decode through the real scheduler and the real layer stream cache: with
all history at home, with all of it streamed in every step through one or two
buffers, and half and half, with and without the scheduler's turns. Links are
emulated, as in kvlend bench overlap.`,
		Example: "  kvlend bench overlap decode --plot decode.svg\n  kvlend bench overlap decode --history 1024 --batch 4 --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format := strings.TrimPrefix(filepath.Ext(plot), ".")
			if plot != "" && format != "svg" && format != "png" {
				return usage("--plot is %q: the name must end in .svg or .png", plot)
			}
			var r *overlap.DecodeResult
			err := busy("decode", func(progress func(string)) (err error) {
				opt.Progress = progress
				r, err = overlap.RunDecode(cmd.Context(), opt)
				return err
			})
			if err != nil {
				return err
			}
			if plot != "" {
				if err := writePlot(plot, func(w io.Writer) error { return r.WritePlot(w, format) }); err != nil {
					return err
				}
			}
			return show(cmd, r, asJSON)
		},
	}
	f := c.Flags()
	f.IntSliceVar(&opt.History, "history", []int{256, 1024, 2048}, "tokens of history of each sequence, multiples of 16")
	f.IntSliceVar(&opt.Batch, "batch", []int{1, 2, 4, 8}, "sequences")
	f.IntVar(&opt.Tokens, "tokens", 16, "tokens of each sequence in a measurement, at least")
	f.IntVar(&opt.Rounds, "rounds", 3, "rounds; medians are reported")
	f.IntVar(&opt.Tries, "tries", 3, "measurements of a case that has to wait for a core, in each round")
	f.StringVar(&plot, "plot", "", "also draw a plot: a file name that ends in .svg or .png")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
