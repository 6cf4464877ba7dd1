package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/coordinator/transport"
	"github.com/kvlend/kvlend/coordinator/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// end is one process's end of a link, with a log of its callbacks.
type end struct {
	*Link
	mu  sync.Mutex
	log []string
	got []uint64
	// hold, when set, is called in OnMessage.
	hold func()
}

func (e *end) note(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.log = append(e.log, fmt.Sprintf(format, args...))
}

func (e *end) received() []uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.got)
}

func (e *end) calls() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.log)
}

// options logs every callback; change adapts them.
func (e *end) options(change func(*Options)) Options {
	o := Options{
		Self: wire.Hello{ConfigHash: "same"},
		OnMessage: func(m wire.Message) {
			if e.hold != nil {
				e.hold()
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.got = append(e.got, m.(*wire.Renew).ID)
		},
		OnUp:        func(p wire.Hello) { e.note("up %s", p.Model) },
		OnDown:      func(error) { e.note("down") },
		OnPeerReset: func() { e.note("reset after %d", len(e.received())) },
		OnRefused:   func(err error) { e.note("refused: %v", err) },
	}
	change(&o)
	return o
}

func open(t testing.TB, change func(*Options)) *end {
	t.Helper()
	e := &end{}
	l, err := Open(e.options(change))
	if err != nil {
		t.Fatal(err)
	}
	e.Link = l
	t.Cleanup(l.Close)
	return e
}

func openServer(t testing.TB, s *transport.Sim) *end {
	return open(t, func(o *Options) { o.Self.Model, o.Listener = "server", s.Listen("server", "client") })
}

func openClient(t testing.TB, s *transport.Sim) *end {
	return open(t, func(o *Options) { o.Self.Model, o.Dialer = "client", s.Dialer("server", "client") })
}

// number sends messages numbered from first to last.
func (e *end) number(t testing.TB, first, last uint64) {
	t.Helper()
	for id := first; id <= last; id++ {
		if err := e.Send(context.Background(), &wire.Renew{ID: id}); err != nil {
			t.Error(err)
			return
		}
	}
}

func flush(t testing.TB, l *Link) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := l.Flush(ctx); err != nil {
		t.Fatalf("flush: %v; %+v", err, l.Status())
	}
}

func sequence(first, last uint64) []uint64 {
	var s []uint64
	for i := first; i <= last; i++ {
		s = append(s, i)
	}
	return s
}

func wantGot(t testing.TB, who string, e *end, want []uint64) {
	t.Helper()
	if got := e.received(); !slices.Equal(got, want) {
		t.Errorf("the %s was delivered %d messages %v..., want %d", who, len(got), got[:min(len(got), 20)], len(want))
	}
}

func TestExactlyOnce(t *testing.T) {
	const count = 400
	for seed := uint64(1); seed <= 25; seed++ {
		synctest.Test(t, func(t *testing.T) {
			f := transport.Faults{
				Loss: 0.2, Duplicate: 0.1, Reorder: 0.2,
				MinDelay: time.Millisecond, MaxDelay: time.Duration(seed) * 5 * time.Millisecond,
			}
			s := transport.NewSim(seed, f)
			a, b := openServer(t, s), openClient(t, s)
			stop := make(chan struct{})
			cuts := sync.WaitGroup{}
			cuts.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(700 * time.Millisecond):
						s.Cut("server", "client")
					}
				}
			})
			var senders sync.WaitGroup
			for _, e := range []*end{a, b} {
				senders.Go(func() {
					for i := uint64(1); i <= count; i++ {
						e.number(t, i, i)
						time.Sleep(5 * time.Millisecond)
					}
				})
			}
			senders.Wait()
			flush(t, a.Link)
			flush(t, b.Link)
			close(stop)
			cuts.Wait()
			wantGot(t, fmt.Sprintf("server (seed %d)", seed), a, sequence(1, count))
			wantGot(t, fmt.Sprintf("client (seed %d)", seed), b, sequence(1, count))
			if slices.ContainsFunc(a.calls(), func(c string) bool { return strings.HasPrefix(c, "reset") }) {
				t.Errorf("seed %d: a reset although both processes live: %v", seed, a.calls())
			}
			a.Close()
			b.Close()
		})
	}
}

func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := transport.NewSim(1, transport.Faults{})
		a, b := openServer(t, s), openClient(t, s)
		b.number(t, 1, 3)
		flush(t, b.Link)
		s.Partition("server", "client", true)
		b.number(t, 4, 6)
		time.Sleep(10 * time.Second)
		if st := b.Status(); st.Up || st.Down == nil || st.Queued != 3 {
			t.Errorf("in a partition: %+v", st)
		}
		if st := a.Status(); st.Up || !errors.Is(st.Down, ErrTimeout) {
			t.Errorf("the other end: %+v", st)
		}
		s.Partition("server", "client", false)
		flush(t, b.Link)
		wantGot(t, "server", a, sequence(1, 6))
		if st := b.Status(); !st.Up || st.Down != nil || st.Connects != 2 || st.Resets != 0 || st.Sent != 6 {
			t.Errorf("after it: %+v", st)
		}
		want := []string{"up client", "down", "up client"}
		if got := a.calls(); !slices.Equal(got, want) {
			t.Errorf("callbacks %v, want %v", got, want)
		}
		a.Close()
		b.Close()
	})
}

func TestHeartbeatsKeepAnIdleLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := transport.NewSim(1, transport.Faults{MaxDelay: 100 * time.Millisecond})
		a, b := openServer(t, s), openClient(t, s)
		time.Sleep(time.Hour)
		if st := a.Status(); !st.Up || st.Connects != 1 {
			t.Errorf("after an idle hour: %+v", st)
		}
		a.Close()
		b.Close()
	})
}

func TestPeerReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := transport.NewSim(1, transport.Faults{MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
		a, b := openServer(t, s), openClient(t, s)
		b.number(t, 1, 5)
		a.number(t, 1, 2)
		flush(t, b.Link)
		flush(t, a.Link)
		b.Close()
		a.number(t, 90, 95) // for a process that is gone
		synctest.Wait()
		b = openClient(t, s)
		b.number(t, 6, 8)
		flush(t, b.Link)
		a.number(t, 3, 4)
		flush(t, a.Link)
		wantGot(t, "server", a, sequence(1, 8))
		wantGot(t, "new client", b, sequence(3, 4))
		want := []string{"up client", "down", "reset after 5", "up client"}
		if got := a.calls(); !slices.Equal(got, want) {
			t.Errorf("callbacks %v, want %v", got, want)
		}
		if st := a.Status(); st.Dropped != 6 || st.Resets != 1 {
			t.Errorf("after a reset: %+v", st)
		}
		if got := b.calls(); !slices.Equal(got, []string{"up server"}) {
			t.Errorf("the new process saw %v", got)
		}
		a.Close()
		b.Close()
	})
}

// TestReplacedProcessStaysOut keeps a process in a partition while another
// takes its name.
func TestReplacedProcessStaysOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := transport.NewSim(1, transport.Faults{})
		a, old := openServer(t, s), openClient(t, s)
		old.number(t, 1, 1)
		flush(t, old.Link)
		successor := openClient(t, s)
		successor.number(t, 2, 2)
		flush(t, successor.Link)
		old.number(t, 99, 99)
		time.Sleep(time.Minute)
		successor.number(t, 3, 3)
		flush(t, successor.Link)
		wantGot(t, "server", a, sequence(1, 3))
		if st := old.Status(); st.Up || !errors.Is(st.Refused, ErrRefused) || !strings.Contains(st.Refused.Error(), "replaced") {
			t.Errorf("the old process: %+v", st)
		}
		for _, e := range []*end{a, old, successor} {
			e.Close()
		}
	})
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		client, server func(*Options)
		text           string
	}{
		"configuration": {func(o *Options) { o.Self.ConfigHash = "other" }, func(*Options) {}, `configuration "other"`},
		"server picks":  {func(*Options) {}, func(o *Options) { o.PeerModel = "birch" }, `the peer is "client", must be "birch"`},
		"client picks":  {func(o *Options) { o.PeerModel = "birch" }, func(*Options) {}, `the peer is "server", must be "birch"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := transport.NewSim(1, transport.Faults{})
				a := open(t, func(o *Options) {
					o.Self.Model, o.Self.Role, o.Listener = "server", "worker", s.Listen("server", "client")
					c.server(o)
				})
				b := open(t, func(o *Options) {
					o.Self.Model, o.Self.Role = "client", "master"
					o.Dialer = &counter{Dialer: s.Dialer("server", "client")}
					c.client(o)
				})
				time.Sleep(time.Minute)
				for who, e := range map[string]*end{"server": a, "client": b} {
					if st := e.Status(); st.Up || !errors.Is(st.Refused, ErrRefused) {
						t.Errorf("the %s: %+v", who, st)
					}
					// The end that has no complaint may come up and go down.
					if calls := e.calls(); len(calls) > 30 {
						t.Errorf("the %s: %d callbacks in a minute: %q", who, len(calls), calls)
					}
				}
				all := strings.Join(append(a.calls(), b.calls()...), "\n")
				if !strings.Contains(all, c.text) {
					t.Errorf("no callback says %q:\n%s", c.text, all)
				}
				a.Close()
				b.Close()
				if n := b.opt.Dialer.(*counter).n; n > 15 {
					t.Errorf("dialed %d times in a minute", n)
				}
			})
		})
	}
}

type counter struct {
	transport.Dialer
	n int
}

func (c *counter) Dial(ctx context.Context) (transport.Conn, error) {
	c.n++
	return c.Dialer.Dial(ctx)
}

func TestBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := transport.NewSim(1, transport.Faults{})
		release := make(chan struct{})
		a := &end{hold: func() { <-release }}
		link, err := Open(a.options(func(o *Options) { o.Listener = s.Listen("server", "client") }))
		if err != nil {
			t.Fatal(err)
		}
		a.Link = link
		b := open(t, func(o *Options) { o.Dialer, o.Window = s.Dialer("server", "client"), 8 })
		b.number(t, 1, 8)
		time.Sleep(time.Minute) // a slow receiver is not a dead one
		if st := b.Status(); !st.Up || st.Connects != 1 || st.Queued != 8 || st.Resent != 0 {
			t.Errorf("with a slow receiver: %+v", st)
		}
		if err := b.TrySend(&wire.Renew{ID: 9}); !errors.Is(err, ErrBackpressure) {
			t.Errorf("TrySend into a full window: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Send(ctx, &wire.Renew{ID: 9}); !errors.Is(err, ErrBackpressure) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Send into a full window: %v", err)
		}
		close(release)
		b.number(t, 9, 100)
		flush(t, b.Link)
		wantGot(t, "server", a, sequence(1, 100))
		a.Close()
		b.Close()
	})
}

func TestWindowBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, func(o *Options) {
			o.Dialer, o.WindowBytes = transport.NewSim(1, transport.Faults{}).Dialer("server", "client"), 1000
		})
		big := &wire.Bye{Reason: strings.Repeat("x", 2000)}
		if err := b.TrySend(big); err != nil {
			t.Errorf("one message must always fit: %v", err)
		}
		if err := b.TrySend(&wire.Renew{ID: 1}); !errors.Is(err, ErrBackpressure) {
			t.Errorf("a second message: %v", err)
		}
		if err := b.TrySend(&wire.Renew{}); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("an invalid message: %v", err)
		}
		tokens := slices.Repeat([]int32{1 << 30}, wire.MaxTokens)
		chunk := &wire.Chunk{ID: "a", Tokens: tokens, Logprobs: make([]float32, len(tokens))}
		if err := b.TrySend(chunk); !errors.Is(err, wire.ErrLong) {
			t.Errorf("a message that is too large: %v", err)
		}
		b.Close()
		if err := b.TrySend(&wire.Renew{ID: 1}); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := b.Send(t.Context(), &wire.Renew{ID: 1}); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		b.Close()
	})
}

func TestCloseWhileBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, func(o *Options) {
			o.Dialer, o.Window = transport.NewSim(1, transport.Faults{}).Dialer("server", "client"), 1
		})
		b.number(t, 1, 1)
		errs := make(chan error, 2)
		go func() { errs <- b.Send(t.Context(), &wire.Renew{ID: 2}) }()
		go func() { errs <- b.Flush(t.Context()) }()
		synctest.Wait()
		b.Close()
		for range 2 {
			if err := <-errs; !errors.Is(err, ErrClosed) {
				t.Errorf("a waiting call: %v", err)
			}
		}
	})
}

// TestBrokenPeers speaks to a link in ways that no peer of ours would.
func TestBrokenPeers(t *testing.T) {
	hello := func(m wire.Hello) *wire.Hello { m.ConfigHash = "same"; return &m }
	good := hello(wire.Hello{Model: "x", Incarnation: 5})
	for name, frames := range map[string][]any{
		"garbage":            {"garbage"},
		"garbage later":      {good, "garbage"},
		"unframed message":   {good, &wire.Renew{ID: 1}},
		"malformed message":  {good, [][]byte{[]byte("garbage")}},
		"a frame in a frame": {good, [][]byte{encoded(t, good)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := transport.NewSim(1, transport.Faults{})
				a := openServer(t, s)
				c, err := s.Dialer("server", "client").Dial(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range frames {
					var b []byte
					switch f := f.(type) {
					case string:
						b = []byte(f)
					case wire.Message:
						b = encoded(t, f)
					case [][]byte:
						b = encoded(t, &wire.Frame{From: 5, To: a.Incarnation(), First: 1, Messages: f})
					}
					_ = c.Send(b) // the link may have hung up already
				}
				synctest.Wait()
				for {
					if _, err := c.Recv(); err != nil {
						break
					}
				}
				if st := a.Status(); st.Up || !errors.Is(st.Refused, ErrRefused) {
					t.Errorf("%+v", st)
				}
				b := openClient(t, s)
				b.number(t, 1, 3)
				flush(t, b.Link)
				wantGot(t, "server", a, sequence(1, 3))
				a.Close()
				b.Close()
			})
		})
	}
}

// TestStrayFrames sends frames of other lives, which are ignored.
func TestStrayFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := transport.NewSim(1, transport.Faults{})
		a := openServer(t, s)
		c, err := s.Dialer("server", "client").Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		renew := func(id uint64) [][]byte { return [][]byte{encoded(t, &wire.Renew{ID: id})} }
		for _, m := range []wire.Message{
			&wire.Hello{ConfigHash: "same", Incarnation: 5},
			&wire.Frame{From: 4, To: a.Incarnation(), First: 1, Messages: renew(90)},
			&wire.Frame{From: 5, To: a.Incarnation() + 2, First: 1, Messages: renew(91)},
			&wire.Frame{From: 5, To: a.Incarnation(), First: 9, Messages: renew(92)}, // a gap
			&wire.Frame{From: 5, To: a.Incarnation(), First: 1, Messages: renew(1), Ack: 1 << 40, Got: 1 << 40},
		} {
			if err := c.Send(encoded(t, m)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		wantGot(t, "server", a, sequence(1, 1))
		if st := a.Status(); !st.Up {
			t.Errorf("%+v", st)
		}
		a.Close()
		_ = c.Close()
	})
}

func encoded(t *testing.T, m wire.Message) []byte {
	t.Helper()
	b, err := wire.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOpenRefuses(t *testing.T) {
	s := transport.NewSim(1, transport.Faults{})
	for _, c := range []struct {
		change func(*Options)
		text   string
	}{
		{func(*Options) {}, "exactly one"},
		{func(o *Options) { o.Dialer, o.Listener = s.Dialer("a", "b"), s.Listen("a", "b") }, "exactly one"},
		{func(o *Options) { o.Dialer, o.OnMessage = s.Dialer("a", "b"), nil }, "OnMessage"},
		{func(o *Options) { o.Dialer, o.PeerTimeout = s.Dialer("a", "b"), time.Second; o.Heartbeat = time.Second }, "PeerTimeout"},
		{func(o *Options) { o.Dialer, o.Window = s.Dialer("a", "b"), 1<<20 }, "Window"},
		{func(o *Options) { o.Dialer = s.Dialer("a", "b"); o.Self.Units = -1 }, "Units"},
	} {
		if _, err := Open((&end{}).options(c.change)); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("error %v, want %q", err, c.text)
		}
	}
}
