package main

import (
	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/planner/validate"
)

func simulateValidateCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "validate",
		Short: "How far the simulation is from what others measured",
		Long: `Compares what simulations rest on with figures that others measured on GPUs: the
SwiftCache paper's Table 1 and Fig. 1, the direction and size of its Fig. 7, and the
request logs of three vLLM servers. Everything that it needs is built in. Each
comparison lists its assumptions.

Exit codes: 0 within all bars, 1 beyond one.`,
		Example: `  kvlend simulate validate
  kvlend simulate validate --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := validate.Run(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				err = encodeIndented(cmd.OutOrStdout(), r)
			} else {
				err = r.WriteText(cmd.OutOrStdout())
			}
			if err != nil {
				return err
			}
			return r.Err()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
