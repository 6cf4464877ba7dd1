package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/internal/node"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/overflow"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/planner"
)

func poolCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "pool",
		Short: "Prepare, check, measure, watch and empty the devices of the overflow pool",
		Long: `Prepare, check, measure, watch and empty the devices of the overflow pool: what
models[].overflow.devices of a configuration names.

format, check and bench take a configuration and work while no system uses the
devices; status and drain ask the running system.`,
		Example: `  kvlend pool format -c server.yaml             # make the files, or format the disks
  kvlend pool check -c server.yaml --deep       # read all data, verify its checksums
  kvlend pool bench -c server.yaml              # bandwidth and latency by size and depth
  kvlend pool status                            # what the devices of the running system do
  kvlend pool drain atlas ssd1                  # empty a device, to replace it`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("there is no kvlend pool %s (see 'kvlend pool --help')", args[0])
			}
			return cmd.Help()
		},
	}
	c.AddCommand(poolFormatCmd(), poolCheckCmd(), poolBenchCmd(), poolStatusCmd(), poolDrainCmd())
	return c
}

// poolFlags say which devices are meant.
type poolFlags struct {
	config, model, device string
	asJSON                bool
}

func (f *poolFlags) register(c *cobra.Command) {
	c.Flags().StringVarP(&f.config, "config", "c", "", "configuration file")
	c.Flags().StringVar(&f.model, "model", "", "only the devices of this model")
	c.Flags().StringVar(&f.device, "device", "", "only the device of this name")
	c.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
}

// poolModel is a model and those of its devices that are meant.
type poolModel struct {
	*planner.Model
	devices []overflow.DeviceOptions
}

// each calls do for the models whose devices are meant, with a progress line.
func (f *poolFlags) each(title string, do func(m *poolModel, progress func(string)) error) error {
	models, err := f.find()
	if err != nil {
		return err
	}
	return busy(title, func(progress func(string)) error {
		for i := range models {
			if err := do(&models[i], progress); err != nil {
				return err
			}
		}
		return nil
	})
}

// find reads the configuration and picks the devices.
func (f *poolFlags) find() ([]poolModel, error) {
	if f.config == "" {
		return nil, usage("-c is missing: the configuration that names the devices (models[].overflow.devices)")
	}
	cfg, err := loadConfig(f.config)
	if err != nil {
		return nil, err
	}
	sys, err := resolve(cfg)
	if err != nil {
		return nil, err
	}
	var out []poolModel
	var all []string
	for _, m := range sys.Models {
		pm := poolModel{Model: m}
		for _, d := range poolOptions(m, nil).Devices {
			all = append(all, m.Config.Name+"/"+d.Name)
			if (f.model == "" || f.model == m.Config.Name) && (f.device == "" || f.device == d.Name) {
				pm.devices = append(pm.devices, d)
			}
		}
		if len(pm.devices) > 0 {
			out = append(out, pm)
		}
	}
	switch {
	case len(all) == 0:
		return nil, usage("%s: no model has an overflow pool (models[].overflow.devices)", f.config)
	case len(out) == 0:
		return nil, usage("%s: no device is meant by --model %q and --device %q; there are (model/device): %s", f.config, f.model, f.device, strings.Join(all, ", "))
	}
	return out, nil
}

// options are how the devices are opened. The identity of what they hold needs
// the model's weights.
func (m *poolModel) options() (overflow.Options, error) {
	eng, err := source.Engine(m.Config)
	if err != nil {
		return overflow.Options{}, fmt.Errorf("model %s: %w", m.Config.Name, err)
	}
	defer eng.Close()
	return poolOptions(m.Model, node.Identity(eng)), nil
}

// identified are options with the identity of the model's data, which needs its
// weights. Where they cannot be had the devices are worked on without, and note says
// so.
func (m *poolModel) identified(progress func(string)) (o overflow.Options, note string) {
	progress("loading " + m.Config.Name)
	o, err := m.options()
	if err == nil {
		return o, ""
	}
	return poolOptions(m.Model, nil), fmt.Sprintf("whether it is this model's data was not compared: %v", err)
}

// verdict collects how the devices fared: one that was refused or found damaged,
// and one that could not be worked on at all.
type verdict struct {
	refused, failed []string
}

// note takes an error of a device, with what to do about it.
func (v *verdict) note(model, name string, err error) (text string) {
	where := model + "/" + name
	var refused *store.RefusedError
	switch {
	case errors.As(err, &refused):
		v.refused = append(v.refused, where)
		return holds(refused.Found, refused.Detail)
	case errors.Is(err, device.ErrInUse):
		v.failed = append(v.failed, where)
		return "in use, probably by a running system: `kvlend pool status` shows it; stop it first"
	}
	v.failed = append(v.failed, where)
	var opening *device.Error
	if errors.As(err, &opening) && opening.Op == "open" {
		err = opening.Err // the device is named already
	}
	return err.Error()
}

// holds says what is on a device.
func holds(f store.Found, detail string) string {
	s := "it holds " + string(f)
	if f == store.Blank {
		s = "it is blank: kvlend pool format, or the next start, makes a store of it"
	}
	if detail != "" {
		s += ": " + detail
	}
	return s
}

// err is the outcome, with its exit code. not says what could not be done.
func (v *verdict) err(not, wanting string) error {
	switch {
	case len(v.failed) > 0:
		return fmt.Errorf("%s: %s", not, strings.Join(append(v.failed, v.refused...), ", "))
	case len(v.refused) > 0:
		return &codeError{exitRefused, fmt.Errorf("%s: %s", wanting, strings.Join(v.refused, ", "))}
	}
	return nil
}

// approx prints a number of bytes with three digits.
func approx(n float64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%.0f B", n)
	}
	u := -1
	for n >= 999.5 && u < len(units)-1 {
		n /= 1024
		u++
	}
	return fmt.Sprintf("%.3g %ciB", n, units[u])
}

// rate prints a bandwidth, or that it is not known.
func rate(bytesPerSecond float64) string {
	if bytesPerSecond <= 0 {
		return "-"
	}
	return approx(bytesPerSecond) + "/s"
}

// short prints a latency with three digits, or that it is not known.
func short(d time.Duration) string {
	if d <= 0 {
		return "-"
	}
	digits := time.Duration(1)
	for d/digits >= 1000 {
		digits *= 10
	}
	return d.Round(digits).String()
}
