package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/bench/lending"
	"github.com/kvlend/kvlend/configs"
)

func benchLendingCmd() *cobra.Command {
	var asJSON bool
	opt := lending.Options{}
	var fabric func() (configs.Fabric, error)
	c := &cobra.Command{
		Use:   "lending",
		Short: "How long a grant and a reclaim take, beside a round trip of the same link",
		Long: `Two lenders and a borrower over real sockets and real shared memory: grants,
grants until the first bytes have been read, reclaims of idle units, of units with
cold blocks (which move to the other lender) and of units in use by a running step,
each with few and many units held.`,
		Example: `  kvlend bench lending
  kvlend bench lending --held 16 --rounds 1000
  kvlend bench lending --fabric cuda             # arenas on a GPU`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r *lending.Result
			var err error
			if opt.Fabric, err = fabric(); err != nil {
				return err
			}
			if opt.Units == 0 || opt.Rounds == 0 || opt.Step == 0 {
				return usage("--units, --rounds and --step are %d, %d and %v: want more than 0", opt.Units, opt.Rounds, opt.Step)
			}
			if err := opt.Validate(); err != nil {
				return &codeError{exitUsage, err}
			}
			err = busy("lending", func(progress func(string)) (err error) {
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
	fabric = fabricFlags(c)
	f := c.Flags()
	f.IntSliceVar(&opt.Held, "held", []int{16, 256, 4096}, "units held of each lender")
	f.IntVar(&opt.Units, "units", 4, "units that change hands at a time")
	f.IntVar(&opt.Rounds, "rounds", 300, "rounds of each operation")
	f.DurationVar(&opt.Step, "step", 20*time.Millisecond, "computing time of a step")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
