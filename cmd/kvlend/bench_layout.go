package main

import (
	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/bench/enginebench"
)

func benchLayoutCmd() *cobra.Command {
	var models string
	var asJSON bool
	opt := enginebench.LayoutOptions{}
	c := &cobra.Command{
		Use:   "layout",
		Short: "Attention over a block-major cache against a layer-major one",
		Long: `A cache that lends must be block-major: all layers of a block lie together. This is
what that costs the owner's own attention, over the same memory with the same
kernels, in the order of allocation and shuffled.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if opt.Models, err = benchModels(models); err != nil {
				return err
			}
			var r *enginebench.LayoutResult
			err = busy("layout", func(progress func(string)) error {
				opt.Progress = progress
				r, err = enginebench.CompareLayouts(cmd.Context(), opt)
				return err
			})
			if err != nil {
				return err
			}
			return show(cmd, r, asJSON)
		},
	}
	f := c.Flags()
	f.StringVar(&models, "models", "all", "all, builtin, or Qwen3-0.6B (its shape)")
	f.IntVar(&opt.Threads, "threads", 0, "threads; 0: all cores")
	f.IntVar(&opt.Tokens, "tokens", 4096, "tokens of KV in the cache")
	f.IntVar(&opt.Rounds, "rounds", 15, "rounds; medians are reported")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
