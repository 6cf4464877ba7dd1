package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/fabrics"
	"github.com/kvlend/kvlend/internal/logq"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/planner"
)

// loadConfig reads a configuration, or the built-in default if path is empty.
func loadConfig(path string) (*configs.Config, error) {
	if path == "" {
		return configs.Default(), nil
	}
	c, err := configs.Load(path)
	if err != nil {
		return nil, &codeError{exitUsage, err}
	}
	return c, nil
}

func resolve(c *configs.Config) (*planner.System, error) {
	s, err := planner.Resolve(c, source.Geometry)
	if err != nil {
		return nil, &codeError{exitUsage, err}
	}
	return s, nil
}

// newLogger returns the logger of a process; its lines never wait for a reader.
func newLogger(c *configs.Config, name string, stderr *logq.Writer) hclog.Logger {
	opt := hclog.LoggerOptions{
		Name: name, Level: hclog.LevelFromString(c.Log.Level), JSONFormat: c.Log.Format == "json", Output: stderr,
	}
	gaps := opt
	stderr.OnLost(func(w io.Writer, lost int) {
		gaps.Output = w
		hclog.New(&gaps).Warn("log messages lost, nobody read them", "messages", lost)
	})
	return hclog.New(&opt)
}

func configCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check, print or describe configurations",
		Example: `  kvlend config validate server.yaml   # every problem at once
  kvlend config print > server.yaml    # the built-in default, to start from
  kvlend config print --example swiftcache-4xh20
  kvlend config schema > kvlend.schema.json`,
	}
	c.AddCommand(configValidateCmd(), configPrintCmd(), configSchemaCmd())
	return c
}

func configValidateCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "validate FILE",
		Short: "Report every violation in a configuration",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("config validate needs one file")
			}
			cfg, err := configs.Load(args[0])
			if err == nil {
				err = cfg.CheckGeometry(source.Geometry)
			}
			if asJSON {
				return validateJSON(cmd, cfg, err)
			}
			if err != nil {
				return &codeError{exitRefused, err}
			}
			for _, w := range cfg.Warnings(source.Geometry) {
				fmt.Fprintf(cmd.OutOrStdout(), "warning: %s\n", w)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: ok, models: %d\n", args[0], len(cfg.Models))
			if err := fabrics.Check(cfg); err != nil {
				fmt.Fprintf(cmd.OutOrStdout(), "kvlend up would refuse it: %v\n", err)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the violations as JSON")
	return c
}

func validateJSON(cmd *cobra.Command, cfg *configs.Config, err error) error {
	out := struct {
		OK         bool                `json:"ok"`
		Error      string              `json:"error,omitempty"`
		Violations []configs.Violation `json:"violations,omitempty"`
		// Up is why kvlend up of this build would refuse a valid configuration.
		Up string `json:"up,omitempty"`
	}{OK: err == nil}
	if err == nil {
		if refused := fabrics.Check(cfg); refused != nil {
			out.Up = refused.Error()
		}
	}
	var list configs.Errors
	if errors.As(err, &list) {
		out.Violations = list
	} else if err != nil {
		out.Error = err.Error()
	}
	enc := json.NewEncoder(cmd.OutOrStdout())
	enc.SetIndent("", "  ")
	if e := enc.Encode(out); e != nil {
		return e
	}
	if err != nil {
		return &codeError{exitRefused, errors.New("the configuration is not valid")}
	}
	return nil
}

func configPrintCmd() *cobra.Command {
	var example string
	c := &cobra.Command{
		Use:   "print [FILE]",
		Short: "Print a configuration with every default filled in",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if example != "" {
				b, err := configs.Example(strings.TrimSuffix(example, ".yaml") + ".yaml")
				if err != nil {
					return &codeError{exitUsage, err}
				}
				_, err = cmd.OutOrStdout().Write(b)
				return err
			}
			path := ""
			if len(args) == 1 {
				path = args[0]
			}
			cfg, err := loadConfig(path)
			if err != nil {
				return err
			}
			out, err := cfg.Redacted().Marshal()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	c.Flags().StringVar(&example, "example", "", "print an example instead: default, swiftcache-4xh20 or h100-qwen3")
	return c
}

func configSchemaCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema, for editors",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(configs.Schema())
			return err
		},
	}
}
