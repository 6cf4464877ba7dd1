// Package chaos tries to make a system give a wrong answer, lose memory or
// hang. It starts real processes, loads them with requests of all sizes, and
// kills, stops and disconnects them at random meanwhile. Every answer that
// arrives whole is compared, bit by bit, with the one of a plain engine that
// was computed before; what does not arrive whole has to say so. In the end
// everything must be at home, serve, and stop without leaving anything.
//
// Everything random comes from Options.Seed: the prompts, what each client
// asks for, the schedule of faults. What the processes make of it depends on
// the machine, so a seed repeats the attack and not necessarily its outcome.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/harness"
)

// Options of a run. Zero values mean the defaults.
type Options struct {
	Binary   string // path of kvlend; required
	Seed     uint64
	Duration time.Duration // of the load and the faults; default 60s
	Clients  int           // at once; default 6
	// Overflow gives the master disks: files in the run's temporary directory. Its
	// other memory is small then, so that much comes from them.
	Overflow bool
	// Fabric is what the KV is on; default shm. With cuda the devices are spread
	// over so many GPUs, default 1.
	Fabric configs.Fabric
	GPUs   int
	// Hang is how long a request may take: one that has neither an answer nor
	// an error by then fails the run. Default 60s.
	Hang time.Duration
	// Quiet is how long the system may take, when all is over, to have every
	// process back and all memory free and at home. Default 30s.
	Quiet time.Duration
	// Progress is told, often, what is going on.
	Progress func(string)
}

// Lending times of the system under test: short, so that a run sees leases end
// and deadlines pass many times.
const (
	lease    = 2 * time.Second
	deadline = 500 * time.Millisecond
)

func (o *Options) setDefaults() error {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.Duration, time.Minute)
	def(&o.Hang, time.Minute)
	def(&o.Quiet, 30*time.Second)
	if o.Clients == 0 {
		o.Clients = 6
	}
	if o.Fabric.Kind == "" {
		o.Fabric.Kind = "shm"
	}
	if o.GPUs == 0 {
		o.GPUs = 1
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	switch {
	case o.Binary == "":
		return errors.New("chaos: Binary is empty, want the path of kvlend")
	case o.Duration < time.Second || o.Hang < time.Second || o.Quiet < time.Second:
		return fmt.Errorf("chaos: Duration is %v, Hang %v, Quiet %v: each must be at least 1s", o.Duration, o.Hang, o.Quiet)
	case o.Clients < 1 || o.Clients > 64:
		return fmt.Errorf("chaos: Clients is %d, want 1 to 64", o.Clients)
	}
	return nil
}

// config is the built-in default with short times, and with disks in dir unless
// that is empty.
func config(opt Options, listen, dir string) *configs.Config {
	c := configs.Default()
	c.Fabric = opt.Fabric
	// Indices are then those of the CUDA driver, which CUDA_VISIBLE_DEVICES may change.
	c.Fabric.Topology = configs.TopologyConfig
	if opt.Fabric.Kind == "cuda" {
		for i := range c.Devices {
			c.Devices[i].GPU = strconv.Itoa(i % opt.GPUs)
		}
	}
	if dir != "" {
		withDisks(c, dir)
	}
	c.Gateway.Listen = listen
	c.Lending.Lease = configs.Duration(lease)
	c.Lending.ReclaimDeadline = configs.Duration(deadline)
	c.Lending.IdleReturn = configs.Duration(400 * time.Millisecond)
	c.Lending.ScaleDown.Window = configs.Duration(time.Second)
	return c
}

// withDisks gives the master two disks of unequal size and less of all other
// memory.
func withDisks(c *configs.Config, dir string) {
	m := &c.Models[slices.IndexFunc(c.Models, func(m configs.Model) bool { return m.Role == configs.RoleMaster })]
	m.Arena = m.Arena * 3 / 8
	for i, size := range []configs.Bytes{24 << 20, 40 << 20} {
		name := fmt.Sprint("disk", i)
		m.Overflow.Devices = append(m.Overflow.Devices, configs.Disk{Name: name, Path: filepath.Join(dir, name), Size: size})
	}
	m.Overflow.AdmitAfter = 1
	for i := range c.Models {
		if w := &c.Models[i]; w.Role == configs.RoleWorker {
			w.Floor = w.Arena * 3 / 4
		}
	}
}

// run is the state of one run.
type run struct {
	opt   Options
	sys   *harness.System
	books *books
	watch *watch
	http  *httpClient
	asks  []ask  // with known answers
	log   string // of the system under attack
}

// Run attacks a system and returns what happened. An error means that the
// attack could not be carried out; whether the system withstood it is
// Result.Err's to say.
func Run(ctx context.Context, opt Options) (*Result, error) {
	if err := opt.setDefaults(); err != nil {
		return nil, err
	}
	asks, err := makeAsks(ctx, opt)
	if err != nil {
		return nil, fmt.Errorf("reference answers: %w", err)
	}
	// Run directories must have short names.
	dir, err := os.MkdirTemp("", "kvc")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	listen, err := harness.FreePort()
	if err != nil {
		return nil, err
	}
	disks := ""
	if opt.Overflow {
		disks = dir
	}
	hopt := harness.Options{Binary: opt.Binary, Dir: dir, Config: config(opt, listen, disks)}
	opt.Progress("starting the system")
	sys, err := harness.Start(ctx, hopt)
	if err != nil {
		return nil, err
	}
	r := &run{opt: opt, sys: sys, books: newBooks(), http: newHTTPClient(sys.Endpoint), asks: asks}
	defer r.http.close()
	r.watch = newWatch(r)
	res := &Result{Seed: opt.Seed, Duration: opt.Duration, Overflow: opt.Overflow, Fabric: opt.Fabric.Kind, GPUs: opt.GPUs, Emulated: sys.View.Emulated}
	start := time.Now()
	r.attack(ctx)
	res.Elapsed = time.Since(start)
	if ctx.Err() == nil {
		r.aftermath(ctx, hopt)
	}
	res.Interrupted = ctx.Err() != nil
	r.sys.Kill()
	if r.log == "" {
		r.log = r.sys.Log()
	}
	r.fill(res)
	return res, ctx.Err()
}

// attack runs load, faults and watchers for the duration, then lets the
// requests under way come to their end.
func (r *run) attack(ctx context.Context) {
	actx, stop := context.WithTimeout(ctx, r.opt.Duration)
	defer stop()
	wctx, stopWatch := context.WithCancel(ctx)
	var watchers, load sync.WaitGroup
	r.watch.start(wctx, &watchers)
	watchers.Go(func() { r.report(wctx) })
	for i := range r.opt.Clients {
		load.Go(func() { r.client(ctx, actx, i) })
	}
	f := &faults{run: r, rng: rand.New(rand.NewPCG(r.opt.Seed, 0xfa01))}
	f.inflict(actx)
	load.Wait()
	stopWatch()
	watchers.Wait()
}

// report tells about progress until ctx ends.
func (r *run) report(ctx context.Context) {
	start := time.Now()
	for pause(ctx, 200*time.Millisecond) {
		r.opt.Progress(fmt.Sprintf("%v of %v: %s", time.Since(start).Round(time.Second), r.opt.Duration, r.books.line()))
	}
}

// pause waits; false means that ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
