package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/internal/supervisor"
)

func poolStatusCmd() *cobra.Command {
	var runDir string
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show what the devices of the running system hold and do",
		Long: `Show what the devices of the running system hold and do.

State: ok; degraded, on a slower path than intended; slow, not read from for a while since
it answered much too late; draining, being emptied; fenced, out of use after failures, or since it could not be opened. Figures count since the
start of the model's process. "measured" is the bandwidth of reads that was measured,
"achieved" what it is lately while the device is used.`,
		Example: "  kvlend pool status\n  kvlend pool status --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := supervisor.RunDir(runDir)
			if err != nil {
				return &codeError{exitUsage, err}
			}
			st, err := fetchStatus(cmd.Context(), dir)
			if err != nil {
				return err
			}
			return showPool(cmd.OutOrStdout(), st, asJSON)
		},
	}
	c.Flags().StringVar(&runDir, "run-dir", "", "the system's run directory")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// poolView is a device in the output of `kvlend pool status --json`.
type poolView struct {
	Model string `json:"model"`
	State string `json:"state"`
	wire.DiskStatus
}

// poolDevices are the devices of all models that answered.
func poolDevices(st *api.AdminStatus) []poolView {
	out := []poolView{}
	for _, m := range st.Models {
		if m.Status == nil {
			continue
		}
		for _, d := range m.Status.Disks {
			out = append(out, poolView{m.Name, deviceState(&d), d})
		}
	}
	return out
}

func deviceState(d *wire.DiskStatus) string {
	switch {
	case d.Fenced != "":
		return "fenced"
	case d.Draining:
		return "draining"
	case d.Slow:
		return "slow"
	case d.Degraded != "":
		return "degraded"
	}
	return "ok"
}

// why says more of a state, empty: there is nothing to say.
func why(d *wire.DiskStatus) string {
	switch {
	case d.Fenced != "":
		return d.Fenced
	case d.Slow:
		return fmt.Sprintf("it has answered several times later than it should (%d times since the start): for a while what it holds is computed", d.Late)
	case d.Corrupt > 0:
		return fmt.Sprintf("%d blocks were not what had been stored there", d.Corrupt)
	}
	return d.Degraded
}

func showPool(w io.Writer, st *api.AdminStatus, asJSON bool) error {
	devices := poolDevices(st)
	if asJSON {
		return encodeIndented(w, devices)
	}
	if len(devices) == 0 {
		for _, m := range st.Models {
			if m.Status == nil {
				return fmt.Errorf("model %s does not answer", m.Name)
			}
		}
		return errors.New("no model of this system has an overflow pool (models[].overflow.devices)")
	}
	if _, err := fmt.Fprintf(w, "%s\n\n%s\n", stateTable(devices), trafficTable(devices)); err != nil {
		return err
	}
	for _, d := range devices {
		if text := why(&d.DiskStatus); text != "" {
			fmt.Fprintf(w, "%s/%s is %s: %s\n", d.Model, d.Name, d.State, plain(text))
		}
	}
	return nil
}

func stateTable(devices []poolView) string {
	t := newTable("model", "device", "kind", "path", "state", "blocks", "free", "places", "errors", "corrupt blocks", "may be written", "projected life")
	for _, d := range devices {
		budget, life := "any", "-"
		switch {
		case d.Fenced != "":
			budget = "nothing"
		case d.Budget > 0:
			budget = fmt.Sprintf("%s now, %s a day", approx(float64(d.BudgetLeft)), approx(float64(d.Budget)))
		}
		if d.LifeDays > 0 {
			life = fmt.Sprintf("%.1f years", float64(d.LifeDays)/365)
		}
		t.AppendRow(table.Row{d.Model, d.Name, d.Kind, d.Path, d.State, d.Live, d.Free, d.Slots, d.Errors, d.Corrupt, budget, life})
	}
	return t.Render()
}

func trafficTable(devices []poolView) string {
	t := newTable("device", "read", "written", "measured", "achieved", "read P50, P99", "write P50, P99", "queue", "not yet durable")
	for _, d := range devices {
		t.AppendRow(table.Row{d.Model + "/" + d.Name, approx(float64(d.Read.Bytes)), approx(float64(d.Write.Bytes)), rate(float64(d.Rate)), rate(float64(d.Read.Rate)),
			short(d.Read.P50) + ", " + short(d.Read.P99), short(d.Write.P50) + ", " + short(d.Write.P99), d.InFlight, d.Lag})
	}
	return t.Render()
}

// poolTable is the short form in `kvlend status`, empty without devices.
func poolTable(st *api.AdminStatus) string {
	devices := poolDevices(st)
	if len(devices) == 0 {
		return ""
	}
	t := newTable("overflow pool of", "device", "state", "blocks", "free", "read", "written", "errors")
	for _, d := range devices {
		t.AppendRow(table.Row{d.Model, d.Name, d.State, d.Live, d.Free, approx(float64(d.Read.Bytes)), approx(float64(d.Write.Bytes)), d.Errors})
	}
	return t.Render() + "\n"
}
