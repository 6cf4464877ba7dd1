package e2e

import (
	"testing"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/engine/kernels"
)

// result is an answer that somebody waits for.
type result struct {
	Answer
	preemptions int
	borrowed    int
	err         error
}

// background reads the rest of a stream.
func background(st *Stream) <-chan result {
	out := make(chan result, 1)
	go func() {
		a, err := st.Rest()
		r := result{Answer: a, err: err}
		if err == nil {
			r.preemptions, r.borrowed = st.Receipt.Preemptions, st.Receipt.BorrowedBlocks
		}
		out <- r
	}()
	return out
}

// begin streams a request and returns after some events.
func (s *System) begin(q Request, events int) *Stream {
	s.t.Helper()
	st, err := s.Stream(s.t.Context(), q)
	if err != nil {
		s.t.Fatal(err)
	}
	for range events {
		if err := st.Next(); err != nil {
			s.t.Fatal(err)
		}
	}
	return st
}

// taker is a worker that wants its memory back: the length of its prompt, and
// how many units may stay away.
type taker struct {
	name   string
	tokens int
	left   int
}

// TestReclaimInMidAnswer: while the master streams a long answer out of
// borrowed memory, workers get long requests of their own and take the memory
// back. Nobody's answer changes by a bit.
func TestReclaimInMidAnswer(t *testing.T) {
	// What is at home holds 2,560 tokens of birch while the master has 14 units,
	// and 512 of cedar while it has 32.
	all, some := taker{"birch", 4300, 0}, taker{"cedar", 5000, 16}
	for _, tc := range []struct {
		name   string
		change change
		prompt int
		takers []taker
		again  bool // the master's request has to be computed again
		quick  bool
	}{
		{"moved elsewhere", func(*configs.Config) {}, 1500, []taker{all}, false, true},
		{"computed again", func(*configs.Config) {}, 3900, []taker{all, some}, true, true},
		{"layer-lcm", func(c *configs.Config) { c.Lending.Unit.Policy = elastic.PolicyLayerLCM }, 1500, []taker{all}, false, false},
		{"two buffers", func(c *configs.Config) {
			m := model(c, "atlas")
			m.LSC.Buffers, m.Arena = 2, 6<<20
		}, 2000, []taker{all}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !tc.quick {
				needLong(t, "one more configuration of the same test")
			}
			s := Start(t, tc.change, func(c *configs.Config) {
				c.Lending.IdleReturn = configs.Duration(time.Second)
				// What came home stays for as long as somebody looks.
				c.Lending.ScaleDown = configs.ScaleDown{Policy: elastic.DownWindow, Window: configs.Duration(time.Minute)}
			})
			long := Request{Model: "atlas", Prompt: text(77, tc.prompt), MaxTokens: 700, Temperature: 0.7, Seed: 5}
			answer := background(s.begin(long, 20))
			if st := s.until("the master's use of borrowed memory", "atlas", running); st.Blocks.BorrowedUsed == 0 {
				t.Fatalf("no borrowed blocks: %+v", st.Blocks)
			}
			if !tc.again {
				s.leaveRoom()
			}
			var takers []<-chan result
			var asked []Request
			for i, k := range tc.takers {
				s.until("units of "+k.name+" with the master", k.name, func(st *wire.Status) bool { return lent(st) > k.left })
				q := Request{Model: k.name, Prompt: text(uint64(i), k.tokens), MaxTokens: 40}
				st, err := s.Stream(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				asked, takers = append(asked, q), append(takers, background(st))
			}
			for _, k := range tc.takers {
				s.until("units of "+k.name+" at home", k.name, func(st *wire.Status) bool { return lent(st) <= k.left })
			}
			select {
			case r := <-answer:
				t.Fatalf("the master's answer ended before the memory was back: the test shows nothing (%v)", r.err)
			default:
			}
			for i, ch := range takers {
				s.check(asked[i], <-ch)
			}
			r := <-answer
			s.check(long, r)
			if (r.preemptions > 0) != tc.again || r.borrowed == 0 {
				t.Errorf("%d preemptions, %d borrowed blocks", r.preemptions, r.borrowed)
			}
		})
	}
}

// leaveRoom makes the master borrow more than it needs for the moment, so that
// blocks that have to move find room with another worker.
func (s *System) leaveRoom() {
	s.t.Helper()
	q := Request{Model: "atlas", Prompt: text(78, 2000), MaxTokens: 1}
	if _, _, err := s.Complete(s.t.Context(), q); err != nil {
		s.t.Fatal(err)
	}
}

func running(st *wire.Status) bool { return st.Running == 1 }

// longest is the longest context of a model.
func (s *System) longest(name string) int {
	for _, m := range s.Models {
		if m.Name == name {
			return m.MaxTokens
		}
	}
	s.t.Fatalf("no model %s", name)
	return 0
}

// check compares a result with the reference.
func (s *System) check(q Request, r result) {
	s.t.Helper()
	if r.err != nil {
		s.t.Errorf("%s (%d tokens): %v", q.Model, len(q.Prompt), r.err)
		return
	}
	s.compare("answer", q, r.Answer, kernels.BF16)
}
