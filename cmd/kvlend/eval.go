package main

import "github.com/spf13/cobra"

func evalCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "eval",
		Short: "Measure what models answer, under any configuration",
		Example: `  kvlend eval recall                  # what the built-in model remembers of a dialogue
  kvlend eval recall -c my.yaml       # and under another configuration`,
	}
	c.AddCommand(evalRecallCmd())
	return c
}
