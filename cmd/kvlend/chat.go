package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/api/client"
	"github.com/kvlend/kvlend/engine/sampling"
)

// defaultEndpoint is where the built-in configuration listens.
const defaultEndpoint = "http://127.0.0.1:8000"

func chatCmd() *cobra.Command {
	var o struct {
		url, key, model, system string
		maxTokens               int
		temperature             float64
		seed                    int64
	}
	c := &cobra.Command{
		Use:   "chat",
		Short: "Talk to a model from the terminal",
		Example: `  kvlend chat
  kvlend chat --model birch --max-tokens 200
  kvlend chat --url http://127.0.0.1:9000 --key "$KEY"
  echo hello | kvlend chat --temperature 0     # exit code 1 if a message has no answer`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.maxTokens < 0 {
				return usage("--max-tokens is %d: want 1 or more, or 0 for as many as fit", o.maxTokens)
			}
			if !(o.temperature >= 0 && o.temperature <= sampling.MaxTemperature) {
				return usage("--temperature is %v: want 0 to %d", o.temperature, sampling.MaxTemperature)
			}
			cl, err := client.New(o.url, o.key, nil)
			if err != nil {
				return &codeError{exitUsage, err}
			}
			opt := client.ChatOptions{
				Client: cl, Model: o.model, System: o.system, MaxTokens: o.maxTokens,
				In: cmd.InOrStdin(), Out: cmd.OutOrStdout(),
			}
			opt.Script = !terminal(opt.In)
			if cmd.Flags().Changed("temperature") {
				opt.Temperature = &o.temperature
			}
			if cmd.Flags().Changed("seed") {
				opt.Seed = &o.seed
			}
			// Ctrl-C ends an answer, not the program: it does not end ctx here.
			interrupt := make(chan os.Signal, 1)
			signal.Notify(interrupt, os.Interrupt)
			defer signal.Stop(interrupt)
			opt.Interrupt = interrupt
			return client.Chat(context.WithoutCancel(cmd.Context()), opt)
		},
	}
	f := c.Flags()
	f.StringVar(&o.url, "url", defaultEndpoint, "the gateway's address")
	f.StringVar(&o.key, "key", os.Getenv("KVLEND_API_KEY"), "API key (default $KVLEND_API_KEY)")
	f.StringVar(&o.model, "model", "", "model; empty: the server's first")
	f.StringVar(&o.system, "system", "", "system message")
	f.IntVar(&o.maxTokens, "max-tokens", 128, "longest answer in tokens; 0: as many as fit")
	f.Float64Var(&o.temperature, "temperature", 0, fmt.Sprintf("0 to %d; the model's own when not given", sampling.MaxTemperature))
	f.Int64Var(&o.seed, "seed", 0, "seed of the sampling; random when not given")
	return c
}
