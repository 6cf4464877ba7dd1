package api

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvlend/kvlend/api/openai"
)

// some candidates for a request of 100 tokens
func worker(free, waiting, most int) candidate {
	return candidate{known: true, free: free, waiting: waiting, most: most, demand: load{1, 100}, longest: 100}
}

func master(free, waiting, most int) candidate {
	c := worker(free, waiting, most)
	c.master = true
	return c
}

func TestPick(t *testing.T) {
	silent, drained, full := worker(1000, 0, 1000), worker(1000, 0, 1000), worker(1000, 2, 1000)
	silent.known, drained.drained, full.full = false, true, true
	for _, tc := range []struct {
		name string
		cs   []candidate
		want int
	}{
		{"least free memory that suffices", []candidate{master(9000, 0, 4000), worker(300, 0, 1000), worker(200, 0, 1000), worker(99, 0, 1000)}, 2},
		{"the first of equals", []candidate{worker(200, 0, 1000), worker(200, 0, 500)}, 0},
		{"needs borrowed memory", []candidate{worker(99, 0, 1000), master(0, 0, 4000)}, 1},
		{"long for the worker", []candidate{worker(199, 0, 199), master(0, 0, 4000)}, 1},
		{"as long as may be", []candidate{worker(200, 0, 200), master(0, 0, 4000)}, 0},
		{"smaller master", []candidate{master(0, 0, 4000), master(0, 0, 2000)}, 1},
		{"worker busy", []candidate{worker(1000, 1, 1000), master(0, 0, 4000)}, 1},
		{"all busy", []candidate{worker(1000, 3, 1000), master(0, 2, 4000), worker(1000, 2, 1000)}, 1},
		{"no master", []candidate{worker(50, 0, 150), worker(50, 0, 160)}, 1},
		{"busy before full, drained and silent", []candidate{silent, drained, full, worker(0, 9, 100)}, 3},
		{"full before drained", []candidate{silent, drained, full}, 2},
		{"drained before silent", []candidate{silent, drained}, 1},
		{"only one", []candidate{silent}, 0},
	} {
		if got := pick(tc.cs); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

// TestPickHolds draws candidates: the choice is the same for the same figures,
// does not depend on their order but for ties, and keeps to the rule.
func TestPickHolds(t *testing.T) {
	n := func(t *rapid.T, most int, what string) int { return rapid.IntRange(0, most).Draw(t, what) }
	rapid.Check(t, func(t *rapid.T) {
		cs := make([]candidate, rapid.IntRange(1, 6).Draw(t, "models"))
		for i := range cs {
			cs[i] = candidate{index: i, master: rapid.Bool().Draw(t, "master"), known: n(t, 5, "known") > 0, drained: n(t, 5, "drained") == 0,
				most: n(t, 400, "most"), free: n(t, 300, "free"), waiting: n(t, 3, "waiting"), demand: load{1, n(t, 200, "demand")}}
			cs[i].full = cs[i].waiting > 1 && n(t, 2, "full") == 0
			cs[i].longest = min(cs[i].demand.tokens, cs[i].most)
		}
		best := cs[pick(cs)]
		turned := slices.Clone(cs)
		slices.Reverse(turned)
		if again := turned[pick(turned)]; again.rank() != best.rank() {
			t.Fatalf("%+v, and %+v in the other order", best, again)
		}
		ready := func(c candidate) bool { return c.known && !c.drained && !c.full }
		idle := func(c candidate) bool { return ready(c) && c.waiting == 0 }
		small := func(c candidate) bool {
			return idle(c) && !c.master && c.demand.tokens <= c.free && 2*c.longest <= c.most
		}
		for _, c := range cs {
			switch {
			case small(c) && (!small(best) || best.free > c.free):
				t.Fatalf("%+v, although %+v suffices", best, c)
			case idle(c) && c.master && !idle(best):
				t.Fatalf("%+v, although the master %+v is idle", best, c)
			case ready(c) && !ready(best):
				t.Fatalf("%+v, although %+v is there", best, c)
			case ready(c) && !small(best) && best.waiting > c.waiting:
				t.Fatalf("%+v, although fewer wait at %+v", best, c)
			}
		}
	})
}

func turn(texts ...string) *openai.ChatRequest {
	req := &openai.ChatRequest{Messages: []openai.Message{openai.TextMessage("system", "the same for all")}}
	for i, text := range texts {
		req.Messages = append(req.Messages, openai.TextMessage([]string{"user", "assistant"}[i%2], text))
	}
	return req
}

func TestChatTrail(t *testing.T) {
	h := newHomes(100)
	salt := []byte("salt")
	h.settle(h.chatTrail(salt, turn("hi")), 1)
	h.settle(h.chatTrail(salt, turn("ho")), 2)
	for _, tc := range []struct {
		name string
		salt string
		req  *openai.ChatRequest
		want int // -1: unknown
	}{
		{"the same", "salt", turn("hi"), 1},
		{"next turn", "salt", turn("hi", "answer", "more"), 1},
		{"the other's next turn", "salt", turn("ho", "answer", "more"), 2},
		{"much later", "salt", turn("hi", "a", "b", "c", "d", "e", "f"), 1},
		{"only the system's message in common", "salt", turn("hello"), -1},
		{"another tenant's", "tlas", turn("hi"), -1},
		{"split differently", "salt", turn("h", "i"), -1},
	} {
		got, ok := h.find(h.chatTrail([]byte(tc.salt), tc.req))
		if !ok {
			got = -1
		}
		if got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
	withTools := turn("hi")
	withTools.Tools = append(withTools.Tools, []byte(`{}`))
	if _, ok := h.find(h.chatTrail(salt, withTools)); ok {
		t.Error("other tools are another prompt")
	}
	// The longest beginning counts.
	h.settle(h.chatTrail(salt, turn("hi", "answer", "more")), 7)
	if got, _ := h.find(h.chatTrail(salt, turn("hi", "answer", "more", "x", "y"))); got != 7 {
		t.Errorf("model %d", got)
	}
}

// TestTextTrail: a text that goes on is recognised while its beginning is at
// least half of it, and one that shares less than a quarter never.
func TestTextTrail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHomes(1000)
		first := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), shortestText, 3000, -1).Draw(t, "first")
		h.settle(h.textTrail(nil, first), 3)
		more := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, len(first), -1).Draw(t, "more")
		if got, ok := h.find(h.textTrail(nil, first+more)); !ok || got != 3 {
			t.Fatalf("%d bytes and %d more are not recognised", len(first), len(more))
		}
		if _, ok := h.find(h.textTrail([]byte("x"), first)); ok {
			t.Fatal("another tenant's text is recognised")
		}
		if _, ok := h.find(h.textTrail(nil, "c"+first)); ok {
			t.Fatal("another text is recognised")
		}
		shared := first[:len(first)/5]
		if _, ok := h.find(h.textTrail(nil, shared+string(make([]byte, 4*len(shared)+8)))); ok {
			t.Fatal("a common preamble is taken for the conversation")
		}
	})
}

func TestHomesForget(t *testing.T) {
	h := newHomes(3)
	one := func(hash uint64) trail { return trail{find: []uint64{hash}, store: []uint64{hash}} }
	for i := range uint64(3) {
		h.settle(one(i), int(i))
	}
	h.find(one(0)) // asked for: 1 is the oldest now
	h.settle(one(3), 3)
	var left []string
	for i := range uint64(4) {
		if m, ok := h.find(one(i)); ok {
			left = append(left, fmt.Sprint(i, m))
		}
	}
	if !slices.Equal(left, []string{"0 0", "2 2", "3 3"}) || len(h.byHash) != 3 || h.recent.Len() != 3 {
		t.Errorf("left %v of %d and %d", left, len(h.byHash), h.recent.Len())
	}
	h.settle(one(0), 9)
	if m, _ := h.find(one(0)); m != 9 {
		t.Errorf("model %d", m)
	}
}

func TestLongTrail(t *testing.T) {
	h := newHomes(10)
	var texts []string
	for i := range 3 * maxTrail {
		texts = append(texts, fmt.Sprint(i))
	}
	got := h.chatTrail(nil, turn(texts...))
	if len(got.find) != maxTrail || len(got.store) != 1 || got.find[0] != got.store[0] {
		t.Errorf("%d looked up, %d stored", len(got.find), len(got.store))
	}
	if empty := h.chatTrail(nil, &openai.ChatRequest{}); len(empty.find)+len(empty.store) != 0 {
		t.Errorf("%+v of nothing", empty)
	}
}
