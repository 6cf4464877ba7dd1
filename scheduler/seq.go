package scheduler

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/prefix"
)

// seq is a request on its way. All fields but cancelled belong to the
// scheduler's goroutine once Submit has returned.
type seq struct {
	id  uint64 // order of arrival, and the cache's name for the sequence
	req Request

	root   prefix.Key
	tokens []int32 // prompt and generated tokens
	prompt int     // how many of them are the prompt
	done   int     // tokens whose KV is in the cache
	target int     // prefill lasts until done reaches it
	take   int     // tokens in the step being planned or run
	hash   uint64

	flow    *flow // whom its service is charged to
	resumed bool  // was admitted in its turn: it does not queue for that again
	// guest: it runs, and overtook requests of which some still wait.
	guest bool
	// overtaken counts requests from behind that were admitted since this one
	// was queued; stuckSince is when it was first in the queue and was refused.
	overtaken  int
	stuckSince time.Time

	state    seqState
	reserved int // tokens that the cache has room for

	// The cache's last refusal, which stands while refusedGen is the
	// scheduler's memGen.
	refused     error
	refusedGen  uint64
	expectedGen uint64 // memGen of the last hint to a PrefixCache
	// It rather waits than streams, since when, and until when at most.
	waitsSince, waitsUntil time.Time

	stalled      bool // sits out this step
	stalledSince time.Time

	stream  time.Duration // of its borrowed KV, once
	sitsOut bool          // this step, because of that
	satOut  int           // steps in a row

	cached                          int     // tokens found at the first admission
	receipt                         Receipt // of the first admission
	borrowed                        int     // most borrowed blocks held at once
	preemptions                     int
	losses                          int // since the last token
	submitted, admitted, firstToken time.Time

	cancelled atomic.Bool
}

type seqState uint8

const (
	inQueue seqState = iota // from Submit on
	inRunning
	ended
)

func (q *seq) generated() int { return len(q.tokens) - q.prompt }

// decoding reports that only the newest token's KV is missing.
func (q *seq) decoding() bool { return q.done >= q.target }

// maxKV is the most tokens whose KV the request can need: the last generated
// token is never fed back.
func (q *seq) maxKV() int { return q.prompt + q.req.MaxTokens - 1 }

// room is what to reserve so that n tokens fit: whole blocks, never more than
// the request can use.
func (q *seq) room(n, blockTokens int) int {
	return min((n+blockTokens-1)/blockTokens*blockTokens, q.maxKV())
}

// chunk is how many tokens q may take in a step with budget tokens left: all
// that remain, or up to a block boundary, or none.
func (q *seq) chunk(budget, blockTokens int) int {
	left := len(q.tokens) - q.done
	if left <= budget {
		return left
	}
	end := (q.done + budget) / blockTokens * blockTokens
	return max(0, end-q.done)
}

// forget drops what is known of the KV, which is gone.
func (q *seq) forget() {
	q.done, q.target, q.take, q.reserved = 0, 0, 0, 0
	q.stalled, q.stalledSince = false, time.Time{}
	q.stream, q.sitsOut, q.satOut = 0, false, 0
}

func (q *seq) usage(now time.Time) Usage {
	u := Usage{
		PromptTokens:     q.prompt,
		CompletionTokens: q.generated(),
		CachedTokens:     q.cached,
		LogitsHash:       q.hash,
		Receipt:          q.receipt,
		BorrowedBlocks:   q.borrowed,
		Preemptions:      q.preemptions,
		TotalMS:          ms(now.Sub(q.submitted)),
	}
	if q.admitted.IsZero() {
		u.QueueMS = u.TotalMS
		return u
	}
	u.QueueMS = ms(q.admitted.Sub(q.submitted))
	if q.firstToken.IsZero() {
		u.PrefillMS = ms(now.Sub(q.admitted))
	} else {
		u.PrefillMS = ms(q.firstToken.Sub(q.admitted))
	}
	return u
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// byRank orders those that run: by priority, guests after the others, by
// arrival. The last is the first to give up its memory.
func byRank(a, b *seq) int {
	if c := cmp.Compare(a.req.Priority, b.req.Priority); c != 0 {
		return c
	}
	if a.guest != b.guest {
		if a.guest {
			return 1
		}
		return -1
	}
	return cmp.Compare(a.id, b.id)
}

// insert puts q into a list that is ordered by rank. In a list of one
// priority without guests that is the order of arrival.
func insert(list []*seq, q *seq) []*seq {
	i, _ := slices.BinarySearchFunc(list, q, byRank)
	return slices.Insert(list, i, q)
}

// remove takes q out of a list that is ordered by rank.
func remove(list []*seq, q *seq) []*seq {
	i, ok := slices.BinarySearchFunc(list, q, byRank)
	if !ok {
		panic("BUG: sequence is not in the list that its state names")
	}
	return slices.Delete(list, i, i+1)
}
