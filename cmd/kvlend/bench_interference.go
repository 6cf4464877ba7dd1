package main

import (
	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/bench/interference"
)

func benchInterferenceCmd() *cobra.Command {
	var asJSON bool
	var lentMiB int64
	opt := interference.Options{}
	c := &cobra.Command{
		Use:   "interference",
		Short: "A worker's own requests alone, and while a master saturates its link",
		Long: `A worker serves requests of its own on one core, alone, while a borrower on another
core copies to and from its arena as fast as the machine can, and under a budget
(lending.link_budget). All that can be spared is lent in every mode.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opt.Lent = lentMiB << 20
			var r *interference.Result
			err := busy("interference", func(progress func(string)) (err error) {
				opt.Progress = progress
				r, err = interference.Run(cmd.Context(), opt)
				return err
			})
			if err != nil {
				return err
			}
			return show(cmd, r, asJSON)
		},
	}
	f := c.Flags()
	f.StringVar(&opt.Model, "model", "Qwen3-0.6B", "Qwen3-0.6B (its shape, random weights) or a built-in model")
	f.IntSliceVar(&opt.Cores, "cores", []int{0, 1}, "core of the worker and core of the borrower")
	f.IntVar(&opt.Rounds, "rounds", 8, "rounds; modes are interleaved")
	f.IntVar(&opt.Requests, "requests", 2, "requests of each mode in a round")
	f.IntVar(&opt.Prompt, "prompt", 128, "tokens of a prompt")
	f.IntVar(&opt.Tokens, "tokens", 16, "tokens drawn per request")
	f.Int64Var(&lentMiB, "lent", 256, "MiB that are lent")
	f.Float64Var(&opt.Budget, "budget", 0.1, "the budget, as a share of the memory bandwidth of all cores")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
