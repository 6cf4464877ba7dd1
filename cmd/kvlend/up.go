package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/fabrics"
	"github.com/kvlend/kvlend/internal/logq"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/internal/supervisor"
)

// readyTimeout is how long a system may take to start; loading large weights
// takes its time.
const readyTimeout = 10 * time.Minute

// ownBinary is this very program, also when its file was replaced or removed
// since: a system never runs two builds.
const ownBinary = "/proc/self/exe"

func upCmd(stderr *logq.Writer) *cobra.Command {
	var o struct {
		config, listen, runDir string
		asJSON, noSpawn        bool
	}
	c := &cobra.Command{
		Use:   "up",
		Short: "Start the supervisor, the gateway and a process per model",
		Example: `  kvlend up
  kvlend up -c server.yaml
  kvlend up --listen 127.0.0.1:9000 --run-dir /run/kvlend
  kvlend up --no-spawn      # memory only; start 'kvlend master --model NAME' and the others yourself`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(o.config)
			if err != nil {
				return err
			}
			if o.listen != "" || o.runDir != "" {
				if cfg, err = override(cfg, o.listen, o.runDir); err != nil {
					return err
				}
			}
			return up(cmd, stderr, cfg, o.asJSON, !o.noSpawn)
		},
	}
	c.SetErr(stderr)
	f := c.Flags()
	f.StringVarP(&o.config, "config", "c", "", "configuration file (default: built-in)")
	f.StringVar(&o.listen, "listen", "", "address of the gateway, instead of gateway.listen")
	f.StringVar(&o.runDir, "run-dir", "", "directory of sockets and lock, instead of run_dir")
	f.BoolVar(&o.asJSON, "json", false, "print the table as JSON")
	f.BoolVar(&o.noSpawn, "no-spawn", false, "start no processes, wait for them to join")
	return c
}

// override changes settings of a parsed configuration and checks it again.
func override(cfg *configs.Config, listen, runDir string) (*configs.Config, error) {
	c := *cfg
	if listen != "" {
		c.Gateway.Listen = listen
	}
	if runDir != "" {
		c.RunDir = runDir
	}
	raw, err := c.Marshal()
	if err != nil {
		return nil, err
	}
	out, err := configs.Parse(raw, "command line")
	if err != nil {
		return nil, &codeError{exitUsage, err}
	}
	return out, nil
}

func up(cmd *cobra.Command, stderr *logq.Writer, cfg *configs.Config, asJSON, spawn bool) error {
	ctx := cmd.Context()
	dir, err := supervisor.RunDir(cfg.RunDir)
	if err != nil {
		return &codeError{exitUsage, err}
	}
	if err := fabrics.Check(cfg); err != nil {
		return &codeError{exitUsage, err}
	}
	log := newLogger(cfg, "supervisor", stderr)
	if cfg, err = linked(ctx, cfg, log); err != nil {
		return err
	}
	sys, err := resolve(cfg)
	if err != nil {
		return err
	}
	trail, err := openAudit(cfg, auditSupervisor, log)
	if err != nil {
		return err
	}
	defer trail.Close() // after the processes have ended
	for _, w := range cfg.Warnings(source.Geometry) {
		log.Warn("configuration", "path", w.Path, "value", w.Value, "problem", w.Problem, "better", w.Accepted)
	}
	fab, err := fabrics.Open(fabrics.Options{Config: cfg, Log: log})
	if err != nil {
		return err
	}
	defer fab.Close()
	opt := supervisor.Options{System: sys, RunDir: dir, Fabric: fab, Audit: trail, Log: log}
	if spawn {
		opt.Command = func(p supervisor.Process) *exec.Cmd {
			args := []string{p.Role, "--run-dir", dir}
			switch {
			case p.Role != supervisor.GatewayName:
				args = append(args, "--model", p.Name)
			case p.Listen != "":
				args = append(args, "--listen", p.Listen)
			}
			c := exec.Command(ownBinary, args...)
			c.Args[0] = os.Args[0]
			c.Stderr = os.Stderr
			return c
		}
	}
	s, err := supervisor.Start(ctx, opt)
	if err != nil {
		return err
	}
	defer s.Stop()
	if !spawn {
		fmt.Fprintf(cmd.ErrOrStderr(), "waiting for the processes to join: kvlend {gateway|master|worker} --run-dir %s --model NAME\n", dir)
	}
	rctx, cancel := context.WithTimeout(ctx, readyTimeout)
	err = s.WaitReady(rctx)
	cancel()
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the system was not ready after %s", readyTimeout)
	case err != nil:
		return err
	}
	if err := printSystem(cmd.OutOrStdout(), sys, fab.Emulated(), s.Processes(), dir, asJSON); err != nil {
		return err
	}
	err = s.Wait(ctx)
	if err == nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "stopping")
	}
	return err
}
