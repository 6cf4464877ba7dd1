package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator/agent"
	"github.com/kvlend/kvlend/internal/audit"
)

// auditSupervisor is the supervisor's name in the audit directory.
const auditSupervisor = "supervisor"

// openAudit opens a process's account, nil where none is kept.
func openAudit(c *configs.Config, name string, log hclog.Logger) (*audit.Log, error) {
	if c.Audit.Dir == "" {
		return nil, nil
	}
	return audit.Open(c.Audit.Dir, name, audit.Options{
		MaxBytes: int64(c.Audit.MaxFile), Keep: c.Audit.Keep,
		Failed: func(err error) { log.Error("audit records cannot be written", "reason", err) },
	})
}

// recordUnits writes what a lender says into an account.
func recordUnits(l *audit.Log) func(agent.Event) {
	if l == nil {
		return nil
	}
	return func(e agent.Event) {
		r := audit.Record{Kind: string(e.Kind), Peer: e.Peer, PeerPID: e.PID, N: e.N, Reason: e.Reason}
		for _, u := range e.Units {
			r.Units = append(r.Units, [2]uint64{uint64(u.Unit), u.Epoch})
		}
		l.Record(r)
	}
}

func auditCmd() *cobra.Command {
	var asJSON, follow bool
	c := &cobra.Command{
		Use:   "audit FILE...",
		Short: "Print the account of who held whose memory",
		Long: `Print the account of who held whose memory.

Processes keep it in the directory audit.dir of the configuration: NAME.jsonl is
the current file of a worker (or of "supervisor"), NAME.1.jsonl the one before.
Units are shown with the epochs under which their borrower held them. A line that
a crash has cut off is skipped and counted.`,
		Example: "  kvlend audit /var/lib/kvlend/audit/*.jsonl\n  kvlend audit --follow /var/lib/kvlend/audit/birch.jsonl",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("audit needs a file")
			}
			p := &auditPrinter{out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), asJSON: asJSON}
			if follow {
				return p.follow(cmd.Context(), args)
			}
			return p.files(args)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the records as JSON lines")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more until interrupted; also when the file is put aside")
	return c
}

// auditPrinter prints records as they come.
type auditPrinter struct {
	out, errs io.Writer
	asJSON    bool
	titled    bool
}

func (p *auditPrinter) files(paths []string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		damaged, err := audit.Scan(f, p.print)
		p.complain(path, damaged)
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// follow prints what all files get, in the order in which it comes.
func (p *auditPrinter) follow(ctx context.Context, paths []string) error {
	g, ctx := errgroup.WithContext(ctx)
	records := make(chan audit.Record)
	for _, path := range paths {
		g.Go(func() error {
			damaged, err := audit.Follow(ctx, path, func(r audit.Record) error {
				select {
				case records <- r:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			p.complain(path, damaged)
			return nil
		})
	}
	g.Go(func() error {
		for {
			select {
			case r := <-records:
				if err := p.print(r); err != nil {
					return err
				}
			case <-ctx.Done():
				return nil
			}
		}
	})
	return g.Wait()
}

func (p *auditPrinter) complain(path string, damaged int) {
	if damaged > 0 {
		fmt.Fprintf(p.errs, "%s: %d lines are no records: cut off by a crash, or foreign\n", path, damaged)
	}
}

// auditRow is the layout of a printed record; a table that is drawn at its end
// could not be followed.
const auditRow = "%-29s  %-12s  %-8s  %-12s  %8s  %5s  %s\n"

func (p *auditPrinter) print(r audit.Record) error {
	if p.asJSON {
		return json.NewEncoder(p.out).Encode(r)
	}
	if !p.titled {
		p.titled = true
		if _, err := fmt.Fprintf(p.out, auditRow, "time", "by", "what", "whom", "pid", "units", "details"); err != nil {
			return err
		}
	}
	n, pid := "", ""
	if count := max(len(r.Units), r.N); count > 0 {
		n = strconv.Itoa(count)
	}
	if r.PeerPID > 0 {
		pid = strconv.Itoa(r.PeerPID)
	}
	_, err := fmt.Fprintf(p.out, auditRow, r.Time.Format("2006-01-02T15:04:05.000Z07:00"), plain(r.By), plain(r.Kind), plain(r.Peer), pid, n, auditDetails(r))
	return err
}

// auditDetails shows the reason and the first units as unit@epoch.
func auditDetails(r audit.Record) string {
	const most = 8
	var parts []string
	if r.Reason != "" {
		parts = append(parts, plain(r.Reason))
	}
	for i, u := range r.Units {
		if i == most {
			parts = append(parts, "...")
			break
		}
		parts = append(parts, fmt.Sprintf("%d@%d", u[0], u[1]))
	}
	return strings.Join(parts, " ")
}

// plain shows a text from a file without what could steer a terminal.
func plain(s string) string {
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}
