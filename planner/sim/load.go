package sim

import (
	"errors"
	"strconv"
	"time"

	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/scheduler"
)

// Timing says when the turns after a session's first are due.
type Timing string

// Timings.
const (
	// ByThink: the trace's time to think after the answer before.
	ByThink Timing = "think"
	// ByTrace: when the trace has them, but never before the answer before.
	ByTrace Timing = "trace"
)

// Load is a trace that is replayed against one model. It is open: nothing but the
// trace, and the answers that its turns follow, says when a request is sent.
type Load struct {
	Model string
	Trace *trace.Trace
	// Next, if not nil, gives the sessions by Start instead of Trace, one at a time;
	// nil: there are no more. It is asked for a session when the one before begins,
	// so that a trace of any length takes no memory.
	Next   func() *trace.Session
	Timing Timing
	// Length: turns due later are not sent; 0: all are.
	Length time.Duration
	Seed   uint64
}

// driver replays a load.
type driver struct {
	load    *Load
	to      *process
	front   Front
	content trace.Content
	next    func() *trace.Session // the session to start next; nil: all have begun
	sent    uint64
	alive   int // sessions that have begun, or will at a known time, and not ended
	out     *Answers
	waiting int     // requests that were sent and are not answered
	waits   *series // of waiting
}

func newDriver(l *Load, to *process, front Front, out *Answers) *driver {
	next := l.Next
	if next == nil {
		left := l.Trace.Sessions
		next = func() *trace.Session {
			if len(left) == 0 {
				return nil
			}
			s := &left[0]
			left = left[1:]
			return s
		}
	}
	return &driver{load: l, next: next, to: to, front: front, content: trace.Content{Seed: l.Seed, Vocab: vocabulary}, out: out, waits: newSeries()}
}

// begin plans the start of the next session. They start one after the other, so
// that no more is planned than is under way.
func (d *driver) begin() {
	if d.next == nil {
		return
	}
	s := d.next()
	if s == nil {
		d.next = nil
		return
	}
	d.alive++
	d.plan(s.Start, func() {
		d.begin()
		d.session(s, s.Start)
	})
}

// plan plans what a client does. Clients have the kernel's time: the process's
// clock shows it while they speak to it.
func (d *driver) plan(at time.Duration, f func()) { d.to.at(at, f) }

// talk is a session under way.
type talk struct {
	d      *driver
	s      *trace.Session
	start  time.Duration
	turn   int
	due    time.Duration
	prompt []int32
	reply  []int32
	ended  time.Duration
	id     uint64
	first  time.Duration
	heard  bool
}

func (d *driver) session(s *trace.Session, start time.Duration) {
	t := &talk{d: d, s: s, start: start, ended: start}
	t.subs(-1)
	t.next()
}

// next plans the turn that follows.
func (t *talk) next() {
	if t.turn == len(t.s.Turns) {
		t.d.alive--
		return
	}
	turn := &t.s.Turns[t.turn]
	t.due = t.start + turn.At
	if t.d.load.Timing != ByTrace && t.turn > 0 {
		t.due = t.ended + turn.Think
	}
	if n := t.d.load.Length; n > 0 && t.due >= n {
		t.d.out.Unsent += len(t.s.Turns) - t.turn
		t.d.alive--
		return
	}
	t.d.plan(max(t.due, t.ended), t.send)
}

// subs starts the sessions that follow a turn.
func (t *talk) subs(after int) {
	for i := range t.s.Subs {
		sub := &t.s.Subs[i]
		if sub.After != after {
			continue
		}
		at := t.start + sub.At
		if t.d.load.Timing != ByTrace {
			at = t.ended + sub.Think
		}
		t.d.alive++
		t.d.plan(max(at, t.ended), func() { t.d.session(&sub.Session, at) })
	}
}

// send sends the present turn on its way.
func (t *talk) send() {
	d := t.d
	turn := &t.s.Turns[t.turn]
	t.prompt = d.content.Prompt(turn, t.prompt, t.reply)
	t.reply, t.heard = t.reply[:0:0], false
	d.sent++
	d.wait(1)
	t.id = d.sent
	if late := d.front.of(len(t.prompt)); late > 0 {
		d.plan(d.to.t+late, t.submit)
		return
	}
	t.submit()
}

// submit hands it to the scheduler.
func (t *talk) submit() {
	d := t.d
	turn := &t.s.Turns[t.turn]
	err := d.to.sched.Submit(scheduler.Request{
		ID: strconv.FormatUint(t.id, 36), Tokens: t.prompt, MaxTokens: turn.Output, IgnoreEOS: true,
		Sampling: sampling.Params{TopP: 1, RepetitionPenalty: 1, Seed: mix(d.load.Seed ^ t.id)}, Sink: t.hear,
	})
	if err != nil {
		d.out.refuse(refusal(err), err)
		t.over(d.to.t, turn)
		return
	}
	d.to.kick()
}

func refusal(err error) string {
	var long *scheduler.TooLongError
	var busy *scheduler.OverloadedError
	switch {
	case errors.As(err, &long):
		return "too_long"
	case errors.As(err, &busy):
		return "overloaded"
	}
	return "failed"
}

// hear takes an event of the scheduler, at the time that the process's clock shows.
func (t *talk) hear(e scheduler.Event) {
	now := t.d.to.t
	if e.HasToken {
		if !t.heard {
			t.heard, t.first = true, now
		}
		t.reply = append(t.reply, e.Token.ID)
	}
	if e.Finish == "" && e.Err == nil {
		return
	}
	turn := &t.s.Turns[t.turn]
	if e.Err != nil {
		t.d.out.refuse("failed", e.Err)
	} else {
		t.d.out.add(t.turn, t.due, t.first, now, len(t.prompt), len(t.reply), &e.Usage)
	}
	t.over(now, turn)
}

// wait counts a request that is sent, or one less that waits for its answer.
func (d *driver) wait(n int) {
	d.waiting += n
	d.waits.set(d.to.t, float64(d.waiting))
}

// over goes on with the session.
func (t *talk) over(now time.Duration, turn *trace.Turn) {
	t.d.wait(-1)
	if len(t.reply) == 0 {
		t.reply = t.d.content.Stand(t.prompt, turn.Output)
	}
	t.ended = now
	t.subs(t.turn)
	t.turn++
	t.next()
}
