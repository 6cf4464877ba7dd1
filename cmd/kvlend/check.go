package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/internal/check"
	"github.com/kvlend/kvlend/internal/supervisor"
)

// adminTimeout bounds one call of the admin socket; a timeline takes as long as it
// was asked to.
const adminTimeout = wire.MaxTrace + 30*time.Second

func checkCmd() *cobra.Command {
	var o struct {
		runDir string
		asJSON bool
		opt    check.Options
	}
	c := &cobra.Command{
		Use:   "check",
		Short: "Verify the invariants of lending on a running system",
		Long: `Verify the invariants of lending on a running system.

Every model process checks its own books under its own locks; what concerns two
processes is compared from several rounds of reports, and counts only when it
stays the same in all of them.

Exit codes: 0 everything holds, 3 an invariant is violated, 1 the system cannot
be checked (nobody answers, or a process does not).`,
		Example: "  kvlend check\n  kvlend check --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.opt.Rounds < 1 || o.opt.Every <= 0 {
				return usage("--rounds is %d and --every is %s, they must be positive", o.opt.Rounds, o.opt.Every)
			}
			dir, err := supervisor.RunDir(o.runDir)
			if err != nil {
				return &codeError{exitUsage, err}
			}
			r, err := check.Live(cmd.Context(), func(ctx context.Context) ([]*wire.CheckReport, error) {
				return fetchReports(ctx, dir)
			}, o.opt)
			if err != nil {
				return fmt.Errorf("the system cannot be checked: %w", err)
			}
			return showCheck(cmd.OutOrStdout(), r, o.asJSON)
		},
	}
	f := c.Flags()
	f.StringVar(&o.runDir, "run-dir", "", "the system's run directory")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	f.IntVar(&o.opt.Rounds, "rounds", 5, "rounds of reports that must all show a contradiction between processes")
	f.DurationVar(&o.opt.Every, "every", 400*time.Millisecond, "pause between rounds")
	return c
}

// adminCall calls the admin socket and decodes the answer.
func adminCall(ctx context.Context, dir, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://admin"+path, body)
	if err != nil {
		return err
	}
	client := adminClient(dir)
	client.Timeout = adminTimeout
	res, err := client.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			return fmt.Errorf("no system answers in %s (is `kvlend up` running, with the same --run-dir?): %w", dir, op.Err)
		}
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		var e openai.ErrorBody
		if json.NewDecoder(res.Body).Decode(&e) == nil && e.Error.Message != "" {
			return &adminError{res.StatusCode, e.Error.Message}
		}
		return &adminError{res.StatusCode, "the gateway answered " + res.Status}
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return fmt.Errorf("the gateway's answer: %w", err)
	}
	return nil
}

// adminError is a refusal of the admin socket.
type adminError struct {
	status  int
	message string
}

func (e *adminError) Error() string { return e.message }

func fetchReports(ctx context.Context, dir string) ([]*wire.CheckReport, error) {
	var round api.AdminCheck
	if err := adminCall(ctx, dir, http.MethodGet, "/admin/check", nil, &round); err != nil {
		return nil, err
	}
	if len(round.Missing) > 0 {
		m := round.Missing[0]
		return nil, fmt.Errorf("%s does not report: %s (%d of %d models)", m.Model, m.Reason,
			len(round.Missing), len(round.Missing)+len(round.Reports))
	}
	return round.Reports, nil
}

func showCheck(w io.Writer, r *check.Result, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		if err := enc.Encode(r); err != nil {
			return err
		}
	} else {
		t := newTable("invariant", "result", "details")
		for _, v := range r.Invariants {
			result := "ok"
			if !v.OK {
				result = "VIOLATED"
			}
			t.AppendRow(table.Row{v.Title, result, strings.Join(v.Findings, "\n")})
		}
		if _, err := fmt.Fprintf(w, "%s\n%d processes, %d units, %d rounds\n", t.Render(), r.Processes, r.Units, r.Rounds); err != nil {
			return err
		}
	}
	if !r.OK {
		return &codeError{exitRefused, errors.New("an invariant is violated")}
	}
	return nil
}
