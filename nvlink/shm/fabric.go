package shm

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/topology"
)

// Config configures a Fabric. The zero value is an unpaced fabric that knows
// no topology and accepts every device name.
type Config struct {
	// Topology, when set, limits devices to those it names. Copies between
	// two devices need a link.
	Topology *topology.Topology
	// Pace makes copies between devices as slow as Topology's links.
	Pace bool
	// Budgets limits, by arena, what this fabric's streams together read from
	// and write to it, in bytes per second: other processes' engines work on
	// that memory. A copy under a budget is spread evenly over its time. Copies
	// within one arena are free.
	Budgets map[string]int64
	// Workers is the number of goroutines that a copy of 1 MiB and more is
	// split over; 0 is 1. One core reaches most of the memory bandwidth (see
	// bench/copybw), and the others have an engine to run, so more than
	// one is rarely right.
	Workers int
	// Clock times paced links; nil is a precise clock.
	Clock Clock
}

// Fabric is the shm fabric of one process. It is safe for concurrent use.
type Fabric struct {
	cfg   Config
	links map[[2]string]*link // immutable
	// budgets are links of their own, by arena; immutable.
	budgets map[string]*link

	mu      sync.Mutex
	closed  bool
	streams map[*Stream]struct{}
}

var _ nvlink.Fabric = (*Fabric)(nil)

// New checks cfg and makes a fabric.
func New(cfg Config) (*Fabric, error) {
	if cfg.Pace && cfg.Topology == nil {
		return nil, errors.New("shm fabric: Pace needs a Topology")
	}
	if cfg.Workers < 0 || cfg.Workers > 64 {
		return nil, fmt.Errorf("shm fabric: Workers is %d; want 0 to 64", cfg.Workers)
	}
	cfg.Workers = max(cfg.Workers, 1)
	if cfg.Clock == nil {
		cfg.Clock = preciseClock{}
	}
	f := &Fabric{cfg: cfg, links: map[[2]string]*link{}, budgets: map[string]*link{}, streams: map[*Stream]struct{}{}}
	for arena, rate := range cfg.Budgets {
		if rate < 1 {
			return nil, fmt.Errorf("shm fabric: the budget of arena %q is %d B/s; want at least 1", arena, rate)
		}
		f.budgets[arena] = &link{Link: topology.Link{BytesPerSec: float64(rate)}}
	}
	if cfg.Topology != nil {
		for _, l := range cfg.Topology.Links() {
			f.links[[2]string{l.From, l.To}] = &link{Link: l}
		}
	}
	return f, nil
}

// Kind is "shm".
func (f *Fabric) Kind() string { return "shm" }

// Emulated reports whether links are paced.
func (f *Fabric) Emulated() bool { return f.cfg.Pace }

// NewStream starts a stream of device dev.
func (f *Fabric) NewStream(dev, name string) (nvlink.Stream, error) {
	if f.cfg.Topology != nil && !f.cfg.Topology.Has(dev) {
		return nil, fmt.Errorf("stream %q: unknown device %q; known are %q", name, dev, f.cfg.Topology.Devices())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, fmt.Errorf("stream %q: shm fabric: %w", name, nvlink.ErrClosed)
	}
	s := newStream(f, name)
	f.streams[s] = struct{}{}
	return s, nil
}

// Close closes the streams that are still open, waiting for what they have in
// their queues. Arenas stay open.
func (f *Fabric) Close() error {
	f.mu.Lock()
	f.closed = true
	open := make([]*Stream, 0, len(f.streams))
	for s := range f.streams {
		open = append(open, s)
	}
	f.mu.Unlock()
	var errs []error
	for _, s := range open {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

func (f *Fabric) forget(s *Stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.streams, s)
}

// route finds the link between two arenas: nil without error when the copy is
// not paced.
func (f *Fabric) route(from, to *Arena) (*link, error) {
	if f.cfg.Topology == nil || from.device == to.device {
		return nil, nil
	}
	l := f.links[[2]string{from.device, to.device}]
	if l == nil {
		return nil, fmt.Errorf("no link from device %q to %q: %w", from.device, to.device, nvlink.ErrBadSpan)
	}
	if !f.cfg.Pace {
		return nil, nil
	}
	return l, nil
}

// timed reports whether any copy may be slowed down.
func (f *Fabric) timed() bool { return f.cfg.Pace || len(f.budgets) > 0 }

// budget is what limits traffic to an arena, nil: nothing does.
func (f *Fabric) budget(a, other *Arena) *link {
	if a.inode == other.inode {
		return nil
	}
	return f.budgets[a.name]
}

// hop is the share of a batch that crosses one link.
type hop struct {
	link  *link
	bytes int64
}

func addHop(hops []hop, l *link, n int64) []hop {
	if l == nil {
		return hops
	}
	i := slices.IndexFunc(hops, func(h hop) bool { return h.link == l })
	if i < 0 {
		return append(hops, hop{link: l, bytes: n})
	}
	hops[i].bytes += n
	return hops
}
