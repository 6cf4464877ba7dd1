package chaos

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/harness"
)

// aftermath checks that the system is what it was: quiet, whole and right;
// then that it survives the death of its supervisor, and stops in good order.
func (r *run) aftermath(ctx context.Context, opt harness.Options) {
	for _, p := range r.sys.Processes() {
		r.sys.Signal(p, unix.SIGCONT)
	}
	r.opt.Progress("waiting for quiet")
	r.until(ctx, "quiet after the attack", r.idle)
	r.serve(ctx, "after the attack")
	r.until(ctx, "quiet after the last requests", r.idle)
	r.until(ctx, "everything at home after a drain", r.home)
	r.log = r.sys.Log()
	r.readLog()
	select {
	case <-r.sys.Exited():
		r.books.problem("the supervisor has ended:\n%s", tail(r.sys.Log(), 20))
		return
	default:
	}
	r.opt.Progress("killing the supervisor")
	r.sys.KillSupervisor()
	if err := r.sys.Left(false); err != nil {
		r.books.problem("after kill -9 of the supervisor: %v", err)
		r.sys.Kill()
	}
	sys, err := harness.Start(ctx, opt)
	if err != nil {
		r.books.problem("after kill -9 of the supervisor: the next start: %v", err)
		return
	}
	r.sys = sys
	r.serve(ctx, "after the restart")
	r.readLog()
	if err := sys.Stop(); err != nil {
		r.books.problem("stop: %v", err)
	}
}

// until waits for a state of the system.
func (r *run) until(ctx context.Context, what string, ok func(context.Context) error) {
	qctx, cancel := context.WithTimeout(ctx, r.opt.Quiet)
	defer cancel()
	start := time.Now()
	for {
		err := ok(qctx)
		if err == nil {
			r.watch.note(fmt.Sprintf("%s: %v", what, time.Since(start).Round(time.Millisecond)))
			return
		}
		if !pause(qctx, 20*time.Millisecond) {
			if ctx.Err() == nil {
				r.books.problem("not %s within %v: %v", what, r.opt.Quiet, err)
			}
			return
		}
	}
}

// idle says what a system still does or holds for requests, and what the books
// of lenders and borrower disagree about. Prefixes that are kept may lie in
// borrowed units.
func (r *run) idle(ctx context.Context) error {
	st, err := r.sys.Status(ctx)
	if err != nil {
		return err
	}
	held := map[string]int{} // units that masters have, by worker
	for _, name := range models {
		s := st[name]
		if s == nil {
			return fmt.Errorf("%s does not answer", name)
		}
		if s.Running != 0 || s.Waiting != 0 || s.Blocks.LocalUsed != 0 || s.Blocks.BorrowedUsed != 0 {
			return fmt.Errorf("%s: %d running, %d waiting, blocks %+v", name, s.Running, s.Waiting, s.Blocks)
		}
		if s.Model.Role == configs.RoleMaster {
			for _, u := range s.Units {
				held[u.Peer] += u.Lent
			}
		}
	}
	for _, name := range models {
		want := r.sys.View.Units(name)
		for _, u := range st[name].Units {
			if st[name].Model.Role == configs.RoleWorker && (u.Reclaiming+u.Fenced != 0 || u.Local+u.Lent != want || u.Lent != held[name]) {
				return fmt.Errorf("%s: units %+v of %d, the master has %d", name, u, want, held[name])
			}
		}
	}
	return nil
}

// home drains the masters, says what did not come home then, and ends the drain.
func (r *run) home(ctx context.Context) error {
	st, err := r.sys.Status(ctx)
	if err != nil {
		return err
	}
	for _, name := range models {
		if st[name] == nil || st[name].Model.Role != configs.RoleMaster {
			continue
		}
		d, err := r.sys.Drain(ctx, name, false)
		if err != nil {
			return err
		}
		if !d.Drained() {
			return fmt.Errorf("drain of %s: %+v", name, *d)
		}
		if _, err := r.sys.Drain(ctx, name, true); err != nil {
			return err
		}
	}
	if st, err = r.sys.Status(ctx); err != nil {
		return err
	}
	for _, name := range models {
		for _, u := range st[name].Units {
			if want := r.sys.View.Units(name); st[name].Model.Role == configs.RoleWorker && u.Local != want {
				return fmt.Errorf("%s: units %+v, want all of %d at home", name, u, want)
			}
		}
	}
	return nil
}

// serve sends every request once.
func (r *run) serve(ctx context.Context, when string) {
	for _, a := range r.asks {
		if ctx.Err() != nil {
			return
		}
		r.opt.Progress(fmt.Sprintf("%s, %d tokens, %s", a.Model, len(a.Prompt), when))
		rctx, cancel := context.WithTimeout(ctx, r.opt.Hang)
		receipt, err := r.http.do(rctx, a, false, nil)
		cancel()
		if err == nil {
			err = a.right(receipt.TokenIDs, receipt.LogitsHash)
		}
		if err != nil {
			r.books.problem("%s, %d tokens, %s: %v", a.Model, len(a.Prompt), when, err)
			continue
		}
		r.books.count(right)
	}
}

// readLog looks for what no process may ever write.
func (r *run) readLog() {
	log := r.sys.Log()
	for _, sign := range []string{"panic:", "BUG:", "fatal error:", "unexpected fault address"} {
		if i := strings.Index(log, sign); i >= 0 {
			r.books.problem("a process wrote %q:\n%.4000s", sign, log[max(0, i-300):])
		}
	}
}

func tail(text string, lines int) string {
	all := strings.Split(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
