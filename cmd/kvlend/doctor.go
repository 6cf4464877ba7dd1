package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/internal/doctor"
	"github.com/kvlend/kvlend/internal/supervisor"
	"github.com/kvlend/kvlend/nvlink/nvml"
	"github.com/kvlend/kvlend/nvlink/topology"
)

func doctorCmd() *cobra.Command {
	var o struct {
		config, runDir string
		asJSON, brief  bool
		timeout        time.Duration
	}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Look at what this machine can do, and what is missing",
		Long: `Look at what this machine can do, and what is missing: cores and instruction sets,
memory, limits, the kernel, GPUs and the links between them. With a configuration also
whether this machine can run it. Nothing is changed.

Each finding is "ok", a "note", a "warning" (works, with less than it could) or a
"problem" (does not work), with a line that begins with → and says what to do.

GPUs are asked through NVIDIA's library by binaries with the build tag cuda. Other
binaries show what the kernel says of them.

Exit codes: 0 no problems, 3 problems, 2 wrong usage or configuration.`,
		Example: `  kvlend doctor
  kvlend doctor --brief               # only what is not ok
  kvlend doctor -c server.yaml        # can this machine run it?
  kvlend doctor -c server.yaml --json | jq '.sections[].findings[] | select(.level == "problem")'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.timeout <= 0 {
				return usage("--timeout is %s, it must be positive", o.timeout)
			}
			opt := doctor.Options{
				Build:    doctor.Build{Version: version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, CUDA: nvml.Built},
				GPULimit: o.timeout,
			}
			if o.config != "" {
				if err := examined(cmd.Context(), &opt, o.config, o.runDir); err != nil {
					return err
				}
			} else if o.runDir != "" {
				return usage("--run-dir needs -c: without a configuration there is no run directory to look at")
			}
			return showDoctor(cmd.OutOrStdout(), doctor.Run(cmd.Context(), doctor.NewHost(), opt), o.asJSON, o.brief)
		},
	}
	f := c.Flags()
	f.StringVarP(&o.config, "config", "c", "", "configuration to check this machine for")
	f.StringVar(&o.runDir, "run-dir", "", "directory of sockets and lock, instead of run_dir")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	f.BoolVar(&o.brief, "brief", false, "leave out what is ok")
	f.DurationVar(&o.timeout, "timeout", 20*time.Second, "how long the GPUs' driver may take to answer")
	return c
}

// examined adds a configuration to what is looked at.
func examined(ctx context.Context, opt *doctor.Options, path, runDir string) error {
	cfg, err := loadConfig(path)
	if err != nil {
		return err
	}
	if opt.System, err = resolve(cfg); err != nil {
		return err
	}
	if runDir == "" {
		runDir = cfg.RunDir
	}
	if opt.RunDir, err = supervisor.RunDir(runDir); err != nil {
		return &codeError{exitUsage, err}
	}
	_, err = fetchStatus(ctx, opt.RunDir)
	opt.Running = err == nil
	return nil
}

func showDoctor(w io.Writer, r *doctor.Report, asJSON, brief bool) error {
	if asJSON {
		if err := encodeIndented(w, r); err != nil {
			return err
		}
	} else if _, err := io.WriteString(w, doctorText(r, brief)); err != nil {
		return err
	}
	if !r.OK {
		return &codeError{exitRefused, errors.New(amount(r.Problems, "problem"))}
	}
	return nil
}

func amount(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// foundWidth is where the text of findings is broken into lines.
const foundWidth = 96

func doctorText(r *doctor.Report, brief bool) string {
	var b strings.Builder
	for _, s := range r.Sections {
		t := newTable(s.Name, "", "")
		for _, f := range s.Findings {
			if brief && f.Level == doctor.OK {
				continue
			}
			found := text.WrapSoft(f.Found, foundWidth)
			if f.Hint != "" {
				found += "\n" + text.WrapSoft("→ "+f.Hint, foundWidth)
			}
			t.AppendRow(table.Row{f.What, levelText(f.Level), found})
		}
		if t.Length() > 0 {
			fmt.Fprintf(&b, "%s\n\n", t.Render())
		}
	}
	if m := gpuMatrix(r.Inventory); m != "" && !brief {
		fmt.Fprintf(&b, "%s\n\n", m)
	}
	fmt.Fprintf(&b, "%s, %s\n", amount(r.Problems, "problem"), amount(r.Warnings, "warning"))
	return b.String()
}

// levelText makes what matters catch the eye.
func levelText(l doctor.Level) string {
	if l == doctor.Problem {
		return "PROBLEM"
	}
	return string(l)
}

// gpuMatrix shows how GPUs reach each other: the row's copies to the column.
func gpuMatrix(inv *topology.Inventory) string {
	if inv == nil || len(inv.Pairs) == 0 {
		return ""
	}
	header := []any{"from \\ to"}
	for _, g := range inv.GPUs {
		header = append(header, fmt.Sprintf("GPU %d", g.Index))
	}
	t := newTable(header...)
	for _, a := range inv.GPUs {
		row := table.Row{fmt.Sprintf("GPU %d", a.Index)}
		for _, b := range inv.GPUs {
			row = append(row, pairText(inv, a.Index, b.Index))
		}
		t.AppendRow(row)
	}
	return t.Render() + "\nnominal bandwidth in each direction; NV4: over 4 NVLinks, S: through switches, PCIe: peer to peer, host: staged in the host's memory"
}

func pairText(inv *topology.Inventory, from, to int) string {
	p, ok := inv.Pair(from, to)
	switch {
	case from == to:
		return "-"
	case !ok:
		return "?"
	}
	way := map[topology.Via]string{
		topology.ViaNVLink: fmt.Sprintf("NV%d", p.Links), topology.ViaNVSwitch: fmt.Sprintf("NV%d S", p.Links),
		topology.ViaPCIe: "PCIe", topology.ViaHost: "host",
	}[p.Via]
	if p.Path != "" && p.Links == 0 {
		way += " " + p.Path
	}
	if p.BytesPerSec > 0 {
		way += fmt.Sprintf(" %.3g GB/s", p.BytesPerSec/1e9)
	}
	return way
}
