package chaos

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/internal/supervisor"
)

// probeLimit is how long a probe may take before it is tried again.
const probeLimit = 10 * time.Second

// watch sees from outside what the faults do: how long until a victim serves
// again, the longest time without an answer, units that go missing.
type watch struct {
	run *run

	mu       sync.Mutex
	served   map[string]time.Time // by model: start of the last probe that was answered rightly
	answered map[string]time.Time // and its end
	outage   map[string]time.Duration
	state    map[string]*victim
	faults   map[string]map[string]int // by victim and kind
	skipped  int                       // faults whose victim was not there
	notes    []string
	timeline []string
	began    time.Time
	fenced   map[string]*fencing // by worker
}

// victim is what is going on with one process.
type victim struct {
	ongoing int       // faults that have not ended
	round   int       // raised by every fault
	hurt    bool      // it has not served since the last fault ended
	ended   time.Time // of the last fault
	clean   bool      // no other fault came between
	took    []time.Duration
}

// fencing is how long units of a worker have been fenced.
type fencing struct {
	since   time.Time // zero: none is
	longest time.Duration
}

func newWatch(r *run) *watch {
	w := &watch{
		run: r, began: time.Now(), served: map[string]time.Time{}, answered: map[string]time.Time{}, outage: map[string]time.Duration{},
		state: map[string]*victim{}, faults: map[string]map[string]int{}, fenced: map[string]*fencing{},
	}
	for _, v := range victims {
		w.state[v], w.faults[v] = &victim{}, map[string]int{}
	}
	return w
}

// start starts a prober per model and the watcher over units.
func (w *watch) start(ctx context.Context, wg *sync.WaitGroup) {
	for _, m := range models {
		wg.Go(func() { w.probe(ctx, m) })
	}
	wg.Go(func() { w.units(ctx) })
}

// hit is a fault under way.
type hit struct {
	w      *watch
	victim string
	round  int
}

func (w *watch) begin(name, kind string, pid int) *hit {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.happened("%s %s (pid %d)", kind, name, pid)
	v := w.state[name]
	v.clean = v.ongoing == 0 && !v.hurt
	v.ongoing++
	v.round++
	return &hit{w, name, v.round}
}

func (h *hit) end(kind string, done bool) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	v := h.w.state[h.victim]
	v.ongoing--
	if done {
		h.w.faults[h.victim][kind]++
		h.w.happened("%s %s: over", kind, h.victim)
	}
	v.hurt, v.ended = true, time.Now()
	v.clean = v.clean && v.round == h.round
}

func (w *watch) missed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.skipped++
}

// slowProbe is what the timeline mentions.
const slowProbe = 3 * time.Second

// happened adds a line to the timeline. mu is held.
func (w *watch) happened(format string, args ...any) {
	w.timeline = append(w.timeline, fmt.Sprintf("%8.3fs ", time.Since(w.began).Seconds())+fmt.Sprintf(format, args...))
}

func (w *watch) note(s string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, s)
}

// calm returns a function that reports whether the gateway has been left alone
// and well from the call of calm to that of the function.
func (w *watch) calm() func() bool {
	look := func() (bool, int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		g := w.state[supervisor.GatewayName]
		return g.ongoing == 0 && !g.hurt, g.round
	}
	ok, round := look()
	return func() bool {
		still, r := look()
		return ok && still && r == round
	}
}

// probe asks a model for a short answer again and again.
func (w *watch) probe(ctx context.Context, model string) {
	w.mu.Lock()
	w.answered[model] = time.Now()
	w.mu.Unlock()
	a := probe(w.run.asks, model)
	for pause(ctx, 20*time.Millisecond) {
		pctx, cancel := context.WithTimeout(ctx, probeLimit)
		start := time.Now()
		receipt, err := w.run.http.do(pctx, a, false, nil)
		cancel()
		if took := time.Since(start); took > slowProbe {
			w.mu.Lock()
			w.happened("probe of %s took %v: %v", model, took.Round(time.Millisecond), err)
			w.mu.Unlock()
		}
		if err != nil {
			continue
		}
		if err := a.right(receipt.TokenIDs, receipt.LogitsHash); err != nil {
			w.run.books.count(wrong)
			w.run.books.problem("wrong answer to a probe: %v", err)
			continue
		}
		w.success(model, start, time.Now())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outage[model] = max(w.outage[model], time.Since(w.answered[model]))
}

// success books an answered probe: whoever was hit before it started and is
// needed for it has recovered.
func (w *watch) success(model string, start, end time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outage[model] = max(w.outage[model], end.Sub(w.answered[model]))
	w.answered[model], w.served[model] = end, start
	for _, name := range []string{model, supervisor.GatewayName} {
		v := w.state[name]
		if !v.hurt || v.ongoing > 0 || start.Before(v.ended) {
			continue
		}
		v.hurt = false
		w.happened("%s serves again", name)
		if v.clean {
			v.took = append(v.took, end.Sub(v.ended))
		}
	}
}

// units looks at the workers' units until ctx ends.
func (w *watch) units(ctx context.Context) {
	for pause(ctx, 100*time.Millisecond) {
		sctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		st, err := w.run.sys.Status(sctx)
		cancel()
		if err != nil {
			continue
		}
		for name, s := range st {
			if s != nil && len(s.Units) > 0 && s.Model.Role == "worker" {
				w.account(name, s)
			}
		}
	}
}

// account checks that no unit of a worker is missing.
func (w *watch) account(name string, s *wire.Status) {
	total := s.Units[0].Local
	fenced := 0
	for _, u := range s.Units {
		total += u.Lent + u.Reclaiming + u.Fenced
		fenced += u.Fenced
	}
	if want := w.run.sys.View.Units(name); total != want {
		w.run.books.problem("%s accounts for %d units of %d: %+v", name, total, want, s.Units)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.fenced[name]
	if f == nil {
		f = &fencing{}
		w.fenced[name] = f
	}
	switch now := time.Now(); {
	case fenced == 0:
		f.since = time.Time{}
	case f.since.IsZero():
		f.since = now
	default:
		f.longest = max(f.longest, now.Sub(f.since))
	}
}
