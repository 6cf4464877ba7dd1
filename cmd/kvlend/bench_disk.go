package main

import (
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/bench/disk"
	"github.com/kvlend/kvlend/configs"
)

func benchDiskCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "disk",
		Short: "The overflow pool's devices against fio, the sum of several disks, and files",
		Long: `Several disks are emulated where there is only one:

  tools/ssd-emulate -l -n 8 -b 100 -- kvlend bench disk pool --devices {}

Results that rest on emulated devices say so.`,
		Example: `  kvlend bench disk read --path /mnt/ssd/bench.dat      # against fio; writes 1 GiB once
  kvlend bench disk write --path /mnt/ssd/new.dat       # against fio, and a store's writes
  kvlend bench disk pool --devices /dev/nvme1n1,/dev/nvme2n1
  kvlend bench disk restore --dirs /mnt/a,/mnt/b        # against one file per block`,
	}
	c.AddCommand(benchDiskReadCmd(), benchDiskWriteCmd(), benchDiskPoolCmd(), benchDiskRestoreCmd(), benchDiskPassthroughCmd())
	return c
}

// plotted is a result that can also be drawn.
type plotted interface {
	result
	WritePlot(w io.Writer, format string) error
}

// runDisk measures, draws where asked to, and prints.
func runDisk(cmd *cobra.Command, title, plot string, asJSON bool, measure func(progress func(string)) (plotted, error)) error {
	format := strings.TrimPrefix(filepath.Ext(plot), ".")
	if plot != "" && format != "svg" && format != "png" {
		return usage("--plot is %q: the name must end in .svg or .png", plot)
	}
	var r plotted
	err := busy(title, func(progress func(string)) (err error) {
		r, err = measure(progress)
		return err
	})
	if err != nil {
		return err
	}
	if plot != "" {
		if err := writePlot(plot, func(w io.Writer) error { return r.WritePlot(w, format) }); err != nil {
			return err
		}
	}
	return show(cmd, r, asJSON)
}

func benchDiskReadCmd() *cobra.Command {
	var plot string
	var asJSON bool
	sizes := []string{"4KiB", "16KiB", "64KiB", "128KiB", "256KiB", "1MiB"}
	span := "1GiB"
	opt := disk.ReadOptions{}
	c := &cobra.Command{
		Use:   "read",
		Short: "Random reads of a file or block device against fio at its best settings",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if opt.Path == "" {
				return usage("--path is missing: a file (written if there is none) or a block device")
			}
			if opt.Span, err = parseSize(span); err != nil {
				return usage("--span is %q: %v", span, err)
			}
			if opt.Sizes, err = parseSizes(sizes); err != nil {
				return err
			}
			return runDisk(cmd, "disk read", plot, asJSON, func(progress func(string)) (plotted, error) {
				opt.Progress = progress
				return disk.Read(cmd.Context(), opt)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&opt.Path, "path", "", "a file, written if there is none, or a block device")
	f.StringVar(&span, "span", span, "how much of it is read at random")
	f.StringSliceVar(&sizes, "sizes", sizes, "sizes of a read")
	f.IntSliceVar(&opt.Depths, "depths", []int{1, 8, 32, 64}, "reads in flight")
	f.IntVar(&opt.Rounds, "rounds", 5, "rounds; medians are reported")
	f.DurationVar(&opt.Each, "each", 0, "time of a measurement (1s)")
	f.BoolVar(&opt.Alone, "alone", false, "leave fio out")
	f.StringVar(&plot, "plot", "", "also draw a plot: a file name that ends in .svg or .png")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func benchDiskWriteCmd() *cobra.Command {
	var plot string
	var asJSON bool
	sizes := []string{"4KiB", "64KiB", "1MiB"}
	span, sync := "512MiB", "32MiB"
	opt := disk.WriteOptions{}
	c := &cobra.Command{
		Use:   "write",
		Short: "Writes to a file or block device against fio, and what a store makes of them",
		Long: `Writes in order and at random, with and without syncs, into what was written before and
into what was only preallocated; then the blocks of a store with its log: bandwidth from
memory to durable, and how many bytes are written for each that is kept.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if opt.Path == "" {
				return usage("--path is missing: a file that is made and removed, or with --force a file or block device that is overwritten")
			}
			if opt.Span, err = parseSize(span); err != nil {
				return usage("--span is %q: %v", span, err)
			}
			if opt.SyncBytes, err = parseSize(sync); err != nil {
				return usage("--sync is %q: %v", sync, err)
			}
			if opt.Sizes, err = parseSizes(sizes); err != nil {
				return err
			}
			return runDisk(cmd, "disk write", plot, asJSON, func(progress func(string)) (plotted, error) {
				opt.Progress = progress
				return disk.Write(cmd.Context(), opt)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&opt.Path, "path", "", "a file, made and removed afterwards; with --force also one that exists, or a block device")
	f.BoolVar(&opt.Force, "force", false, "overwrite what exists")
	f.StringVar(&span, "span", span, "how much of it is written to")
	f.StringSliceVar(&sizes, "sizes", sizes, "sizes of a write")
	f.IntSliceVar(&opt.Depths, "depths", []int{1, 32}, "writes in flight")
	f.StringVar(&sync, "sync", sync, "how much is written between two syncs, where there are any")
	f.IntVar(&opt.Blocks, "blocks", 96, "blocks of Qwen3-8B's shape that a store is given")
	f.IntVar(&opt.Rounds, "rounds", 3, "rounds; medians are reported")
	f.DurationVar(&opt.Each, "each", 0, "time of a measurement (500ms)")
	f.BoolVar(&opt.Alone, "alone", false, "leave fio out")
	f.StringVar(&plot, "plot", "", "also draw a plot: a file name that ends in .svg or .png")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func benchDiskPoolCmd() *cobra.Command {
	var devices, plot, layer string
	var asJSON bool
	opt := disk.PoolOptions{}
	c := &cobra.Command{
		Use:   "pool",
		Short: "Several devices together: the share of their sum, and shares by bandwidth",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if opt.Devices, err = disk.ParseSpecs(devices); err != nil {
				return usage("--devices: %v", err)
			}
			if opt.Layer, err = parseSize(layer); err != nil {
				return usage("--layer is %q: %v", layer, err)
			}
			return runDisk(cmd, "disk pool", plot, asJSON, func(progress func(string)) (plotted, error) {
				opt.Progress = progress
				return disk.Pool(cmd.Context(), opt)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&devices, "devices", "", "files or block devices, each with =BYTES-PER-SECOND if it is emulated")
	f.StringVar(&layer, "layer", "32MiB", "bytes of a layer, spread over the devices")
	f.IntVar(&opt.Ahead, "ahead", 2, "layers on their way at once")
	f.IntSliceVar(&opt.Counts, "counts", nil, "how many devices together (1,2,4,8)")
	f.IntVar(&opt.Rounds, "rounds", 3, "rounds; medians are reported")
	f.DurationVar(&opt.Each, "each", 0, "about the time of a measurement (3s)")
	f.StringVar(&plot, "plot", "", "also draw a plot: a file name that ends in .svg or .png")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func benchDiskRestoreCmd() *cobra.Command {
	var dirs, plot string
	var asJSON, prepare bool
	opt := disk.RestoreOptions{}
	c := &cobra.Command{
		Use:   "restore",
		Short: "A context's KV from disks: by layer runs over all of them, and by one file per block",
		Long: `Restores the KV of a context of Qwen3-8B's shape. The ordinary way is one file per
block, buffered reads, one thread for the request, on one disk and spread over all.

  tools/ssd-emulate -m -n 4 -s 1900 -b 200 \
    -p 'kvlend bench disk restore --prepare --dirs {}' -- kvlend bench disk restore --keep --dirs {}`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if opt.Dirs, err = disk.ParseSpecs(dirs); err != nil {
				return usage("--dirs: %v", err)
			}
			if prepare {
				return busy("disk restore", func(progress func(string)) error {
					opt.Progress = progress
					return disk.PrepareRestore(cmd.Context(), opt)
				})
			}
			return runDisk(cmd, "disk restore", plot, asJSON, func(progress func(string)) (plotted, error) {
				opt.Progress = progress
				return disk.Restore(cmd.Context(), opt)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&dirs, "dirs", "", "directories, one on each disk, each with =BYTES-PER-SECOND if it is emulated")
	f.IntVar(&opt.Tokens, "tokens", 8192, "tokens of the context")
	f.IntVar(&opt.Layers, "layers", 36, "layers of the model")
	f.IntVar(&opt.Ahead, "ahead", 2, "layers on their way at once")
	f.DurationVar(&opt.Compute, "compute", 10*time.Millisecond, "how long a pass computes a layer, once its KV is there")
	f.IntVar(&opt.Rounds, "rounds", 3, "rounds; medians are reported")
	f.BoolVar(&opt.Spread, "spread", false, "leave out the way with all files on the first disk, which must hold the most")
	f.BoolVar(&prepare, "prepare", false, "only write the files, and keep them")
	f.BoolVar(&opt.Keep, "keep", false, "keep the files for another run with the same context and disks")
	f.StringVar(&plot, "plot", "", "also draw a plot: a file name that ends in .svg or .png")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func benchDiskPassthroughCmd() *cobra.Command {
	var asJSON bool
	opt := disk.PassthroughOptions{}
	c := &cobra.Command{
		Use:   "passthrough",
		Short: "An NVMe namespace by passthrough against its block device with O_DIRECT",
		Long: `Reads only; the namespace must have been written. Without a drive to spare,
tools/nvme-guest/nvme-guest runs it on an emulated one.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r *disk.PassthroughResult
			err := busy("disk passthrough", func(progress func(string)) (err error) {
				opt.Progress = progress
				r, err = disk.Passthrough(cmd.Context(), opt)
				return err
			})
			if err != nil {
				return err
			}
			return show(cmd, r, asJSON)
		},
	}
	f := c.Flags()
	f.StringVar(&opt.NVMe, "nvme", "/dev/ng0n1", "the namespace's character device")
	f.StringVar(&opt.Block, "block", "/dev/nvme0n1", "its block device")
	f.IntSliceVar(&opt.Depths, "depths", []int{1, 16, 64}, "reads in flight")
	f.IntVar(&opt.Rounds, "rounds", 5, "rounds; medians are reported")
	f.DurationVar(&opt.Each, "each", 0, "time of a measurement (500ms)")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func parseSizes(list []string) ([]int64, error) {
	var out []int64
	for _, s := range list {
		n, err := parseSize(s)
		if err != nil {
			return nil, usage("--sizes has %q: %v", s, err)
		}
		out = append(out, n)
	}
	return out, nil
}

// parseSize reads a size as configs do, e.g. 64KiB.
func parseSize(s string) (int64, error) {
	var b configs.Bytes
	err := b.UnmarshalText([]byte(s))
	return int64(b), err
}
