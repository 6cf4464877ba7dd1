package scheduler

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/engine/sampling"
)

// newPrefixRig is newRig over a cache that keeps prefixes.
func newPrefixRig(t *testing.T, c toyPrefix, opt Options) *rig {
	t.Helper()
	r := newRig(t, c.toyCache, opt)
	r.s = New(r.model, c, opt)
	return r
}

// A conversation goes on from what its last turn left, and only its own
// tenant's.
func TestConversation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newPrefixRig(t, newToyPrefix(1, 4, 40, 40), Options{Identity: []byte("toy")})
		r.start()
		ask := func(id string, tokens []int32, salt string) *collector {
			c := r.send(Request{ID: id, Tokens: tokens, MaxTokens: 6, Salt: []byte(salt)})
			<-c.ended
			return c
		}
		first := prose("turn", 10)
		a := ask("a", first, "me")
		next := slices.Concat(first, a.got(), prose("more", 5)) // 15 tokens have KV, 12 in full blocks
		for _, c := range []struct {
			id     string
			tokens []int32
			salt   string
			cached int
		}{
			{"b", next, "me", 12},
			{"again", next, "me", 20}, // of 21
			{"whole blocks", next[:20], "me", 16},
			{"other", next, "you", 0},
			{"unlike", slices.Concat([]int32{first[0] ^ 1}, next[1:]), "me", 0},
		} {
			u := ask(c.id, c.tokens, c.salt).last().Usage
			if u.CachedTokens != c.cached || u.Receipt.Local != c.cached {
				t.Errorf("%s: %+v, want %d cached tokens", c.id, u, c.cached)
			}
		}
		r.finished()
		if st := r.s.Stats(); st.PromptTokens != 10+4*21+20 || st.CachedTokens != 48 || st.PrefillTokens != st.PromptTokens-48 {
			t.Errorf("%+v", st)
		}
	})
}

// What a preempted request finds of its own is no hit, but is not computed
// again.
func TestPreemptedRequestFindsItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newToyPrefix(1, 4, 8, 8)
		r := newPrefixRig(t, c, Options{})
		r.submit("a", 9, 4)
		b := r.submit("b", 9, 20)
		r.s.cache = c
		steps := 0
		r.model.layerTime = time.Millisecond
		r.start()
		time.Sleep(13 * time.Millisecond) // b is alone by now
		r.cache.mu.Lock()
		before := r.s.stats.PrefillTokens
		r.cache.evicted = append(r.cache.evicted, 2) // says the cache, which keeps all the same
		r.cache.signal()
		r.cache.mu.Unlock()
		r.finished()
		if u := b.last().Usage; u.Preemptions != 1 || u.CachedTokens != 0 || u.Receipt != (Receipt{}) {
			t.Errorf("%+v", u)
		}
		if st := r.s.Stats(); st.CachedTokens != 0 || st.PrefillTokens-before > 4 || st.PromptTokens != 18 {
			t.Errorf("%+v after %d steps; %d prefill tokens before", st, steps, before)
		}
	})
}

// The cache hears of requests that wait, once until memory changes, and of no
// more than a few.
func TestHints(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newToyPrefix(1, 4, 8, 20)
		r := newPrefixRig(t, c, Options{MaxBypass: -1})
		r.model.layerTime = time.Millisecond
		r.submit("runs", 4, 28) // 8 blocks in the end
		r.start()
		time.Sleep(time.Millisecond)
		for i := range 12 {
			r.submit(string(rune('a'+i)), 30, 1)
		}
		time.Sleep(20 * time.Millisecond) // 10 steps
		r.cache.mu.Lock()
		for id := uint64(1); id <= 13; id++ {
			want := 0
			if id >= 2 && id < 2+expectAhead {
				want = 1
			}
			if got := c.keep.hints[id]; got != want {
				t.Errorf("request %d: %d hints, want %d", id, got, want)
			}
		}
		r.cache.mu.Unlock()
		r.cache.resize(20)
		r.finished()
	})
}

// liar is a PrefixCache with a wrong answer.
type liar struct {
	toyPrefix
	says int
}

func (l liar) Admit(Admission) (int, error) { return l.says, nil }

func TestWrongHitsPanic(t *testing.T) {
	for _, says := range []int{-4, 3, 8, 12} {
		c := liar{newToyPrefix(1, 4, 8, 8), says}
		s := New(&toyModel{block: 4}, c, Options{})
		err := s.Submit(Request{ID: "a", Tokens: prose("a", 8), MaxTokens: 2, Sink: func(Event) {}, Sampling: sampling.Default()})
		if err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() {
				if p, _ := recover().(string); !strings.HasPrefix(p, "BUG: the cache says") {
					t.Errorf("%d of 8 tokens: recovered %q", says, p)
				}
			}()
			t.Errorf("%d of 8 tokens: %v", says, s.Run(t.Context()))
		}()
	}
}
