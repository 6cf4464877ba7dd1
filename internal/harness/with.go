package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvlend/kvlend/configs"
)

// With starts a system for the caller alone, calls f with it, and stops it. The
// configuration is changed as little as that needs: another port, no keys, and
// files of the overflow pool of its own, so that no run finds what another left.
// It is an error, too, if the system does not stop in good order or a process
// wrote what none may ever write.
func With(ctx context.Context, binary string, config *configs.Config, f func(*System) error) (err error) {
	dir, err := os.MkdirTemp("", "kvs") // run directories must have short names
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c := *config
	if c.Gateway.Listen, err = FreePort(); err != nil {
		return err
	}
	c.Gateway.APIKeys = nil // the port is the loopback's, and ours
	c.Models = freshDisks(c.Models, dir)
	sys, err := Start(ctx, Options{Binary: binary, Dir: dir, Config: &c})
	if err != nil {
		return err
	}
	defer sys.Kill()
	if err := f(sys); err != nil {
		return fmt.Errorf("%s%w", lastLines(sys.Log()), err)
	}
	var errs []error
	if err := sys.Stop(); err != nil {
		errs = append(errs, fmt.Errorf("stop: %w", err))
	}
	for _, sign := range []string{"panic:", "BUG:", "fatal error:"} {
		if strings.Contains(sys.Log(), sign) {
			errs = append(errs, fmt.Errorf("%sa process wrote %q", lastLines(sys.Log()), sign))
		}
	}
	return errors.Join(errs...)
}

// freshDisks moves files of the overflow pool to dir. Devices stay what they are.
func freshDisks(models []configs.Model, dir string) []configs.Model {
	out := slices.Clone(models)
	for i := range out {
		o := &out[i].Overflow
		o.Devices = slices.Clone(o.Devices)
		for j := range o.Devices {
			if d := &o.Devices[j]; filepath.IsAbs(d.Path) && !strings.HasPrefix(d.Path, "/dev/") {
				d.Path = filepath.Join(dir, fmt.Sprintf("disk-%d-%d", i, j))
			}
		}
	}
	return out
}

// lastLines is the end of a log, on lines of its own, before what is said last.
func lastLines(log string) string {
	if log = strings.TrimSpace(log); log == "" {
		return ""
	}
	lines := strings.Split(log, "\n")
	return "the system's log ends:\n" + strings.Join(lines[max(0, len(lines)-20):], "\n") + "\n"
}
