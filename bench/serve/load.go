package serve

import (
	"context"
	"sync"
	"time"

	"github.com/kvlend/kvlend/bench/serve/report"
	"github.com/kvlend/kvlend/internal/trace"
)

// Timing says when the turns after a session's first are due.
type Timing string

// Timings.
const (
	// ByThink: the trace's time to think after the answer before.
	ByThink Timing = "think"
	// ByTrace: when the trace has them, whether or not the answer before is
	// there. A turn is sent after that answer all the same, and its latency
	// counts from when it was due: a server that is too slow for the trace falls
	// behind more and more, and that shows.
	ByTrace Timing = "trace"
)

// request is one turn on its way to a server.
type request struct {
	session string
	turn    int
	prompt  []int32
	output  int
}

// answer is what came back. first is zero where nothing came.
type answer struct {
	code       string // report.CodeOK or the error's
	text       string // of the error
	retryAfter time.Duration
	// first is the first event with text. A server may hold a token back until
	// those after it complete a character; the few it holds are counted in.
	first  time.Time
	end    time.Time // of the answer or of the attempt
	output int       // tokens that came
	tokens []int32   // nil if the server does not tell
	hash   string    // of the logits
	cached int
	tiers  *report.Tiers
}

// asker sends a request and waits for the whole answer. It is called
// concurrently.
type asker interface {
	ask(ctx context.Context, r *request) answer
}

// prepare is how long before a request is due its prompt is made: making it
// takes microseconds, and making all of them at once much memory.
const prepare = 20 * time.Millisecond

// load replays a trace once. It is open: nothing but the trace, and the answers
// that its turns follow, says when a request is sent.
type load struct {
	trace   *trace.Trace
	content trace.Content
	timing  Timing
	length  time.Duration // turns due later are not sent; 0: none is
	retries int           // most repetitions of a request, if the server says when
	to      asker
	heard   func(*request, *answer) // called concurrently

	start time.Time
	wg    sync.WaitGroup

	mu      sync.Mutex
	samples []report.Sample
	unsent  int // turns that were due too late
	texts   map[string]string
	end     time.Duration
}

// run returns when every answer has come, or soon after ctx has ended.
func (l *load) run(ctx context.Context) error {
	l.start = time.Now()
	l.texts = map[string]string{}
	for i := range l.trace.Sessions {
		s := &l.trace.Sessions[i]
		l.wg.Go(func() { l.session(ctx, s, l.start.Add(s.Start)) })
	}
	l.wg.Wait()
	return ctx.Err()
}

// session plays one session and starts those that depend on it.
func (l *load) session(ctx context.Context, s *trace.Session, start time.Time) {
	l.subs(ctx, s, -1, start, start)
	var prompt, reply []int32
	ended := start
	for k := range s.Turns {
		t := &s.Turns[k]
		due := start.Add(t.At)
		if l.timing == ByThink && k > 0 {
			due = ended.Add(t.Think)
		}
		if l.length > 0 && due.Sub(l.start) >= l.length {
			l.count(func() { l.unsent += len(s.Turns) - k })
			return
		}
		ready := due
		if ended.After(due) {
			ready = ended
		}
		if !until(ctx, ready.Add(-prepare)) {
			return
		}
		r := &request{session: s.ID, turn: k, prompt: l.content.Prompt(t, prompt, reply), output: t.Output}
		if !until(ctx, ready) {
			return
		}
		a, ok := l.turn(ctx, r, due, ready)
		if !ok {
			return
		}
		prompt, reply, ended = r.prompt, a.tokens, a.end
		if reply == nil {
			reply = l.content.Stand(prompt, t.Output)
		}
		l.subs(ctx, s, k, start, ended)
	}
}

// subs starts the sessions that follow a turn.
func (l *load) subs(ctx context.Context, s *trace.Session, after int, start, ended time.Time) {
	for i := range s.Subs {
		sub := &s.Subs[i]
		if sub.After != after {
			continue
		}
		at := start.Add(sub.At)
		if l.timing == ByThink {
			at = ended.Add(sub.Think)
		}
		l.wg.Go(func() { l.session(ctx, &sub.Session, at) })
	}
}

// turn sends a request, again if it may and the server says when, and takes
// the sample. ok is false once ctx has ended.
func (l *load) turn(ctx context.Context, r *request, due, ready time.Time) (a answer, ok bool) {
	sample := report.Sample{Session: r.session, Turn: r.turn, Due: due.Sub(l.start), Ready: ready.Sub(l.start),
		Sent: time.Since(l.start), Prompt: len(r.prompt)}
	for {
		a = l.to.ask(ctx, r)
		if a.code == report.CodeOK || a.retryAfter == 0 || sample.Retries >= l.retries {
			break
		}
		sample.Retries++
		if !until(ctx, time.Now().Add(a.retryAfter)) {
			return a, false
		}
	}
	if ctx.Err() != nil {
		return a, false
	}
	if a.code != report.CodeOK {
		a.end = time.Now()
	}
	sample.Code, sample.Output, sample.Cached, sample.Receipt = a.code, a.output, a.cached, a.tiers
	if sample.End = a.end.Sub(l.start); a.code == report.CodeOK {
		sample.First = a.first.Sub(l.start)
	}
	l.heard(r, &a)
	l.count(func() {
		l.samples = append(l.samples, sample)
		l.end = max(l.end, sample.End)
		if a.code != report.CodeOK && l.texts[a.code] == "" {
			l.texts[a.code] = a.text
		}
	})
	return a, true
}

func (l *load) count(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// until waits for a time; false means that ctx has ended.
func until(ctx context.Context, at time.Time) bool {
	d := time.Until(at)
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
