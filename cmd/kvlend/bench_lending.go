package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/bench/lending"
)

func benchLendingCmd() *cobra.Command {
	var asJSON bool
	opt := lending.Options{}
	c := &cobra.Command{
		Use:   "lending",
		Short: "How long a grant and a reclaim take, beside a round trip of the same link",
		Long: `Two lenders and a borrower over real sockets and real shared memory: grants,
reclaims of idle units, of units with cold blocks (which move to the other
lender) and of units in use by a running step, each with few and many units held.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r *lending.Result
			err := busy("lending", func(progress func(string)) (err error) {
				opt.Progress = progress
				r, err = lending.Run(cmd.Context(), opt)
				return err
			})
			if err != nil {
				return err
			}
			return show(cmd, r, asJSON)
		},
	}
	f := c.Flags()
	f.IntSliceVar(&opt.Held, "held", []int{16, 256, 4096}, "units held of each lender")
	f.IntVar(&opt.Units, "units", 4, "units that change hands at a time")
	f.IntVar(&opt.Rounds, "rounds", 300, "rounds of each operation")
	f.DurationVar(&opt.Step, "step", 20*time.Millisecond, "computing time of a step")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
