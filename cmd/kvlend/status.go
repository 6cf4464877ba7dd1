package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/api"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/supervisor"
)

func statusCmd() *cobra.Command {
	var o struct {
		runDir string
		asJSON bool
		watch  time.Duration
	}
	c := &cobra.Command{
		Use:     "status",
		Short:   "Show who holds whose memory",
		Example: "  kvlend status\n  kvlend status --watch 1s\n  kvlend status --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.watch < 0 {
				return usage("--watch is %s, it must not be negative", o.watch)
			}
			dir, err := supervisor.RunDir(o.runDir)
			if err != nil {
				return &codeError{exitUsage, err}
			}
			for {
				if err := showStatus(cmd.Context(), cmd.OutOrStdout(), dir, o.asJSON); err != nil {
					return err
				}
				if o.watch == 0 {
					return nil
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(o.watch):
				}
			}
		},
	}
	c.Flags().StringVar(&o.runDir, "run-dir", "", "the system's run directory")
	c.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	c.Flags().DurationVar(&o.watch, "watch", 0, "print again after this time, until interrupted")
	return c
}

// adminClient speaks HTTP over the gateway's admin socket.
func adminClient(dir string) *http.Client {
	path := supervisor.AdminSocket(dir)
	return &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", path)
			},
		},
	}
}

func fetchStatus(ctx context.Context, dir string) (*api.AdminStatus, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin/admin/status", nil)
	if err != nil {
		return nil, err
	}
	res, err := adminClient(dir).Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			return nil, fmt.Errorf("no system answers in %s (is `kvlend up` running, with the same --run-dir?): %w", dir, op.Err)
		}
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the gateway answered %s", res.Status)
	}
	var st api.AdminStatus
	if err := json.NewDecoder(res.Body).Decode(&st); err != nil {
		return nil, fmt.Errorf("the gateway's status: %w", err)
	}
	return &st, nil
}

func showStatus(ctx context.Context, w io.Writer, dir string, asJSON bool) error {
	st, err := fetchStatus(ctx, dir)
	if err != nil {
		return err
	}
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(st)
	}
	pool := poolTable(st)
	if pool != "" {
		pool = "\n" + pool
	}
	_, err = fmt.Fprintf(w, "%s\n\n%s\n%s%s%s", requestTable(st), unitTable(st), linkTable(st), pool, notes(st))
	return err
}

func requestTable(st *api.AdminStatus) string {
	t := newTable("model", "role", "pid", "running", "waiting", "finished", "failed", "preempted", "local blocks", "borrowed blocks", "loaded", "stored")
	for _, m := range st.Models {
		s := m.Status
		if s == nil {
			t.AppendRow(table.Row{m.Name, m.Role, "does not answer"})
			continue
		}
		b := s.Blocks
		t.AppendRow(table.Row{m.Name, m.Role, s.Model.PID, s.Running, s.Waiting, s.Finished, s.FailedN, s.Preempted,
			fmt.Sprintf("%d used, %d kept, %d free", b.LocalUsed, b.LocalKept, b.LocalFree),
			fmt.Sprintf("%d used, %d kept, %d free", b.BorrowedUsed, b.BorrowedKept, b.BorrowedFree),
			configs.Bytes(s.Loaded), configs.Bytes(s.Stored)})
	}
	return t.Render()
}

func unitTable(st *api.AdminStatus) string {
	t := newTable("units of", "with", "at home", "lent", "reclaiming", "fenced", "version")
	for _, m := range st.Models {
		if m.Status == nil || m.Role != configs.RoleWorker {
			continue
		}
		for _, u := range m.Status.Units {
			t.AppendRow(table.Row{m.Name, u.Peer, u.Local, u.Lent, u.Reclaiming, u.Fenced, u.Version})
		}
	}
	return t.Render()
}
