package master

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// chat is a conversation of a random history: its tokens grow turn by turn.
type chat struct {
	id     uint64 // of the sequence that runs, 0: none does
	root   prefix.Key
	tokens []int32
}

// tokensOf makes the tokens of a sequence known, and what KV they lead to.
func (w *world) tokensOf(id uint64, root prefix.Key, tokens []int32) {
	h := root.Hi
	past := make([]uint64, len(tokens))
	for i, t := range tokens {
		var b [12]byte
		binary.LittleEndian.PutUint64(b[:], h)
		binary.LittleEndian.PutUint32(b[8:], uint32(t))
		h = xxh3.Hash(b[:])
		past[i] = h
	}
	w.past[id] = past
}

// admit lets every lender answer, and everything in the air land, until there is
// a clear answer.
func (w *world) admit(a scheduler.Admission) (int, error) {
	var cached int
	var err error
	for range 6 {
		if cached, err = w.cache.Admit(a); !errors.Is(err, scheduler.ErrComing) {
			return cached, err
		}
		w.cache.Expect(a) // as the scheduler does
		for _, f := range w.lend {
			f.answer()
		}
		w.cache.mu.Lock()
		if w.stuck {
			w.cache.settleNear()
		} else {
			w.cache.settle()
		}
		w.cache.mu.Unlock()
		w.now.Add(1)
	}
	return cached, err
}

func (w *world) hostOf(t testing.TB, blocks int, sync bool) *HostConfig {
	if blocks == 0 {
		return nil
	}
	return &HostConfig{Arena: mustArena(t, "host", int64(blocks)*w.geo.FullBlockBytes()), Load: stream(t, w.fab, "load host"), Sync: sync}
}

// TestConversations mixes conversations that share prefixes with reclaims, lost
// units and idle returns, in all worlds, with and without host memory: every
// stamp of every step is what the tokens before it lead to.
func TestConversations(t *testing.T) {
	var hits scheduler.Receipt
	for i, wc := range worlds {
		for seed := range uint64(24) {
			t.Run(fmt.Sprintf("%d/%d", i, seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 77+uint64(i)))
				wc.verify = []Verify{VerifyOff, VerifySample, VerifyAll}[seed%3]
				wc.hostBlocks = []int{0, 4, 40}[seed/3%3]
				wc.hostSync = seed%2 == 0
				w := newWorld(t, wc)
				h := &history{w: w, r: r, chats: make([]*chat, 4), hits: &hits}
				for j := range h.chats {
					h.chats[j] = &chat{root: prefix.Root([]byte{byte(j % 2)})}
				}
				for range 120 {
					h.op()
					w.check()
				}
				for _, c := range h.chats {
					h.end(c)
				}
				w.check()
			})
		}
	}
	t.Logf("tokens reused: %+v", hits)
	if hits.Local == 0 || hits.Borrowed == 0 || hits.Host == 0 {
		t.Errorf("the histories prove too little: tokens reused by tier %+v", hits)
	}
}

type history struct {
	w     *world
	r     *rand.Rand
	chats []*chat
	last  uint64
	hits  *scheduler.Receipt // the sum of all
}

func (h *history) op() {
	w, r := h.w, h.r
	switch k := r.IntN(16); {
	case k < 3:
		c := h.chats[r.IntN(len(h.chats))]
		if c.id == 0 {
			h.begin(c)
		} else {
			h.end(c)
		}
	case k < 12:
		h.step()
	case k < 13:
		w.reclaim(r)
	case k < 14 && r.IntN(3) == 0:
		w.lose(r)
	case k < 15:
		w.lend[r.IntN(len(w.lend))].refuse = r.IntN(3) == 0
	default:
		w.now.Add(int64(time.Duration(r.IntN(3)) * time.Second))
		w.cache.ReturnIdle()
	}
	for range r.IntN(3) {
		c := h.chats[r.IntN(len(h.chats))]
		if c.id == 0 && len(c.tokens) > 0 {
			w.cache.Expect(scheduler.Admission{Root: c.root, Tokens: c.tokens})
		}
	}
	h.settle()
}

// begin opens a turn: what was said before and something new, or, now and then,
// what another conversation said.
func (h *history) begin(c *chat) {
	w, r := h.w, h.r
	if o := h.chats[r.IntN(len(h.chats))]; r.IntN(6) == 0 && o.root == c.root {
		c.tokens = slices.Clone(o.tokens)
	}
	if most := w.cache.MaxTokens(); len(c.tokens) > most*2/3 || r.IntN(9) == 0 {
		c.tokens = c.tokens[:r.IntN(len(c.tokens)+1)]
	}
	for range 1 + r.IntN(4*w.geo.BlockTokens) {
		c.tokens = append(c.tokens, int32(r.IntN(3)))
	}
	if len(c.tokens) > w.cache.MaxTokens() {
		c.tokens = c.tokens[:w.cache.MaxTokens()]
	}
	h.last++
	w.tokensOf(h.last, c.root, c.tokens)
	a := scheduler.Admission{ID: h.last, Root: c.root, Tokens: slices.Clone(c.tokens), Room: len(c.tokens),
		Compute: func(from, to int) time.Duration { return time.Duration(to-from) * time.Second }}
	cached, err := w.admit(a)
	switch {
	case err == nil:
		if cached%w.geo.BlockTokens != 0 || cached >= len(c.tokens) {
			w.t.Fatalf("%d of %d tokens are cached", cached, len(c.tokens))
		}
		c.id = h.last
		w.seqs[c.id] = cached
		got := w.cache.Receipt(c.id)
		if got.Local+got.Borrowed+got.Host+got.Pool != cached {
			w.t.Fatalf("receipt %+v for %d tokens", got, cached)
		}
		h.hits.Local += got.Local
		h.hits.Borrowed += got.Borrowed
		h.hits.Host += got.Host
		h.hits.Pool += got.Pool
	case !errors.Is(err, scheduler.ErrWait):
		w.t.Fatal(err)
	}
}

func (h *history) end(c *chat) {
	if c.id != 0 {
		h.w.cache.Release(c.id)
		delete(h.w.seqs, c.id)
		c.id = 0
	}
}

// settle takes note of evictions.
func (h *history) settle() {
	gone := h.w.cache.Evicted()
	for _, c := range h.chats {
		if slices.Contains(gone, c.id) {
			h.end(c)
		}
	}
}

func (h *history) step() {
	w, r := h.w, h.r
	var steps []scheduler.StepSeq
	for _, c := range h.chats {
		if c.id == 0 || r.IntN(4) == 0 {
			continue
		}
		at := w.seqs[c.id]
		left := len(c.tokens) - at
		if left == 0 {
			c.tokens = append(c.tokens, int32(r.IntN(3)))
			left = 1
		}
		n := min(left, 1+r.IntN(3*w.geo.BlockTokens))
		if at%w.geo.BlockTokens != 0 {
			n = 1 // chunks of prompts begin on block boundaries
		} else if n < left {
			n = max(1, (at+n)/w.geo.BlockTokens*w.geo.BlockTokens-at)
		}
		if at+n > w.cache.MaxTokens() || w.reserve(c.id, at+n) != nil {
			continue
		}
		w.tokensOf(c.id, c.root, c.tokens)
		steps = append(steps, scheduler.StepSeq{ID: c.id, Start: at, New: n, Tokens: c.tokens[at : at+n]})
	}
	if len(steps) == 0 {
		return
	}
	at := r.IntN(3 * w.geo.Layers)
	err := w.run(steps, func(l int) {
		switch l {
		case at:
			w.reclaim(r)
		case at / 2:
			if r.IntN(12) == 0 {
				w.lose(r)
			}
		}
	})
	var lost *scheduler.LostError
	if errors.As(err, &lost) {
		for _, c := range h.chats {
			if slices.Contains(lost.IDs, c.id) {
				h.end(c)
			}
		}
	} else if err != nil {
		w.t.Fatal(err)
	}
}

// TestHintTakesOnlyWhatIsSpare: a waiting request's prefix comes nearer, but not
// into chunks that a request before it is waiting for.
func TestHintTakesOnlyWhatIsSpare(t *testing.T) {
	w := newWorld(t, worlds[0])
	for _, f := range w.lend {
		f.wanted = 3
		f.answer()
	}
	root, tokens := prefix.Root(), make([]int32, 3*w.geo.BlockTokens+1)
	w.tokensOf(1, root, tokens)
	a := scheduler.Admission{ID: 1, Root: root, Tokens: tokens, Room: len(tokens)}
	if _, err := w.admit(a); err != nil {
		t.Fatal(err)
	}
	if err := w.run([]scheduler.StepSeq{{ID: 1, New: len(tokens), Tokens: tokens}}, nil); err != nil {
		t.Fatal(err)
	}
	w.cache.Release(1)
	c := w.cache
	c.mu.Lock()
	c.depart(3)
	c.settle()
	away := c.index.LenClass(int(borrowed))
	c.wanted = c.space.chunks + 1
	c.mu.Unlock()
	if away != 3 {
		t.Fatalf("%d blocks left for borrowed memory, want 3", away)
	}
	near := func() int {
		c.Expect(a)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settle()
		return c.index.LenClass(int(local))
	}
	if n := near(); n != 0 {
		t.Errorf("%d blocks came near, others wait for their chunks", n)
	}
	c.mu.Lock()
	c.wanted = 0
	c.mu.Unlock()
	if n := near(); n != 3 {
		t.Errorf("%d of 3 blocks came near", n)
	}
	a.ID = 2
	w.past[2] = w.past[1]
	if cached, err := w.admit(a); err != nil || cached != 3*w.geo.BlockTokens || c.Receipt(2).Borrowed != cached {
		t.Errorf("%d tokens cached, %+v, %v", cached, c.Receipt(2), err)
	}
	c.Release(2)
}

// TestOwnPrefixMakesWay: a request continues a prefix that fills the regular
// cache, and is so long that a part of it has to be streamed.
func TestOwnPrefixMakesWay(t *testing.T) {
	for i, wc := range worlds {
		w := newWorld(t, wc)
		root, limit := prefix.Root(), w.cache.MaxTokens()
		tokens := make([]int32, limit)
		w.tokensOf(1, root, tokens)
		w.past[2] = w.past[1]
		first := tokens[:wc.arenaLayers/wc.layers*w.geo.BlockTokens]
		a := scheduler.Admission{ID: 1, Root: root, Tokens: first, Room: len(first)}
		if _, err := w.admit(a); err != nil {
			t.Fatal(err)
		}
		if err := w.run([]scheduler.StepSeq{{ID: 1, New: len(first), Tokens: first}}, nil); err != nil {
			t.Fatal(err)
		}
		w.cache.Release(1)
		a = scheduler.Admission{ID: 2, Root: root, Tokens: tokens, Room: limit}
		cached, err := w.admit(a)
		if err != nil || cached == 0 {
			t.Fatalf("world %d: %d tokens cached, %v", i, cached, err)
		}
		if err := w.run([]scheduler.StepSeq{{ID: 2, Start: cached, New: limit - cached, Tokens: tokens[cached:]}}, nil); err != nil {
			t.Fatalf("world %d: %v", i, err)
		}
		w.cache.Release(2)
		w.check()
	}
}
