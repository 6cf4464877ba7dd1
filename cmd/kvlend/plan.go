package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/planner/plan"
)

func planCmd() *cobra.Command {
	var config string
	var asJSON bool
	c := &cobra.Command{
		Use:  "plan",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(config)
			if err != nil {
				return err
			}
			p, err := plan.New(cfg, plan.Options{Find: source.Geometry, File: config})
			if err != nil {
				return &codeError{exitUsage, err}
			}
			if asJSON {
				err = p.WriteJSON(cmd.OutOrStdout())
			} else {
				err = p.WriteText(cmd.OutOrStdout())
			}
			if err == nil && !p.Fits {
				err = errors.New("the configuration cannot work as it is")
			}
			return err
		},
	}
	c.Flags().StringVarP(&config, "config", "c", "", "configuration file")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
