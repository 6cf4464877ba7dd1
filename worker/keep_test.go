package worker

import (
	"errors"
	"testing"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// talk runs a sequence over n whole blocks of tokens that all are first, and
// ends it; it returns how many of them were kept before.
func (w *world) talk(id uint64, first int32, n int) (cached int) {
	w.t.Helper()
	c := w.speak(id, first, n)
	cached = c.done
	w.compute([]*chat{c}, []int{len(c.tokens) - c.done}, true)
	w.end(c)
	w.check()
	return cached
}

// speak admits such a sequence. A last token makes it possible to use all blocks.
func (w *world) speak(id uint64, first int32, n int) *chat {
	w.t.Helper()
	c := &chat{root: prefix.Root()}
	for range n*w.geo.BlockTokens + 1 {
		c.tokens = append(c.tokens, first)
	}
	if _, err := w.admit(c, id); err != nil {
		w.t.Fatalf("%d blocks: %v", n, err)
	}
	return c
}

func (w *world) blocks() wire.BlockStatus {
	var st wire.Status
	w.cache.Describe(&st, nil, nil)
	return st.Blocks
}

// TestKeptBlocksMakeWayForLending: what is kept is not lent while it is young;
// then as much of it goes as is borrowed, the coldest first.
func TestKeptBlocksMakeWayForLending(t *testing.T) {
	for _, policy := range elastic.Policies() {
		t.Run(string(policy), func(t *testing.T) {
			w := newWorld(t, policy, elastic.DownFloor)
			half := w.cache.MaxTokens() / w.geo.BlockTokens / 2
			w.talk(1, 1, half-1)
			w.now += 10 * time.Second
			w.talk(2, 2, half-1)
			before := w.lend(100)
			if before >= w.units.MaxLent()/2 {
				t.Fatalf("%d units lent at once, of which most hold young blocks", before)
			}
			w.now += 20 * time.Second // the first is cold now
			w.lend(1)
			w.check()
			if again := w.speak(3, 2, half-1); again.done != (half-1)*w.geo.BlockTokens {
				t.Fatalf("%d tokens of the younger sequence are kept", again.done)
			} else {
				w.end(again)
			}
			if kept := w.blocks().LocalKept; kept < half-1 || kept >= 2*half-2 {
				t.Fatalf("%d blocks are kept, one unit of the first sequence's %d should have gone", kept, half-1)
			}
			w.now += time.Minute
			w.lend(100)
			if away := w.units.Away(); away != w.units.MaxLent() {
				t.Fatalf("%d units lent of at most %d, all blocks are cold", away, w.units.MaxLent())
			}
		})
	}
}

// TestUsedBlocksAreNotLent: what a sequence holds stays, however long ago the
// other user left.
func TestUsedBlocksAreNotLent(t *testing.T) {
	w := newWorld(t, elastic.PolicyLCM, elastic.DownFloor)
	n := w.cache.MaxTokens()/w.geo.BlockTokens - 1
	w.talk(1, 1, n)
	c := w.speak(2, 1, n)
	w.now += time.Hour
	if got := w.lend(100); got > 0 {
		t.Fatalf("%d units lent that are in use", got)
	}
	w.compute([]*chat{c}, []int{1}, true)
	w.end(c)
}

// TestRoomComesInOrder: free blocks, then cold ones, then units of borrowers,
// and young ones only when no unit is away or none comes.
func TestRoomComesInOrder(t *testing.T) {
	w := newWorld(t, elastic.PolicyLCM, elastic.DownFloor)
	total := w.cache.MaxTokens() / w.geo.BlockTokens
	w.lend(2)
	room := w.blocks().LocalFree
	w.talk(1, 1, room/2)
	w.now += time.Minute
	w.talk(2, 2, 1) // young
	w.talk(3, 3, room-2)
	if kept := w.blocks().LocalKept; kept != room-1 {
		t.Fatalf("%d blocks are kept of %d, want the young ones", kept, room)
	}
	big := &chat{root: prefix.Root([]byte("big")), tokens: make([]int32, (room-1)*w.geo.BlockTokens)}
	if _, err := w.admit(big, 4); !errors.Is(err, scheduler.ErrComing) || w.wanted != 2 {
		t.Fatalf("%v, %d units wanted; young blocks are kept while two are away", err, w.wanted)
	}
	if kept := w.blocks().LocalKept; kept != room-1 {
		t.Fatalf("%d blocks are kept of %d after a refusal", kept, room)
	}
	w.now += time.Second // Hold: they do not come
	if _, err := w.admit(big, 4); err != nil {
		t.Fatalf("the units do not come: %v", err)
	}
	w.end(big)
	w.comeHome(2)
	all := w.speak(5, 5, total-1)
	if kept := w.blocks().LocalKept; kept != 0 {
		t.Fatalf("%d blocks are kept, all are in use", kept)
	}
	if _, err := w.admit(big, 6); !errors.Is(err, scheduler.ErrWait) || errors.Is(err, scheduler.ErrComing) {
		t.Fatalf("all blocks are in use: %v", err)
	}
	w.end(all)
}

// TestPreemptedRequestsBlocksCanBeUsed: a borrower that never returns its units
// must not keep the earliest request from the memory of later ones.
func TestPreemptedRequestsBlocksCanBeUsed(t *testing.T) {
	w := newWorld(t, elastic.PolicyLCM, elastic.DownFloor)
	w.lend(4)
	room := w.blocks().LocalFree
	first, later := w.speak(1, 1, 1), w.speak(2, 2, room-4)
	w.compute([]*chat{later}, []int{len(later.tokens)}, true)
	grown := (room - 2) * w.geo.BlockTokens
	if err := w.cache.Reserve(1, grown); !errors.Is(err, scheduler.ErrComing) {
		t.Fatal(err)
	}
	w.now += 10 * time.Second
	w.end(later) // preempted: its blocks are kept, and young
	if err := w.cache.Reserve(1, grown); err != nil {
		t.Fatalf("after all others gave up their memory: %v", err)
	}
	w.end(first)
}

func TestKeepForIsNotNegative(t *testing.T) {
	w := newWorld(t, elastic.PolicyLCM, elastic.DownFloor)
	cfg := w.cache.cfg
	cfg.KeepFor = -1
	if _, err := New(cfg); err == nil {
		t.Error("a negative KeepFor was accepted")
	}
}
