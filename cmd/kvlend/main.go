// Command kvlend lends idle KV-cache memory between the language models that
// share one server.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1 // the operation failed
	exitUsage   = 2 // wrong flags, arguments or configuration
	exitRefused = 3 // checked, and found wanting (config validate, model verify)
)

// codeError is an error with an exit code of its own.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string { return e.err.Error() }
func (e *codeError) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return &codeError{exitUsage, fmt.Errorf(format, args...)}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := root().ExecuteContext(ctx)
	stop()
	os.Exit(report(err))
}

func report(err error) int {
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(os.Stderr, "kvlend:", err)
	var c *codeError
	if errors.As(err, &c) {
		return c.code
	}
	return exitFailed
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:   "kvlend",
		Short: "Lend idle KV-cache memory between the models of one server",
		Long: `kvlend lends idle KV-cache memory between the language models that share one
server: a model whose conversations need more than its own memory borrows from
those that need less, and gives it back when they need it.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 checked and found wanting.`,
		Example: `  kvlend up                          # the whole system on built-in models
  kvlend chat                        # talk to it
  kvlend status                      # who holds whose memory
  kvlend config validate my.yaml`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%v (see '%s --help')", err, cmd.CommandPath())
	})
	c.AddCommand(upCmd(), gatewayCmd(), modelProcessCmd("master"), modelProcessCmd("worker"), modelProcessCmd("local"),
		statusCmd(), checkCmd(), drainCmd(), auditCmd(), traceCmd(), chatCmd(), configCmd(), modelCmd(), benchCmd(), versionCmd())
	return c
}

// noArgs refuses arguments with exit code 2.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s takes no arguments, got %q", cmd.CommandPath(), args)
	}
	return nil
}
