package validate

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvlend/kvlend/planner/perf"
)

// Server is how a vLLM server is set up.
type Server struct {
	MaxSeqs   int // max_num_seqs
	MaxTokens int // max_num_batched_tokens: new tokens of one step
	KVTokens  int // tokens that its KV cache holds
	Block     int // tokens of a block
	// Ahead: a step is put together while the one before it runs (vLLM's
	// asynchronous scheduling), so requests join one step later.
	Ahead bool
}

// running is a request inside the replay.
type running struct {
	at       int // index in the log
	input    int
	output   int
	computed int // tokens whose KV exists, or will when the planned steps are over
	made     int // tokens planned for the client
	given    int // tokens that the client has
	blocks   int
	first    float64
}

// replay is a vLLM-like loop: first come first served, chunked prefill, running
// requests before waiting ones, the youngest thrown out and recomputed when
// blocks run out.
type replay struct {
	server  Server
	engine  *perf.Engine
	log     []Request
	now     float64
	next    int // of log: not arrived yet
	waiting []*running
	active  []*running
	free    int // blocks
	out     []Latency
	spare   []*running // the memory of a step that is over
	// preempted counts requests that were thrown out.
	preempted int
	left      int // without their last token
}

// step is what was put together for one run of the model.
type step struct {
	work  perf.Work
	gives []*running // who gets a token from it
}

// Replay runs a log's arrivals and lengths through a server and says what its
// clients would see, by index of the log, and how often a request lost its KV.
// Nothing but the arrivals and lengths is read from the log.
func Replay(log []Request, s Server, e *perf.Engine) (out []Latency, preempted int, err error) {
	if s.MaxSeqs < 1 || s.MaxTokens < 1 || s.Block < 1 || s.KVTokens < s.Block {
		return nil, 0, fmt.Errorf("server: %+v, want at least one sequence, token and block", s)
	}
	r := &replay{server: s, engine: e, log: log, free: s.KVTokens / s.Block, out: make([]Latency, len(log)), left: len(log)}
	for i, q := range log {
		if need := (q.Input + q.Output + s.Block - 1) / s.Block; need > r.free {
			return nil, 0, fmt.Errorf("request %d has %d tokens, the KV cache holds %d", i, q.Input+q.Output, s.KVTokens)
		}
	}
	var planned step
	for r.left > 0 {
		r.arrive()
		current := planned
		if !s.Ahead {
			current = r.plan()
		}
		if current.work.Tokens == 0 {
			if s.Ahead {
				if planned = r.plan(); planned.work.Tokens > 0 {
					continue
				}
			}
			if r.next == len(r.log) {
				return nil, 0, errors.New("BUG: the replay is stuck")
			}
			r.now = max(r.now, r.log[r.next].Arrival)
			continue
		}
		planned = step{}
		if s.Ahead {
			planned = r.plan()
		}
		r.now += e.Cost(current.work).Total().Seconds()
		r.finish(current)
	}
	return r.out, r.preempted, nil
}

func (r *replay) arrive() {
	for r.next < len(r.log) && r.log[r.next].Arrival <= r.now {
		r.waiting = append(r.waiting, &running{at: r.next, input: r.log[r.next].Input, output: r.log[r.next].Output})
		r.next++
	}
}

// plan puts a step together and books it as if it had run.
func (r *replay) plan() step {
	s := step{gives: r.spare[:0]}
	r.spare = nil
	budget := r.server.MaxTokens
	full := false
	for i := 0; i < len(r.active) && budget > 0; i++ {
		q := r.active[i]
		n := min(budget, r.todo(q))
		if n == 0 {
			continue // its last token is on its way
		}
		for !r.grow(q, n) {
			full = true
			if r.evict() == q {
				n = 0
				break
			}
		}
		if n > 0 {
			r.book(&s, q, n)
			budget -= n
		}
	}
	for len(r.waiting) > 0 && !full && budget > 0 && len(r.active) < r.server.MaxSeqs {
		q := r.waiting[0]
		n := min(budget, r.todo(q))
		if !r.grow(q, n) {
			break
		}
		r.waiting = r.waiting[1:]
		r.active = append(r.active, q)
		r.book(&s, q, n)
		budget -= n
	}
	return s
}

// todo is how many tokens of a request wait to be computed: all that it has, or
// the last one that it made. None when it has all its tokens.
func (r *replay) todo(q *running) int {
	if q.made == q.output {
		return 0
	}
	return q.input + q.made - q.computed
}

// grow makes room for n more tokens.
func (r *replay) grow(q *running, n int) bool {
	if q.computed+n <= q.blocks*r.server.Block {
		return true
	}
	need := (q.computed+n+r.server.Block-1)/r.server.Block - q.blocks
	if need > r.free {
		return false
	}
	r.free -= need
	q.blocks += need
	return true
}

func (r *replay) book(s *step, q *running, n int) {
	s.work.Add(perf.Seq{Start: q.computed, New: n})
	q.computed += n
	if q.computed == q.input+q.made {
		q.made++
		s.gives = append(s.gives, q)
	}
}

// evict throws the youngest request out, back to the head of the queue, and
// returns it. Whose last token is on its way stays: its blocks come free anyway.
func (r *replay) evict() *running {
	i := len(r.active) - 1
	for r.todo(r.active[i]) == 0 {
		i--
	}
	q := r.active[i]
	r.preempted++
	r.free += q.blocks
	q.blocks, q.computed = 0, 0
	r.active = slices.Delete(r.active, i, i+1)
	r.waiting = slices.Insert(r.waiting, 0, q)
	return q
}

// finish hands out what a step made.
func (r *replay) finish(s step) {
	done := false
	for _, q := range s.gives {
		if q.given++; q.given == 1 {
			q.first = r.now
		}
		if q.given == q.output {
			r.out[q.at] = latency(r.log[q.at].Arrival, q.first, r.now, q.output)
			r.free += q.blocks
			r.left--
			done = true
		}
	}
	r.spare = s.gives
	if done {
		r.active = slices.DeleteFunc(r.active, func(q *running) bool { return q.given == q.output })
	}
}
