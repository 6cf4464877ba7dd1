// Package node is what the processes of masters, workers and local models have
// in common: they join the supervisor, run a scheduler over their cache, and
// answer the gateway's messages.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/kvlend/kvlend/coordinator/agent"
	"github.com/kvlend/kvlend/coordinator/session"
	"github.com/kvlend/kvlend/coordinator/transport"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/internal/supervisor"
	"github.com/kvlend/kvlend/internal/timeline"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/scheduler"
)

// Options of a node.
type Options struct {
	Model   *planner.Model
	Engine  engine.Runner
	Kernels string // instruction set, for status
	Cache   scheduler.Cache
	Links   *transport.Dir
	Hello   wire.Hello // what the node says of itself on links
	// Patience is how long a request waits for KV memory that does not come.
	Patience time.Duration
	// Describe fills in what only the role knows: blocks, units, traffic.
	Describe func(*wire.Status)
	// Timeline records when somebody asks; nil: nothing to see.
	Timeline *timeline.Recorder
	// Restarts is how often the process was started again.
	Restarts int
	// Check adds what the role's caches and agents find wrong; nil: nothing.
	Check func(*wire.CheckReport)
	// Drain is called when a drain begins or is undone and while it goes on;
	// idle says that no request is left. It returns how many units are still
	// with others, or are others'. nil: the role has none.
	Drain func(on, idle bool) (units int)
	// Unload starts to empty a device of the overflow pool, goes on with it, or
	// undoes that. nil: there is no pool.
	Unload func(device string, undo bool) *wire.UnloadState
	// Lack says why the cache holds less at present than it was configured to;
	// empty, or nil: it does not.
	Lack func() string
	Log  hclog.Logger
}

// Node serves one model's requests. Run it once.
type Node struct {
	opt   Options
	sched *scheduler.Scheduler
	out   *outbox
	link  *session.Link

	mu   sync.Mutex
	live map[string]struct{} // requests of the gateway

	drain drain
	// statuses and reports are questions that wait for their answers.
	statuses, reports chan uint64
	traces            chan *wire.TraceAsk
	unloads           chan *wire.UnloadAsk

	finished, failed, tokens atomic.Uint64
}

// Start opens the gateway's link and makes the scheduler; Run runs it.
func Start(opt Options) (*Node, error) {
	c := opt.Model.Config
	n := &Node{opt: opt, out: newOutbox(opt.Log), live: map[string]struct{}{}, statuses: make(chan uint64, maxAsks), reports: make(chan uint64, maxAsks)}
	n.traces = make(chan *wire.TraceAsk, maxTraceAsks)
	n.unloads = make(chan *wire.UnloadAsk, maxDrainAsks)
	n.drain.asks = make(chan *wire.DrainAsk, maxDrainAsks)
	n.sched = scheduler.New(opt.Engine, opt.Cache, scheduler.Options{
		MaxRunning: c.MaxRunning, MaxBatchTokens: c.MaxBatchTokens, MaxWaiting: c.MaxWaiting,
		AdmissionTimeout: opt.Patience, Logger: opt.Log, Identity: Identity(opt.Engine),
	})
	listener, err := opt.Links.Listen(c.Name, supervisor.GatewayName)
	if err != nil {
		return nil, err
	}
	link, err := session.Open(session.Options{
		Listener:    listener,
		Self:        opt.Hello,
		OnMessage:   n.receive,
		OnPeerReset: n.reset,
		OnDown:      func(err error) { opt.Log.Debug("gateway link down", "reason", err) },
	})
	if err != nil {
		return nil, err
	}
	n.link = link
	return n, nil
}

// Identity is what the KV of an engine depends on beside the tokens: weights and
// architecture, and how a block is laid out. There are no adapters.
func Identity(e engine.Runner) []byte {
	l := e.KVLayout()
	return fmt.Appendf(nil, "%s block=%d heads=%d dim=%d dtype=%v", e.Config().WeightsDigest, l.BlockTokens, l.KVHeads, l.HeadDim, l.DType)
}

// Run serves until ctx ends, then ends every request with an error and closes
// the link.
func (n *Node) Run(ctx context.Context) error {
	sctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var sender sync.WaitGroup
	sender.Go(func() { n.out.run(sctx, n.link) })
	sender.Go(func() { n.runDrain(sctx) })
	sender.Go(func() { n.runUnloads(sctx) })
	sender.Go(func() { n.runTraces(sctx) })
	sender.Go(func() { n.answer(sctx, n.reports, func(id uint64) wire.Message { return n.report(id) }) })
	sender.Go(func() { n.answer(sctx, n.statuses, func(id uint64) wire.Message { return n.status(id) }) })
	err := n.sched.Run(ctx)
	stop()
	sender.Wait()
	n.link.Close()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// receive handles a message of the gateway. It does not block.
func (n *Node) receive(m wire.Message) {
	switch m := m.(type) {
	case *wire.Submit:
		n.submit(m)
	case *wire.Cancel:
		n.sched.Cancel(m.ID)
	case *wire.StatusAsk:
		n.ask(n.statuses, m.ID)
	case *wire.CheckAsk:
		n.ask(n.reports, m.ID)
	case *wire.DrainAsk:
		n.setDrain(m)
	case *wire.UnloadAsk:
		n.askUnload(m)
	case *wire.TraceAsk:
		n.askTrace(m)
	default:
		n.opt.Log.Warn("unexpected message of the gateway", "type", m.Type())
	}
}

func (n *Node) submit(m *wire.Submit) {
	n.mu.Lock()
	_, known := n.live[m.ID]
	n.live[m.ID] = struct{}{}
	n.mu.Unlock()
	if known {
		return
	}
	if n.drain.on.Load() {
		n.event(m.ID, scheduler.Event{Err: errDraining})
		return
	}
	s := m.Sampling
	err := n.sched.Submit(scheduler.Request{
		ID: m.ID, Tokens: m.Tokens, MaxTokens: n.most(m), StopIDs: m.StopIDs, IgnoreEOS: m.IgnoreEOS,
		Priority: m.Priority, Tenant: m.Tenant, Salt: m.Salt,
		Sampling: sampling.Params{
			Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP, MinP: s.MinP,
			RepetitionPenalty: s.RepetitionPenalty, PresencePenalty: s.PresencePenalty,
			FrequencyPenalty: s.FrequencyPenalty, Seed: s.Seed, Logprobs: s.Logprobs, LogitBias: s.LogitBias,
		},
		Sink: func(ev scheduler.Event) { n.event(m.ID, ev) },
	})
	if err != nil {
		n.event(m.ID, scheduler.Event{Err: err})
	}
}

func (n *Node) event(id string, ev scheduler.Event) {
	ev.Err = n.lacking(ev.Err)
	if ev.HasToken {
		n.tokens.Add(1)
	}
	if ev.Err != nil || ev.Finish != "" {
		n.mu.Lock()
		delete(n.live, id)
		n.mu.Unlock()
		if ev.Err != nil {
			n.failed.Add(1)
		} else {
			n.finished.Add(1)
		}
	}
	n.out.event(id, ev)
}

// reset drops the requests of a gateway that died: nobody waits for them.
func (n *Node) reset() {
	n.mu.Lock()
	ids := make([]string, 0, len(n.live))
	for id := range n.live {
		ids = append(ids, id)
	}
	n.mu.Unlock()
	for _, id := range ids {
		n.sched.Cancel(id)
	}
	n.out.forget()
}

func (n *Node) status(id uint64) *wire.Status {
	c := n.opt.Model.Config
	tokens, alone := n.opt.Model.MaxTokens()
	own := n.opt.Engine.Config().MaxContext
	tokens, alone, usable := min(tokens, own), min(alone, own), min(n.opt.Cache.MaxTokens(), own)
	st := n.sched.Stats()
	out := &wire.Status{
		ID: id,
		Model: wire.ModelStatus{
			Name: c.Name, Role: c.Role, PID: os.Getpid(), Arena: n.opt.Model.Arena,
			MaxTokens: tokens, MaxTokensAlone: alone,
			NLSC: n.opt.Model.Capacity.NLSC, NRC: n.opt.Model.Capacity.NRC,
			UsableTokens: usable,
		},
		Running: st.Running, Waiting: st.Waiting, Preempted: st.Preemptions + st.Evictions,
		SatOut: st.SatOut, RatherWaited: st.RatherWaited,
		Finished: n.finished.Load(), FailedN: n.failed.Load(), Tokens: n.tokens.Load(),
		Kernels: n.opt.Kernels, Restarts: n.opt.Restarts, Draining: n.drain.on.Load(),
		Links: []wire.LinkStatus{agent.LinkStatus(supervisor.GatewayName, n.link)},
	}
	n.opt.Describe(out)
	slices.SortFunc(out.Links, func(a, b wire.LinkStatus) int { return cmp.Compare(a.Peer, b.Peer) })
	slices.SortFunc(out.Lending, func(a, b wire.LendingStatus) int { return cmp.Compare(a.Peer, b.Peer) })
	out.Degraded = append(out.Degraded, degraded(out)...)
	if why := n.lack(); why != "" && out.Model.UsableTokens < tokens && len(out.Degraded) < wire.MaxDegraded {
		out.Degraded = append(out.Degraded, wire.Clip(fmt.Sprintf("contexts of more than %d of %d tokens are refused at present (503): %s",
			out.Model.UsableTokens, tokens, why), wire.MaxText))
	}
	return out
}

// failure translates an error of the scheduler for the client.
func failure(id string, err error) *wire.Failed {
	f := &wire.Failed{ID: id, Code: "internal_error", Message: wire.Clip(err.Error(), wire.MaxText)}
	var short *lackError
	var long *scheduler.TooLongError
	var busy *scheduler.OverloadedError
	var memory *scheduler.AdmissionError
	var invalid *scheduler.InvalidError
	switch {
	case errors.Is(err, errDraining):
		f.Code, f.RetryAfter = "unavailable", retryDrain
	case errors.As(err, &short):
		f.Code, f.RetryAfter = "unavailable", retryLack
	case errors.As(err, &long):
		f.Code = "context_length_exceeded"
	case errors.As(err, &invalid):
		f.Code = "invalid_value"
	case errors.As(err, &busy):
		f.Code, f.RetryAfter = "overloaded", max(busy.RetryAfter, time.Second)
	case errors.As(err, &memory):
		f.Code, f.RetryAfter = "unavailable", retryMemory
	case errors.Is(err, scheduler.ErrStopped), errors.Is(err, scheduler.ErrDraining), errors.Is(err, context.Canceled):
		f.Code, f.RetryAfter = "shutting_down", time.Second
	}
	return f
}

// retryMemory is when a client may come again after KV memory did not come.
const retryMemory = 5 * time.Second
