package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/bench/chaos"
	"github.com/kvlend/kvlend/configs"
)

func benchChaosCmd() *cobra.Command {
	var asJSON bool
	opt := chaos.Options{}
	var fabric func() (configs.Fabric, error)
	c := &cobra.Command{
		Use:   "chaos",
		Short: "Kill, stop and disconnect a system of its own under load, and check every answer",
		Long: `Starts a system of its own on the built-in models and loads it while it kills
(SIGKILL), stops (SIGSTOP) and disconnects the master, the workers and the
gateway at random. Every answer is compared with one computed before; in the end
all memory must be at home and every model serve. Exits with 1 if anything was
wrong, and prints the seed.`,
		Example: `  kvlend bench chaos                          # a minute, a random seed
  kvlend bench chaos --seed 7 --duration 10m
  kvlend bench chaos --fabric cuda            # KV on a GPU; --gpus 3: one for each model`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opt.Duration < time.Second || opt.Clients < 1 || opt.Clients > 64 {
				return usage("--duration is %s and --clients %d: want at least 1s, and 1 to 64", opt.Duration, opt.Clients)
			}
			if !cmd.Flags().Changed("seed") {
				opt.Seed = rand.Uint64N(1 << 32)
			}
			var err error
			if opt.Fabric, err = fabric(); err != nil {
				return err
			}
			if cmd.Flags().Changed("gpus") && opt.Fabric.Kind != "cuda" {
				return usage("--gpus is of --fabric cuda, and the fabric is %s", opt.Fabric.Kind)
			}
			if opt.GPUs < 1 || opt.GPUs > 64 {
				return usage("--gpus is %d: want 1 to 64", opt.GPUs)
			}
			if opt.Overflow && opt.Fabric.Kind == "cuda" {
				return usage("--overflow with --fabric cuda: want one of the two, disks read and write memory of the host only")
			}
			if opt.Binary, err = os.Executable(); err != nil {
				return err
			}
			var r *chaos.Result
			err = busy("chaos", func(progress func(string)) error {
				opt.Progress = progress
				r, err = chaos.Run(cmd.Context(), opt)
				return err
			})
			if r == nil {
				return err
			}
			if err := show(cmd, r, asJSON); err != nil {
				return err
			}
			if err != nil {
				return fmt.Errorf("interrupted after %s of %s, before what is checked at the end: %w", r.Elapsed.Round(time.Second), opt.Duration, err)
			}
			return r.Err()
		},
	}
	fabric = fabricFlags(c)
	f := c.Flags()
	f.IntVar(&opt.GPUs, "gpus", 1, "cuda: how many GPUs the models' devices are spread over")
	f.Uint64Var(&opt.Seed, "seed", 0, "seed of everything random (default: a random one)")
	f.DurationVar(&opt.Duration, "duration", time.Minute, "time under attack")
	f.BoolVar(&opt.Overflow, "overflow", false, "give the master disks (files in a temporary directory), and little memory")
	f.IntVar(&opt.Clients, "clients", 6, "requests at once")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
