//go:build cuda && cgo

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/bench/copybw"
	"github.com/kvlend/kvlend/nvlink/cuda"
)

// benchGPUs adds the flags of the cuda fabric to bench fabric, and gives what
// --fabric cuda does.
func benchGPUs(c *cobra.Command) func(*cobra.Command, int, bool) error {
	cfg := copybw.CUDAConfig{}
	var mib int64
	var measured string
	f := c.Flags()
	f.StringVar(&cfg.Fabric.Library, "driver", "libcuda.so.1", "cuda: the driver's library")
	f.Int64Var(&mib, "mib", 1024, "cuda: MiB of memory at each end of a copy")
	f.Int64Var(&cfg.Fabric.Crossover, "crossover", 0, "cuda: bytes from which a run goes to the copy engine; 0: measured")
	f.StringVar(&measured, "measured", "", "cuda: also write the links between GPUs to this file, for fabric.measured")
	c.AddCommand(openArenaCmd())
	return func(cmd *cobra.Command, rounds int, asJSON bool) error {
		if mib < 1 || mib > 1<<20 {
			return usage("--mib is %d: want 1 to %d", mib, 1<<20)
		}
		cfg.Bytes, cfg.Rounds = mib<<20, rounds
		cfg.Pieces = nil
		for _, n := range []int64{256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20} {
			if n <= cfg.Bytes {
				cfg.Pieces = append(cfg.Pieces, n)
			}
		}
		cfg.Open = func(ctx context.Context, handle string, file *os.File, rounds int) ([]time.Duration, error) {
			return openElsewhere(ctx, cfg.Fabric.Library, handle, file, rounds)
		}
		var r *copybw.CUDAReport
		err := busy("fabric", func(func(string)) (err error) {
			r, err = copybw.RunCUDA(cmd.Context(), cfg)
			return err
		})
		if err != nil {
			return err
		}
		return errors.Join(show(cmd, r, asJSON), writeMeasured(cmd, r, measured))
	}
}

// writeMeasured writes the links between GPUs to the file at path; "": nowhere.
func writeMeasured(cmd *cobra.Command, r *copybw.CUDAReport, path string) error {
	if path == "" {
		return nil
	}
	m, err := r.Measured(time.Now().UTC().Truncate(time.Second))
	if errors.Is(err, copybw.ErrNoPair) {
		cmd.PrintErrf("%s was not written: %v\n", path, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("--measured: %w", err)
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("--measured: %w", err)
	}
	return errors.Join(m.Write(f), f.Close())
}

// openElsewhere has a process of this program open an arena.
func openElsewhere(ctx context.Context, library, handle string, file *os.File, rounds int) ([]time.Duration, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe, "bench", "fabric", "open-arena", "--driver", library, "--rounds", fmt.Sprint(rounds), "--handle", handle)
	if file != nil {
		cmd.ExtraFiles = []*os.File{file}
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	return took, json.Unmarshal(out, &took)
}

// openArenaCmd is what openElsewhere starts.
func openArenaCmd() *cobra.Command {
	var cfg cuda.Config
	var handle string
	var rounds int
	c := &cobra.Command{
		Use:    "open-arena",
		Short:  "Open an arena of another process and say how long it took, as JSON",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			took, err := openArena(cfg, handle, rounds)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(took)
		},
	}
	c.Flags().StringVar(&cfg.Library, "driver", "libcuda.so.1", "the driver's library")
	c.Flags().StringVar(&handle, "handle", "", "the arena's handle; its file is descriptor 3")
	c.Flags().IntVar(&rounds, "rounds", 1, "how often")
	return c
}

func openArena(cfg cuda.Config, handle string, rounds int) (took []time.Duration, err error) {
	h, err := cuda.ParseHandle(handle)
	if err != nil {
		return nil, err
	}
	var file *os.File
	if h.Kind == cuda.VMM {
		file = os.NewFile(3, "arena")
		defer file.Close()
	}
	f, err := cuda.New(cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for i := range rounds + 1 {
		began := time.Now()
		a, err := f.Open(h, file, "opened")
		if err != nil {
			return nil, err
		}
		if i > 0 { // the first makes the context
			took = append(took, time.Since(began))
		}
		if err := a.Close(); err != nil {
			return nil, err
		}
	}
	return took, nil
}
