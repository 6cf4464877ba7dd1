package lending

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/agent"
	"github.com/kvlend/kvlend/coordinator/transport"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

// CompeteOptions of a contest between two masters. Zero values mean the
// defaults, which are those of a configuration where it has them.
type CompeteOptions struct {
	Units      int           // that the worker can lend; default 100
	Rounds     int           // of each case; default 3
	Deadline   time.Duration // of a reclaim; default 2s
	IdleReturn time.Duration // after which a master returns what it does not use; default 10s
	Work       time.Duration // that a master does with what it needs; default 100ms
	// Progress is told what is being measured.
	Progress func(string)
}

func (o *CompeteOptions) setDefaults() error {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.Deadline, 2*time.Second)
	def(&o.IdleReturn, 10*time.Second)
	def(&o.Work, 100*time.Millisecond)
	if o.Units == 0 {
		o.Units = 100
	}
	if o.Rounds == 0 {
		o.Rounds = 3
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Units < 10 || o.Rounds < 1 || min(o.Deadline, o.IdleReturn, o.Work) < time.Millisecond {
		return fmt.Errorf("lending: Units is %d, Rounds %d, Deadline %v, IdleReturn %v, Work %v: want at least 10, 1 and 1ms",
			o.Units, o.Rounds, o.Deadline, o.IdleReturn, o.Work)
	}
	return nil
}

// Competition is what Compete measured: until both masters had what they need.
type Competition struct {
	Units int       `json:"units"`
	Rows  []Contest `json:"rows"`
}

// Contest is one case, with a worker that leaves everybody what it has, and
// with one that has units asked back for whoever has less than its share.
type Contest struct {
	Case      string          `json:"case"`
	FirstCome []time.Duration `json:"first_come_ns"` // ascending
	Shared    []time.Duration `json:"shared_ns"`     // ascending
}

// Ratio is how many times longer the median takes without shares.
func (c *Contest) Ratio() float64 { return float64(median(c.FirstCome)) / float64(median(c.Shared)) }

func median(d []time.Duration) time.Duration { return d[len(d)/2] }

// rivalry is what two masters have and need at the beginning, in percent.
type rivalry struct {
	name       string
	have, need [2]int
}

var rivalries = []rivalry{
	{"one has all and is idle, the other needs half", [2]int{100, 0}, [2]int{0, 50}},
	{"each has half and needs 70%", [2]int{50, 50}, [2]int{70, 70}},
}

// Compete measures how long two masters wait for one worker's units. The
// masters return what they are asked for, and what they have not used for
// IdleReturn; links are real, and nothing but the protocol takes time.
func Compete(ctx context.Context, opt CompeteOptions) (*Competition, error) {
	if err := opt.setDefaults(); err != nil {
		return nil, err
	}
	res := &Competition{Units: opt.Units}
	for _, r := range rivalries {
		row := Contest{Case: r.name}
		for i := range opt.Rounds {
			for _, firstCome := range []bool{true, false} {
				opt.Progress(fmt.Sprintf("%s, first come %t, round %d", r.name, firstCome, i+1))
				d, err := compete(ctx, opt, r, firstCome)
				if err != nil {
					return nil, fmt.Errorf("%s, first come %t: %w", r.name, firstCome, err)
				}
				if firstCome {
					row.FirstCome = append(row.FirstCome, d)
				} else {
					row.Shared = append(row.Shared, d)
				}
			}
		}
		slices.Sort(row.FirstCome)
		slices.Sort(row.Shared)
		res.Rows = append(res.Rows, row)
	}
	return res, nil
}

// WriteTable writes the result for people.
func (c *Competition) WriteTable(w io.Writer) error {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = 0 // as written
	t.AppendHeader(table.Row{"two masters, one worker", "n", "first come", "max", "shares", "max", "ratio"})
	for _, x := range c.Rows {
		t.AppendRow(table.Row{x.Case, len(x.Shared), us(median(x.FirstCome)), us(slices.Max(x.FirstCome)),
			us(median(x.Shared)), us(slices.Max(x.Shared)), fmt.Sprintf("%.0f", x.Ratio())})
	}
	_, err := fmt.Fprintf(w, "until both have had what they need; %d units, medians\n\n%s\n", c.Units, t.Render())
	return err
}

// rival is a master's tenant that only counts units.
type rival struct {
	agent *agent.Borrower
	ready chan struct{} // closed when the agent is there

	mu      sync.Mutex
	held    []wire.UnitEpoch
	need    int
	touched time.Time
	met     chan struct{} // capacity 1
}

// ask asks for what is missing: with less of it nothing goes on. The caller
// holds mu.
func (r *rival) ask() {
	if n := r.need - len(r.held); n > 0 {
		r.agent.Want(coordinator.Wish{Units: n, Least: n})
	}
}

func (r *rival) setNeed(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.need, r.touched = n, time.Now()
	r.look()
}

// look tells whether the need is met, or asks again. The caller holds mu.
func (r *rival) look() {
	if r.need > 0 && len(r.held) >= r.need {
		select {
		case r.met <- struct{}{}:
		default:
		}
	}
	r.ask()
}

// Granted implements agent.Tenant.
func (r *rival) Granted(units []wire.UnitEpoch) {
	<-r.ready
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = append(r.held, units...)
	r.touched = time.Now()
	r.look()
}

// Denied implements agent.Tenant.
func (r *rival) Denied(time.Duration, int) {}

// Retry implements agent.Tenant.
func (r *rival) Retry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ask()
}

// Lost implements agent.Tenant.
func (r *rival) Lost(units []wire.UnitEpoch) { r.agent.Release(units) }

// Reclaim implements agent.Tenant.
func (r *rival) Reclaim(n int, done func(int)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, len(r.held))
	r.agent.Release(r.held[:n:n])
	r.held = r.held[n:]
	r.ask()
	done(n)
}

// returnIdle returns what was not used for a time, as a master's cache does:
// units that it waits with are not in use.
func (r *rival) returnIdle(after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) == 0 || time.Since(r.touched) < after {
		return
	}
	r.agent.Release(r.held)
	r.held = nil
	r.ask()
}

// competition is a worker and two masters.
type competition struct {
	mu      sync.Mutex // guards the units and the lender's machine
	rivals  [2]*rival
	closers []func()
}

// Locked implements agent.Landlord.
func (c *competition) Locked(f func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *competition) close() {
	for i := len(c.closers) - 1; i >= 0; i-- {
		c.closers[i]()
	}
}

func compete(ctx context.Context, opt CompeteOptions, r rivalry, firstCome bool) (time.Duration, error) {
	dir, err := os.MkdirTemp("", "kvl") // sockets need short names
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	c := &competition{}
	defer c.close()
	if err := c.open(dir, opt, firstCome); err != nil {
		return 0, err
	}
	for i, m := range c.rivals {
		if n := r.have[i] * opt.Units / 100; n > 0 {
			m.setNeed(n)
			if err := m.wait(ctx, opt); err != nil {
				return 0, err
			}
		}
		m.setNeed(0)
	}
	start := time.Now()
	for i, m := range c.rivals {
		m.setNeed(r.need[i] * opt.Units / 100)
	}
	var wg sync.WaitGroup
	var errs [2]error
	var done [2]time.Time
	for i, m := range c.rivals {
		if r.need[i] == 0 {
			continue
		}
		wg.Go(func() {
			errs[i] = m.wait(ctx, opt)
			done[i] = time.Now()
			time.Sleep(opt.Work)
			m.setNeed(0)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	if done[0].After(done[1]) {
		done[1] = done[0]
	}
	return done[1].Sub(start), nil
}

// wait waits until the need is met.
func (r *rival) wait(ctx context.Context, opt CompeteOptions) error {
	limit := 10*opt.IdleReturn + opLimit
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-r.met:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return fmt.Errorf("a master did not get what it needs within %v", limit)
	}
}

// open starts the worker's and the masters' agents.
func (c *competition) open(dir string, opt CompeteOptions, firstCome bool) error {
	links, err := transport.OpenDir(filepath.Join(dir, "l"), transport.Options{})
	if err != nil {
		return err
	}
	geo := geometry("w")
	spec, err := elastic.NewUnitSpec(elastic.PolicyLCM, 0, geo)
	if err != nil {
		return err
	}
	table, err := elastic.FormatUnitTable(make([]byte, elastic.UnitTableBytes(opt.Units)), spec, int64(opt.Units)*spec.Bytes, 9)
	if err != nil {
		return err
	}
	units, err := elastic.NewUnits(elastic.UnitsOptions{Geometry: geo, Spec: spec, Table: table})
	if err != nil {
		return err
	}
	lender := agent.NewLender(agent.LenderConfig{
		Units: units, Landlord: c, Spare: func(coordinator.Wish) int { return units.Grantable() }, Lease: lease, Deadline: opt.Deadline, FirstCome: firstCome,
		Stuck: func(string, string) {}, Self: wire.Hello{Model: "w", Role: "worker", ConfigHash: "c"}, Log: quiet{},
	})
	c.closers = append(c.closers, lender.Close)
	for i := range c.rivals {
		name := fmt.Sprintf("m%d", i)
		ln, err := links.Listen("w", name)
		if err == nil {
			err = lender.Serve(name, uint32(i), ln)
		}
		if err != nil {
			return err
		}
		if c.rivals[i], err = c.openRival(links, name, opt); err != nil {
			return err
		}
	}
	return nil
}

func (c *competition) openRival(links *transport.Dir, name string, opt CompeteOptions) (*rival, error) {
	d, err := links.Dialer("w", name)
	if err != nil {
		return nil, err
	}
	r := &rival{ready: make(chan struct{}), met: make(chan struct{}, 1), touched: time.Now()}
	r.agent, err = agent.OpenBorrower(agent.BorrowerConfig{
		Worker: "w", Dialer: d, Tenant: r, Log: quiet{}, Self: wire.Hello{Model: name, Role: "master", ConfigHash: "c"},
	})
	if err != nil {
		return nil, err
	}
	close(r.ready)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(max(opt.IdleReturn/4, time.Millisecond))
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				r.returnIdle(opt.IdleReturn)
			}
		}
	})
	c.closers = append(c.closers, r.agent.Close, wg.Wait, cancel)
	return r, nil
}
