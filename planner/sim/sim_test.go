package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner"
)

// server is a small system of simulated GPUs: a master whose arena holds little,
// and two workers.
const server = `
version: 1
fabric: {kind: cuda}
devices:
  - {name: gpu0, kind: H100-SXM, memory: 80GB}
  - {name: gpu1, kind: H100-SXM, memory: 80GB}
  - {name: gpu2, kind: H100-SXM, memory: 80GB}
models:
  - {name: m, source: "catalog:Qwen3-8B", role: master, device: gpu0, arena: 2GiB, max_batch_tokens: 1024, max_running: 16, lsc: {buffers: BUFFERS} EXTRA}
  - {name: a, source: "catalog:Qwen3-14B", role: worker, device: gpu1, arena: 2GiB, max_batch_tokens: 1024, max_running: 16, floor: 512MiB}
  - {name: b, source: "catalog:Qwen3-8B", role: worker, device: gpu2, arena: 3GiB, max_batch_tokens: 1024, max_running: 16, floor: 512MiB}
lending:
  unit: {policy: POLICY}
  scale_down: {policy: window, window: 5s}
  keep_prefix: 1s
`

const disks = `, overflow: {admit_after: 1, devices: [{name: ssd0, path: /dev/nvme0n1, size: 8GiB, rated_writes: 100TB}, {name: mem, path: dram, size: 2GiB}]}`

func resolve(t *testing.T, text string) *planner.System {
	t.Helper()
	c, err := configs.Parse([]byte(text), "test")
	if err != nil {
		t.Fatal(err)
	}
	s, err := planner.Resolve(c, configs.CatalogGeometry)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func shaped(policy, buffers, extra string) string {
	return strings.NewReplacer("POLICY", policy, "BUFFERS", buffers, "EXTRA", extra).Replace(server)
}

// talks are conversations whose KV does not fit into the master's arena.
func talks(t *testing.T, seed uint64, rate float64) *trace.Trace {
	t.Helper()
	s := trace.Synthetic{Sessions: 24, Rate: rate, Turns: 4, Think: 2 * time.Second, First: 900, Next: 300, Answer: 40, Sigma: 0.6, System: 300, SystemShare: 0.7, Seed: seed}
	tr, err := s.Make()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// both loads the master and a worker.
func both(t *testing.T, sys *planner.System, seed uint64) Options {
	return Options{System: sys, Hardware: NewHardware(sys.Config, Machine{}), Loads: []Load{
		{Model: "m", Trace: talks(t, seed, 3), Seed: seed},
		{Model: "b", Trace: talks(t, seed+1, 1.5), Seed: seed, Timing: ByTrace},
	}}
}

// simulate runs and checks what must hold of every run: all requests are answered,
// tokens are accounted for, and the caches of the running system find no invariant
// of theirs broken.
func simulate(t *testing.T, o Options) *Result {
	t.Helper()
	w, err := newWorld(o.System, o.Hardware)
	if err != nil {
		t.Fatal(err)
	}
	var drivers []*driver
	for i := range o.Loads {
		l := &o.Loads[i]
		d := newDriver(l, w.procs[o.System.Model(l.Model).Index], Front{}, NewAnswers(l.Model))
		drivers = append(drivers, d)
		d.begin()
	}
	end, err := w.run(context.Background(), drivers, nil)
	if err != nil {
		t.Fatal(err)
	}
	for m, c := range w.masters {
		if err := c.Check(); err != nil {
			t.Errorf("%s: %v", m.Config.Name, err)
		}
	}
	for m, c := range w.workers {
		if err := c.cache.Check(); err != nil {
			t.Errorf("%s: %v", m.Config.Name, err)
		}
	}
	r := w.result(drivers, end)
	for i, a := range r.Answers {
		if want := o.Loads[i].Trace.Size().Turns; a.Answered != want {
			t.Errorf("%s: %d of %d turns answered, refused %v: %v", a.Model, a.Answered, want, a.Refused, a.Reasons)
		}
		tiers := a.Tiers
		if sum := tiers.Computed + tiers.Local + tiers.Borrowed + tiers.Host + tiers.Pool; sum != a.Prompt || tiers.Computed < 0 {
			t.Errorf("%s: %+v are %d of %d prompt tokens", a.Model, tiers, sum, a.Prompt)
		}
		if a.All.Min() <= 0 || a.All.Count() != uint64(a.Answered) {
			t.Errorf("%s: first tokens after %v s at least, %d of them", a.Model, a.All.Min(), a.All.Count())
		}
	}
	return r
}

// Whatever the policy, the buffers and what lies behind: everything is answered, KV
// comes from where it should, and a second run is equal to the byte.
func TestSystems(t *testing.T) {
	for name, text := range map[string]string{
		"lcm":            shaped("lcm", "1", ""),
		"layer-lcm":      shaped("layer-lcm", "2", ""),
		"padded":         shaped("padded, max_waste: 5%", "2", ""),
		"pool":           shaped("layer-lcm", "2", disks),
		"host":           shaped("layer-lcm", "2", ", host: {bytes: 16GiB}"),
		"host, at once":  shaped("layer-lcm", "2", ", host: {bytes: 16GiB, sync: true}"),
		"budget of link": shaped("layer-lcm", "2", "") + "  link_budget: 5GB/s\n",
	} {
		if testing.Short() && name != "pool" {
			continue // there is one goroutine, so the long tests see as much
		}
		t.Run(name, func(t *testing.T) {
			var first []byte
			for range 2 {
				r := simulate(t, both(t, resolve(t, text), 7))
				if r.Answers[0].Tiers.Borrowed == 0 || r.Lent.Mean == 0 || r.Control.Granted == 0 {
					t.Errorf("nothing was borrowed: %+v, %+v", r.Answers[0].Tiers, r.Control)
				}
				out, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				if first != nil && !bytes.Equal(first, out) {
					t.Error("two runs differ")
				}
				first = out
			}
		})
	}
}

func TestPoolServes(t *testing.T) {
	r := simulate(t, both(t, resolve(t, shaped("layer-lcm", "2", disks)), 7))
	if r.Answers[0].Tiers.Pool == 0 {
		t.Errorf("nothing came from the pool: %+v", r.Answers[0].Tiers)
	}
	if len(r.Disks) != 2 || r.Disks[0].Written == 0 || r.Disks[0].Years <= 0 || r.Disks[1].Years != 0 {
		t.Errorf("disks: %+v", r.Disks)
	}
}

// A master without lenders, and models that neither lend nor borrow.
func TestWithoutLending(t *testing.T) {
	sys := resolve(t, shaped("lcm", "1", ""))
	alone, err := configs.Baseline("local-only", sys.Config)
	if err != nil {
		t.Fatal(err)
	}
	s, err := planner.Resolve(alone, configs.CatalogGeometry)
	if err != nil {
		t.Fatal(err)
	}
	r := simulate(t, both(t, s, 7))
	if r.Control.Messages != 0 || r.Answers[0].Tiers.Borrowed != 0 {
		t.Errorf("lending without lenders: %+v, %+v", r.Control, r.Answers[0].Tiers)
	}
}

// A worker that gets busy takes its memory back, and nothing is lost by it.
func TestReclaims(t *testing.T) {
	sys := resolve(t, shaped("layer-lcm", "2", ""))
	o := both(t, sys, 3)
	o.Loads[1].Trace = talks(t, 11, 6)
	r := simulate(t, o)
	o = both(t, sys, 3)
	o.Loads[1].Trace = talks(t, 11, 6)
	again, err := json.Marshal(simulate(t, o))
	if first, err2 := json.Marshal(r); err != nil || err2 != nil || !bytes.Equal(first, again) {
		t.Error("two runs differ")
	}
	if r.End < r.Answers[0].End {
		t.Errorf("it ended after %v, before the last answer at %v", r.End, r.Answers[0].End)
	}
	if r.Control.Reclaims == 0 || r.Control.Asked == 0 {
		t.Errorf("no unit was asked back: %+v", r.Control)
	}
	if r.Control.Fenced != 0 {
		t.Errorf("%d units were fenced, of a master that is alive", r.Control.Fenced)
	}
}

func TestEnds(t *testing.T) {
	sys := resolve(t, shaped("lcm", "1", ""))
	o := both(t, sys, 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v", err)
	}
	o.Loads[0].Model = "nobody"
	if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), `loads[0]: model "nobody"`) {
		t.Errorf("a load for nobody: %v", err)
	}
	o = both(t, sys, 1)
	o.Loads[0].Length = 4 * time.Second
	r, err := Run(context.Background(), o)
	if err != nil || r.Answers[0].Unsent == 0 {
		t.Errorf("cut short: %v", err)
	}
}

func TestHardware(t *testing.T) {
	for want, change := range map[string][2]string{
		`devices: gpu0 has kind "cpu"`:          {"name: gpu0, kind: H100-SXM", "name: gpu0, kind: cpu"},
		`devices: gpu2 has kind "H999"`:         {"name: gpu2, kind: H100-SXM", "name: gpu2, kind: H999"},
		"overflow.devices[0] (ssd0): size is 0": {"EXTRA", ", overflow: {devices: [{name: ssd0, path: /dev/nvme0n1}]}"},
	} {
		sys := resolve(t, strings.NewReplacer("POLICY", "lcm", "BUFFERS", "1", "EXTRA", "").Replace(strings.Replace(server, change[0], change[1], 1)))
		_, err := Run(context.Background(), Options{System: sys, Hardware: NewHardware(sys.Config, Machine{})})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
