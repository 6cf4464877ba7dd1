package e2e

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/kernels"
)

// The trace's conversations are for a model with 128K tokens of context;
// lengths are divided so that they fit atlas, whose longest is 4,608.
const (
	traceScale = 32
	traceBlock = 512 / traceScale // tokens per block id
	traceQuick = 60               // requests in -short mode
)

// traceRequest is a request of the trace: [timestamp, input, output, ids].
type traceRequest struct {
	input, output int
	ids           []uint64
}

func loadTrace(t *testing.T) []traceRequest {
	t.Helper()
	f, err := os.Open("testdata/mooncake200.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []traceRequest
	for lines := bufio.NewScanner(z); lines.Scan(); {
		var r traceRequest
		var at int
		if err := json.Unmarshal(lines.Bytes(), &[]any{&at, &r.input, &r.output, &r.ids}); err != nil {
			t.Fatalf("line %d: %v", len(out)+1, err)
		}
		out = append(out, r)
	}
	if len(out) != 200 {
		t.Fatalf("%d requests in the trace, want 200", len(out))
	}
	return out
}

// request makes the content: the tokens of a block follow from its id alone,
// so that prefixes are shared where the trace shares them.
func (r traceRequest) request(i int) Request {
	n := max(1, r.input/traceScale)
	var prompt []int32
	for _, id := range r.ids {
		prompt = append(prompt, text(id<<20|1<<60, traceBlock)...)
	}
	q := Request{Model: "atlas", Prompt: prompt[:n], MaxTokens: max(1, r.output/traceScale)}
	if i%3 == 2 {
		q.Temperature, q.Seed = 0.9, int64(i)
	}
	return q
}

// TestReplayOfATrace replays real lengths and sharing with six clients, while
// the workers get requests that take their memory back again and again.
func TestReplayOfATrace(t *testing.T) {
	trace := loadTrace(t)
	if testing.Short() {
		t.Logf("-short: %d of %d requests", traceQuick, len(trace))
		trace = trace[:traceQuick]
	}
	var requests []Request
	shared := map[uint64]bool{}
	again := 0
	for i, r := range trace {
		requests = append(requests, r.request(i))
		for _, id := range r.ids {
			if shared[id] {
				again++
			}
			shared[id] = true
		}
	}
	if again == 0 {
		t.Fatal("no block of the trace occurs twice")
	}
	s := Start(t, func(c *configs.Config) { c.Lending.ScaleDown.Window = configs.Duration(200 * time.Millisecond) })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var workers sync.WaitGroup
	for i, name := range []string{"birch", "cedar"} {
		workers.Go(func() { s.disturb(ctx, name, uint64(i)) })
	}
	workers.Go(func() {
		for after := uint64(20); s.finished(ctx, "atlas", after); after += 60 {
			s.verify()
		}
	})
	borrowed, preempted := 0, 0
	for _, r := range s.all(requests, 6, kernels.BF16) {
		if r != nil {
			borrowed += r.BorrowedBlocks
			preempted += r.Preemptions
		}
	}
	stop()
	workers.Wait()
	var reclaims uint64
	for _, name := range []string{"birch", "cedar"} {
		st := s.until("answers of "+name, name, func(st *wire.Status) bool { return st.Running == 0 })
		reclaims += st.Units[0].Version
	}
	t.Logf("%d requests, %d borrowed blocks, %d preemptions, %d changes of unit tables", len(requests), borrowed, preempted, reclaims)
	if borrowed == 0 || reclaims < 10 {
		t.Errorf("%d borrowed blocks, %d changes of unit tables: memory hardly moved, the test shows little", borrowed, reclaims)
	}
}

// disturb sends a worker a request that needs most of its memory, lets the
// master finish some of its own, and so on until ctx ends. Without that pause
// the workers, whose memory it is, would leave the master none.
func (s *System) disturb(ctx context.Context, name string, seed uint64) {
	q := Request{Model: name, Prompt: text(seed, s.longest(name)*3/4), MaxTokens: 4}
	for after := uint64(10); s.finished(ctx, "atlas", after); after += 20 {
		got, _, err := s.Complete(ctx, q)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.t.Errorf("%s: %v", name, err)
			return
		}
		s.compare("answer", q, got, kernels.BF16)
	}
}

// finished waits until a model has finished n requests, or for the end of ctx.
func (s *System) finished(ctx context.Context, name string, n uint64) bool {
	for ctx.Err() == nil {
		st, err := s.modelStatus(name)
		if err != nil {
			s.t.Errorf("%s: %v", name, err)
			return false
		}
		if st.Finished >= n {
			return true
		}
		tick(ctx)
	}
	return false
}
