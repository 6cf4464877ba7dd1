package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// chat is a conversation of a random history: its tokens grow turn by turn.
type chat struct {
	id     uint64 // of the sequence that runs, 0: none does
	root   prefix.Key
	tokens []int32
	done   int // of the sequence
}

// past says, token by token, what KV the tokens up to there lead to.
func past(root prefix.Key, tokens []int32) []uint64 {
	h := root.Hi
	out := make([]uint64, len(tokens))
	for i, t := range tokens {
		var b [12]byte
		binary.LittleEndian.PutUint64(b[:], h)
		binary.LittleEndian.PutUint32(b[8:], uint32(t))
		h = xxh3.Hash(b[:])
		out[i] = h
	}
	return out
}

// admit opens a sequence for the chat's tokens.
func (w *world) admit(c *chat, id uint64) (cached int, err error) {
	cached, err = w.cache.Admit(scheduler.Admission{
		ID: id, Root: c.root, Tokens: slices.Clone(c.tokens), Room: len(c.tokens),
		Compute: func(from, to int) time.Duration { return time.Duration(to-from) * time.Millisecond },
	})
	if err != nil {
		return 0, err
	}
	if cached%w.geo.BlockTokens != 0 || cached >= len(c.tokens) {
		w.t.Fatalf("%d of %d tokens are cached", cached, len(c.tokens))
	}
	want := receipt{Local: cached, PredictedMS: float64(len(c.tokens) - cached), RecomputeMS: float64(len(c.tokens))}
	if got := w.cache.Receipt(id); got != want {
		w.t.Fatalf("receipt %+v, want %+v", got, want)
	}
	c.id, c.done = id, cached
	return cached, nil
}

func (w *world) end(c *chat) {
	if c.id != 0 {
		w.cache.Release(c.id)
		c.id = 0
	}
}

// compute runs a step over chats: n[i] more tokens of each, whose whole history
// is checked. commit false aborts it.
func (w *world) compute(chats []*chat, n []int, commit bool) {
	w.t.Helper()
	steps := make([]scheduler.StepSeq, len(chats))
	for i, c := range chats {
		steps[i] = scheduler.StepSeq{ID: c.id, Start: c.done, New: n[i], Tokens: c.tokens[c.done : c.done+n[i]]}
	}
	st, err := w.cache.Begin(context.Background(), steps)
	if err != nil {
		w.t.Fatal(err)
	}
	for l := range w.geo.Layers {
		tables, err := st.Layer(l)
		if err != nil {
			w.t.Fatal(err)
		}
		for i, c := range chats {
			w.layer(st.Memory(), tables[i], c, c.done+n[i], l)
		}
		st.Written(l)
		st.Done(l)
	}
	if !commit {
		st.Abort()
		return
	}
	if err := st.Commit(); err != nil {
		w.t.Fatal(err)
	}
	for i, c := range chats {
		c.done += n[i]
	}
}

// layer writes a layer's new stamps of a chat, and reads all before.
func (w *world) layer(mem []byte, table []int64, c *chat, end, l int) {
	w.t.Helper()
	b, size := w.geo.BlockTokens, int(w.geo.LayerBlockBytes())/w.geo.BlockTokens
	for pos, h := range past(c.root, c.tokens[:end]) {
		at := mem[int(table[pos/b])+pos%b*size:][:8]
		if stamp := h ^ uint64(l); pos >= c.done {
			binary.LittleEndian.PutUint64(at, stamp)
		} else if got := binary.LittleEndian.Uint64(at); got != stamp {
			w.t.Fatalf("sequence %d, token %d, layer %d: %x, want %x", c.id, pos, l, got, stamp)
		}
	}
}

// history is random: conversations over a worker that lends and restarts.
type history struct {
	*world
	r     *rand.Rand
	chats []*chat
	last  uint64
	seen  *Stats // of all histories
}

// TestConversations mixes conversations that share prefixes, and sequences
// without tokens, with lending, returns, reclaims and restarts: every stamp of
// every step is what the tokens before it lead to.
func TestConversations(t *testing.T) {
	downs := []elastic.ScaleDownPolicy{elastic.DownWindow, elastic.DownQuantile, elastic.DownHysteresis, elastic.DownFloor}
	keeps := []time.Duration{0, 10 * time.Second, time.Hour}
	var seen Stats
	for _, policy := range elastic.Policies() {
		for seed := range uint64(24) {
			t.Run(fmt.Sprintf("%s/%d", policy, seed), func(t *testing.T) {
				w := newWorldWith(t, policy, downs[seed%4], seed%5 == 0)
				w.keepFor = keeps[seed%3]
				w.start(w.units.Spec())
				h := &history{world: w, r: rand.New(rand.NewPCG(seed, 5)), chats: make([]*chat, 5), seen: &seen, last: 100}
				for i := range h.chats {
					h.chats[i] = &chat{root: prefix.Root([]byte{byte(i % 2)})}
				}
				for range 300 {
					h.op()
					w.check()
				}
				for _, c := range h.chats {
					w.end(c)
				}
				h.note()
			})
		}
	}
	t.Logf("%+v", seen)
	if seen.Reused == 0 || seen.Merged == 0 || seen.Dropped == 0 {
		t.Errorf("the histories prove too little: %+v", seen)
	}
}

func (h *history) note() {
	s := h.cache.Stats()
	h.seen.Reused += s.Reused
	h.seen.Merged += s.Merged
	h.seen.Dropped += s.Dropped
}

func (h *history) op() {
	w, r := h.world, h.r
	switch k := r.IntN(20); {
	case k < 5:
		c := h.chats[r.IntN(len(h.chats))]
		if c.id != 0 {
			w.end(c)
		} else {
			h.begin(c)
		}
	case k < 12:
		h.step()
	case k < 14:
		w.lend(1 + r.IntN(6))
	case k < 16:
		w.comeHome(w.wanted + r.IntN(2))
		w.wanted = 0
	case k < 18:
		w.randomOp(r) // of sequences without tokens, and time
	case k < 19:
		w.now += time.Duration(r.IntN(8)) * time.Second
	case r.IntN(4) == 0:
		h.restart()
	}
}

// restart replaces the worker's process: lent units stay lent, all else is gone.
func (h *history) restart() {
	h.note()
	h.start(h.units.Spec())
	clear(h.done)
	for _, c := range h.chats {
		c.id = 0
	}
}

// begin opens a turn: what was said before and something new, or what another
// conversation said.
func (h *history) begin(c *chat) {
	w, r := h.world, h.r
	if o := h.chats[r.IntN(len(h.chats))]; r.IntN(4) == 0 && o.root == c.root {
		c.tokens = slices.Clone(o.tokens)
	}
	if most := w.cache.MaxTokens(); len(c.tokens) > most/3 || r.IntN(9) == 0 {
		c.tokens = c.tokens[:r.IntN(len(c.tokens)+1)]
	}
	for range 1 + r.IntN(3*w.geo.BlockTokens) {
		c.tokens = append(c.tokens, int32(r.IntN(3)))
	}
	h.last++
	_, err := w.admit(c, h.last)
	if long := len(c.tokens) > w.cache.MaxTokens(); long != errors.Is(err, scheduler.ErrNever) {
		w.t.Fatalf("%d tokens of at most %d: %v", len(c.tokens), w.cache.MaxTokens(), err)
	} else if err != nil && !long {
		h.refused(err)
	}
}

func (h *history) refused(err error) {
	h.t.Helper()
	if !errors.Is(err, scheduler.ErrWait) {
		h.t.Fatal(err)
	}
	if errors.Is(err, scheduler.ErrComing) && h.wanted == 0 {
		h.t.Fatal("units are said to come, and nobody was asked")
	}
}

func (h *history) step() {
	w, r := h.world, h.r
	var chats []*chat
	var n []int
	for _, c := range h.chats {
		if c.id == 0 || r.IntN(3) == 0 {
			continue
		}
		left := len(c.tokens) - c.done
		if left == 0 {
			c.tokens = append(c.tokens, int32(r.IntN(2)))
			left = 1
		}
		k := min(left, 1+r.IntN(3*w.geo.BlockTokens))
		if err := w.cache.Reserve(c.id, c.done+k); err != nil {
			if !errors.Is(err, scheduler.ErrNever) {
				h.refused(err)
			}
			continue
		}
		chats, n = append(chats, c), append(n, k)
	}
	if len(chats) > 0 {
		w.compute(chats, n, r.IntN(6) > 0)
	}
}
