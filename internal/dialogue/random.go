package dialogue

import (
	"hash/fnv"
	"math/bits"
)

// random is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom
// number generators", 2014). The standard library does not promise that its
// generators draw the same integers in every release; dialogues must.
type random struct {
	state uint64
	odd   int // percent of towns, colours, foods and pets that are words of any letters
}

// newRandom is the source of dialogue n of a seed.
func newRandom(seed, n uint64) *random {
	r := &random{state: seed}
	r.state = r.next() ^ n*0xd1342543de82ef95
	r.next()
	return r
}

func (r *random) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// intn draws from [0, n); n is at least 1.
func (r *random) intn(n int) int {
	hi, _ := bits.Mul64(r.next(), uint64(n))
	return int(hi)
}

// between draws from [lo, hi].
func (r *random) between(lo, hi int) int { return lo + r.intn(max(hi-lo, 0)+1) }

// chance is true in percent of a hundred cases.
func (r *random) chance(percent int) bool { return r.intn(100) < percent }

func pick[T any](r *random, list []T) T { return list[r.intn(len(list))] }

// reserved reports that a name or a value is kept for evaluation: about one in
// six of them, by the hash of its spelling.
func reserved(s string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s))
	return h.Sum32()>>8%6 == 0
}

// onSide draws until the word is on the wanted side of the split.
func onSide(r *random, heldOut bool, draw func(*random) string) string {
	for {
		if s := draw(r); reserved(s) == heldOut {
			return s
		}
	}
}
