// Command kvlend lends idle KV-cache memory between the language models that
// share one server.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/internal/logq"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1 // the operation failed
	exitUsage   = 2 // wrong flags, arguments or configuration
	exitRefused = 3 // checked, and found wanting (config validate, model verify)
)

// flushTime is how long a process that ends waits for its log to be read.
const flushTime = 200 * time.Millisecond

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
	stderr := logq.New(os.Stderr)
	log.SetOutput(stderr) // net/http's own messages
	cmd, err := root(stderr).ExecuteContextC(ctx)
	stop()
	code := report(cmd.ErrOrStderr(), err)
	stderr.Close(flushTime)
	os.Exit(code)
}

// report prints an error and returns the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(w, "kvlend:", err)
	var c *codeError
	if errors.As(err, &c) {
		return c.code
	}
	return exitFailed
}

// root is the whole command line. The processes of a system write to stderr,
// which never blocks; the other commands wait for their reader.
func root(stderr *logq.Writer) *cobra.Command {
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
	c.AddCommand(upCmd(stderr), gatewayCmd(stderr),
		modelProcessCmd("master", stderr), modelProcessCmd("worker", stderr), modelProcessCmd("local", stderr),
		statusCmd(), checkCmd(), doctorCmd(), drainCmd(), poolCmd(), auditCmd(), traceCmd(), calibrateCmd(), chatCmd(), configCmd(), modelCmd(), simulateCmd(), benchCmd(), evalCmd(), planCmd(), versionCmd())
	return c
}

// noArgs refuses arguments with exit code 2.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s takes no arguments, got %q", cmd.CommandPath(), args)
	}
	return nil
}
