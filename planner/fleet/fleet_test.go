package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/sim"
)

// options of a small fleet of simulated GPUs.
func options(t *testing.T, servers int, p Policy) Options {
	t.Helper()
	cfg, err := configs.Example("h100-qwen3.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := configs.Parse([]byte(cfg), "h100-qwen3.yaml")
	if err != nil {
		t.Fatal(err)
	}
	sys, err := planner.Resolve(c, configs.CatalogGeometry)
	if err != nil {
		t.Fatal(err)
	}
	load := trace.Synthetic{Sessions: 12, Rate: 1, Turns: 3, Think: 2 * time.Second, First: 800, Next: 200, Answer: 20, Sigma: 0.5, System: 400, SystemShare: 0.5, Seed: 3}
	tr, err := load.Make()
	if err != nil {
		t.Fatal(err)
	}
	return Options{System: sys, Hardware: sim.NewHardware(c, sim.Machine{}), Model: sys.Models[0].Config.Name, Load: tr, Servers: servers, Policy: p, Seed: 1}
}

func run(t *testing.T, o Options) *Result {
	t.Helper()
	r, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Every session of the fleet is answered, wherever it went, and a run is the same
// to the byte each time.
func TestFleetAnswersAllAndIsDeterministic(t *testing.T) {
	for _, p := range Policies() {
		o := options(t, 4, p)
		want := 4 * o.Load.Size().Turns
		var first []byte
		for range 2 {
			r := run(t, o)
			if r.Answers.Answered != want || r.Simulated != 4 || r.Sessions != 4*len(o.Load.Sessions) {
				t.Errorf("%s: %d of %d turns answered, refused %v; %d servers, %d sessions", p, r.Answers.Answered, want, r.Answers.Refused, r.Simulated, r.Sessions)
			}
			out, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if first != nil && !bytes.Equal(first, out) {
				t.Errorf("%s: two runs differ", p)
			}
			first = out
		}
	}
}

// Conversations that begin with the same prompt find it where the router sends them.
func TestPrefixRoutingFindsSharedPrompts(t *testing.T) {
	o := options(t, 6, Random)
	for i := range o.Load.Sessions {
		one := o.Load.Sessions[i].Turns[:1]
		one[0].Append[0].Tokens += 2000 * (len(one[0].Append) - 1) // the shared prompt, where there is one
		o.Load.Sessions[i].Turns = one
	}
	random := run(t, o)
	o.Policy = Prefix
	prefix := run(t, o)
	if prefix.Hit <= random.Hit {
		t.Errorf("hit share %.3f with prefix-aware routing, %.3f at random", prefix.Hit, random.Hit)
	}
	if prefix.Prefixes == 0 || random.Prefixes != 0 {
		t.Errorf("the routers remember %d and %d prefixes", prefix.Prefixes, random.Prefixes)
	}
}

// The router keeps servers within their share of the load as far as sessions of
// unequal size allow, however popular a prefix is.
func TestBoundedLoad(t *testing.T) {
	s := trace.Session{Turns: []trace.Turn{{Append: []trace.Span{{ID: 7, Tokens: 100}}, Output: 10}}}
	r := newRouter(Prefix, 10, 1)
	count := make([]int, 10)
	for range 1000 {
		count[r.route(&s, 0)]++
	}
	for server, n := range count {
		if n > 200 {
			t.Errorf("server %d got %d of 1000 equal sessions, fair are 100 of 10 servers", server, n)
		}
	}
}

func TestSampleIsDrawnWithoutRepetition(t *testing.T) {
	got := pickSample(1000, 50, 9)
	seen := map[int]bool{}
	for _, s := range got {
		if s < 0 || s >= 1000 || seen[s] {
			t.Fatalf("sample %v", got)
		}
		seen[s] = true
	}
	if len(got) != 50 {
		t.Errorf("%d servers, want 50", len(got))
	}
	o := options(t, 40, Least)
	o.Sample = 3
	if r := run(t, o); r.Simulated != 3 || r.Servers != 40 || r.Sessions != 40*len(o.Load.Sessions) {
		t.Errorf("%+v", r)
	}
}

func TestBadOptions(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"0 servers":                 func(o *Options) { o.Servers = 0 },
		"200000 servers":            func(o *Options) { o.Servers = 200000 },
		"a sample of -1":            func(o *Options) { o.Sample = -1 },
		`model "nobody"`:            func(o *Options) { o.Model = "nobody" },
		`routing policy "alphabet"`: func(o *Options) { o.Policy = "alphabet" },
		"no sessions":               func(o *Options) { o.Load = &trace.Trace{} },
	} {
		o := options(t, 1, Random)
		change(&o)
		if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
