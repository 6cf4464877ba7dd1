package serve

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/bench/serve/report"
	"github.com/kvlend/kvlend/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeServer answers after a time that it is told.
type fakeServer struct {
	mu    sync.Mutex
	asked []*request
	reply func(r *request, nth int) (wait time.Duration, a answer)
}

func (f *fakeServer) ask(ctx context.Context, r *request) answer {
	f.mu.Lock()
	nth := len(f.asked)
	f.asked = append(f.asked, r)
	f.mu.Unlock()
	wait, a := f.reply(r, nth)
	if !until(ctx, time.Now().Add(wait)) {
		return answer{code: codeConnection, text: ctx.Err().Error()}
	}
	if a.code == report.CodeOK {
		a.first, a.end, a.output = time.Now(), time.Now(), r.output
	}
	return a
}

// after answers every request after d.
func after(d time.Duration) func(*request, int) (time.Duration, answer) {
	return func(*request, int) (time.Duration, answer) { return d, answer{code: report.CodeOK} }
}

func newLoad(t *trace.Trace, timing Timing, to asker) *load {
	return &load{trace: t, content: trace.Content{Vocab: 256}, timing: timing, to: to, heard: func(*request, *answer) {}}
}

// played runs a load and returns its samples by session and turn.
func played(t *testing.T, l *load) map[string]report.Sample {
	t.Helper()
	if err := l.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := map[string]report.Sample{}
	for _, s := range l.samples {
		out[s.Session+":"+strconv.Itoa(s.Turn)] = s
	}
	return out
}

func turn(at, think time.Duration, keep int) trace.Turn {
	return trace.Turn{At: at, Think: think, Keep: keep, Append: []trace.Span{{ID: uint64(at + 1), Tokens: 10}}, Output: 3}
}

const sec, msec = time.Second, time.Millisecond

// conversation is a session of three turns with a sub-agent after the first.
func conversation() *trace.Trace {
	sub := trace.Session{ID: "a/sub", Turns: []trace.Turn{turn(0, 0, 0), turn(sec, 400*msec, trace.KeepAll)}}
	return &trace.Trace{Sessions: []trace.Session{
		{ID: "a", Start: 0, Turns: []trace.Turn{turn(0, 0, 0), turn(10*sec, 3*sec, trace.KeepAll), turn(11*sec, sec, trace.KeepAll)},
			Subs: []trace.Sub{{After: 0, At: 5 * sec, Think: 700 * msec, Session: sub}}},
		{ID: "b", Start: 1500 * msec, Turns: []trace.Turn{turn(0, 0, 0)}},
	}}
}

func TestDueTimes(t *testing.T) {
	for timing, want := range map[Timing]map[string]time.Duration{
		// Answers take 250 ms.
		ByThink: {"a:0": 0, "a:1": 3250 * msec, "a:2": 4500 * msec, "a/sub:0": 950 * msec, "a/sub:1": 1600 * msec, "b:0": 1500 * msec},
		ByTrace: {"a:0": 0, "a:1": 10 * sec, "a:2": 11 * sec, "a/sub:0": 5 * sec, "a/sub:1": 6 * sec, "b:0": 1500 * msec},
	} {
		t.Run(string(timing), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := played(t, newLoad(conversation(), timing, &fakeServer{reply: after(250 * msec)}))
				if len(got) != len(want) {
					t.Errorf("%d samples, want %d", len(got), len(want))
				}
				for name, due := range want {
					s := got[name]
					if s.Due != due || s.Ready != due || s.Sent != due || s.End != due+250*msec || s.Code != report.CodeOK {
						t.Errorf("%s: %+v, want it due and sent at %v", name, s, due)
					}
				}
			})
		})
	}
}

// TestPromptsGrow: a prompt is the one before, its answer, and more; with the
// server's tokens if it tells them, and with others of the same number if not.
func TestPromptsGrow(t *testing.T) {
	dialogues := contentOf(t, "atlas", 1)
	for i, told := range [][]int32{{7, 8, 9}, nil, {7, 8, 9}, nil} {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeServer{reply: func(*request, int) (time.Duration, answer) {
				return msec, answer{code: report.CodeOK, tokens: told}
			}}
			tr := conversation()
			tr.Sessions = tr.Sessions[:1]
			tr.Sessions[0].Subs = nil
			l := newLoad(tr, ByThink, f)
			if i >= 2 {
				l.content = dialogues
			}
			played(t, l)
			for k, r := range f.asked {
				if len(r.prompt) != 10+13*k {
					t.Fatalf("prompt %d has %d tokens, want %d", k, len(r.prompt), 10+13*k)
				}
				if k == 0 {
					continue
				}
				before := f.asked[k-1].prompt
				if !slices.Equal(r.prompt[:len(before)], before) {
					t.Errorf("prompt %d does not begin with the one before", k)
				}
				if reply := r.prompt[len(before) : len(before)+3]; told != nil && !slices.Equal(reply, told) {
					t.Errorf("prompt %d goes on with %v, the answer was %v", k, reply, told)
				}
			}
		})
	}
}

// TestNoCoordinatedOmission: a server that stands still for a second cannot
// hide it. Every request that was due meanwhile shows what was left of it.
func TestNoCoordinatedOmission(t *testing.T) {
	const service, every, from, to = 2 * msec, 10 * msec, 2 * sec, 3 * sec
	stall := func(start time.Time) func(*request, int) (time.Duration, answer) {
		return func(*request, int) (time.Duration, answer) {
			wait := service
			if now := time.Since(start); now >= from && now < to {
				wait += to - now
			}
			return wait, answer{code: report.CodeOK}
		}
	}
	check := func(t *testing.T, s report.Sample, want time.Duration) {
		if s.TTFT() != want || s.Sent != s.Ready {
			t.Errorf("due at %v: first token after %v, want %v; sent %v after it could be", s.Due, s.TTFT(), want, s.Sent-s.Ready)
		}
	}
	t.Run("sessions", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tr := &trace.Trace{}
			for i := range 500 {
				tr.Sessions = append(tr.Sessions, trace.Session{ID: strconv.Itoa(i), Start: time.Duration(i) * every, Turns: []trace.Turn{turn(0, 0, 0)}})
			}
			hurt := 0
			for _, s := range played(t, newLoad(tr, ByThink, &fakeServer{reply: stall(time.Now())})) {
				want := service
				if s.Due >= from && s.Due < to {
					want += to - s.Due
					hurt++
				}
				check(t, s, want)
			}
			if hurt != 100 {
				t.Errorf("%d requests were due while the server stood still, want 100", hurt)
			}
		})
	})
	t.Run("turns of one session", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			one := trace.Session{ID: "s"}
			for i := range 500 {
				one.Turns = append(one.Turns, turn(time.Duration(i)*every, 0, 0))
			}
			l := newLoad(&trace.Trace{Sessions: []trace.Session{one}}, ByTrace, &fakeServer{reply: stall(time.Now())})
			// A turn is not sent before the answer to the one before; those that
			// were held up follow each other without a pause.
			free := time.Duration(0)
			got := played(t, l)
			for i := range one.Turns {
				s := got["s:"+strconv.Itoa(i)]
				begin := max(s.Due, free)
				free = begin + service
				if begin >= from && begin < to {
					free += to - begin
				}
				check(t, s, free-s.Due)
			}
			if worst := got["s:201"].TTFT(); worst != sec+service-10*msec+service {
				t.Errorf("the turn due 10 ms after the server stopped had its first token after %v", worst)
			}
		})
	})
}

func TestRetries(t *testing.T) {
	busy := answer{code: "overloaded", text: "later", retryAfter: 2 * sec}
	reply := func(_ *request, nth int) (time.Duration, answer) {
		if nth < 2 {
			return 0, busy
		}
		return 100 * msec, answer{code: report.CodeOK}
	}
	tr := conversation()
	tr.Sessions = tr.Sessions[1:]
	for retries, want := range map[int]report.Sample{
		0: {Code: "overloaded"}, 1: {Code: "overloaded", Retries: 1}, 5: {Code: report.CodeOK, Retries: 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLoad(tr, ByThink, &fakeServer{reply: reply})
			l.retries = retries
			s := played(t, l)["b:0"]
			if s.Code != want.Code || s.Retries != want.Retries || s.Sent != s.Due {
				t.Errorf("at most %d retries: %+v", retries, s)
			}
			if s.Code == report.CodeOK && s.TTFT() != 4*sec+100*msec {
				t.Errorf("first token after %v: the time that the server asked for counts", s.TTFT())
			}
			if s.Code != report.CodeOK && l.texts["overloaded"] != "later" {
				t.Errorf("what the error said is lost: %v", l.texts)
			}
		})
	}
}

// TestFailedTurn: a conversation goes on after a turn that failed.
func TestFailedTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{reply: func(r *request, nth int) (time.Duration, answer) {
			if r.turn == 1 {
				return sec, answer{code: "broken"}
			}
			return 0, answer{code: report.CodeOK, tokens: []int32{1, 2, 3}}
		}}
		tr := conversation()
		tr.Sessions = tr.Sessions[:1]
		tr.Sessions[0].Subs = nil
		got := played(t, newLoad(tr, ByThink, f))
		if got["a:1"].Code != "broken" || got["a:2"].Code != report.CodeOK || got["a:2"].Due != 5*sec {
			t.Errorf("samples %+v", got)
		}
		if n := len(f.asked[2].prompt); n != 36 {
			t.Errorf("the prompt after it has %d tokens, want 36", n)
		}
	})
}

func TestLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoad(conversation(), ByTrace, &fakeServer{reply: after(sec)})
		l.length = 10 * sec
		if got := played(t, l); len(got) != 4 || l.unsent != 2 || l.end != 7*sec {
			t.Errorf("%d samples, %d unsent, ended after %v; want 4, 2 and 7s", len(got), l.unsent, l.end)
		}
	})
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 4*sec)
		defer cancel()
		l := newLoad(conversation(), ByTrace, &fakeServer{reply: after(3 * sec)})
		start := time.Now()
		if err := l.run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("run: %v", err)
		}
		if d := time.Since(start); d != 4*sec || len(l.samples) != 1 {
			t.Errorf("it took %v and %d samples: want 4s, and no sample of what was cut", d, len(l.samples))
		}
	})
}

// TestJudge: two answers that differ are wrong, whoever is right.
func TestJudge(t *testing.T) {
	ok := func(hash string, tokens ...int32) *answer {
		return &answer{code: report.CodeOK, tokens: tokens, hash: hash}
	}
	a, b := &request{session: "s", prompt: []int32{1, 2}, output: 2}, &request{session: "s", turn: 1, prompt: []int32{1, 2, 3}, output: 1}
	j := newJudge(1)
	j.hear("x, round 1", a, ok("h", 5, 6))
	j.hear("x, round 1", b, ok("g", 7))
	j.hear("y, round 1", a, ok("h", 5, 6))
	j.hear("y, round 1", b, &answer{code: "overloaded"})
	j.hear("z, round 1", b, &answer{code: report.CodeOK}) // without tokens
	if c := j.checks; c.Wrong != 0 || c.Answers != 4 || c.Checked != 3 || c.Distinct != 2 || c.Repeated != 1 || len(j.kept) != 1 {
		t.Fatalf("checks %+v, %d kept", c, len(j.kept))
	}
	for _, bad := range []*answer{ok("h", 5, 7), ok("i", 5, 6), ok("h", 5)} {
		before := j.checks.Wrong
		j.hear("y, round 2", a, bad)
		if j.checks.Wrong != before+1 {
			t.Errorf("the answer %v with hash %s passed", bad.tokens, bad.hash)
		}
	}
	if p := j.checks.Problems[0]; !strings.Contains(p, "y, round 2, session s turn 0") || !strings.Contains(p, "x, round 1") {
		t.Errorf("the problem %q does not say where", p)
	}
}

// TestJudgeSample: the sample does not depend on the order of the answers.
func TestJudgeSample(t *testing.T) {
	var kept [2][]asked
	for way := range kept {
		j := newJudge(5)
		for i := range int32(100) {
			if way == 1 {
				i = 99 - i
			}
			j.hear("x", &request{prompt: []int32{i}, output: 1}, &answer{code: report.CodeOK, tokens: []int32{1}})
		}
		kept[way] = j.kept
		held := 0
		for _, k := range j.first {
			if k.req != nil {
				held++
			}
		}
		if held != 5 || len(j.kept) != 5 {
			t.Errorf("%d requests are held, %d kept; want 5", held, len(j.kept))
		}
	}
	if !slices.Equal(kept[0], kept[1]) {
		t.Error("another order keeps another sample")
	}
}
