package sampling

import (
	"errors"
	"fmt"
	"math"
)

// ErrLogits is wrapped by Sample's errors about logits that no distribution
// can be made of.
var ErrLogits = errors.New("unusable logits")

// Scratch is memory that Sample reuses from call to call. The zero value is
// ready; it serves one goroutine at a time.
type Scratch struct {
	logits []float32 // a copy that penalties and biases may change
	counts []int32   // output occurrences by token id, zero between calls
	seen   []bool    // prompt or output occurrence by token id, false between calls
	dirty  []int32   // the ids to reset
	cands  []candidate
	tops   []candidate
	// buckets are sums of weights, for top-p.
	buckets []float64
	top     []TopToken
}

// candidate is a token that may still be drawn.
type candidate struct {
	logit  float32
	id     int32
	weight float64 // exp((logit-max)/temperature)
}

// Sample draws the token at position index of a request's output from logits,
// one per vocabulary entry, which it leaves unchanged. prompt and output are
// the tokens so far, for the penalties. p must be valid. Ties, in the argmax
// as in top-k and top-p, go to the lowest id. The result depends on the
// arguments only, and not on the scratch, which may be nil; Token.Top is
// valid until the scratch's next use. A logit that is NaN or +Inf, no logits
// above -Inf, and ids beyond the vocabulary are errors.
func Sample(logits []float32, prompt, output []int32, index int, p Params, scratch *Scratch) (Token, error) {
	if scratch == nil {
		scratch = new(Scratch)
	}
	if err := checkLogits(logits); err != nil {
		return Token{}, err
	}
	adjusted, err := scratch.adjust(logits, prompt, output, p)
	if err != nil {
		return Token{}, err
	}
	best := argmax(adjusted)
	if math.IsInf(float64(adjusted[best]), 0) {
		return Token{}, fmt.Errorf("%w: after penalties the greatest is %v (token %d)", ErrLogits, adjusted[best], best)
	}
	id := best
	if p.Temperature > 0 {
		id = scratch.draw(adjusted, adjusted[best], index, p)
	}
	tok := Token{ID: id}
	if p.Logprobs >= 0 {
		scratch.report(&tok, logits, p.Logprobs)
	}
	return tok, nil
}

func checkLogits(logits []float32) error {
	if len(logits) == 0 {
		return fmt.Errorf("%w: none given", ErrLogits)
	}
	finite := false
	for i, l := range logits {
		if l > math.MaxFloat32 || l != l {
			return fmt.Errorf("%w: token %d has %v", ErrLogits, i, l)
		}
		finite = finite || l >= -math.MaxFloat32
	}
	if !finite {
		return fmt.Errorf("%w: all %d are -Inf", ErrLogits, len(logits))
	}
	return nil
}

func argmax(logits []float32) int32 {
	best := 0
	for i, l := range logits {
		if l > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// adjust applies penalties and biases to a copy; without any it returns logits.
func (s *Scratch) adjust(logits []float32, prompt, output []int32, p Params) ([]float32, error) {
	repeat := p.RepetitionPenalty != 1
	count := p.PresencePenalty != 0 || p.FrequencyPenalty != 0
	if !repeat && !count && len(p.LogitBias) == 0 {
		return logits, nil
	}
	s.logits = append(s.logits[:0], logits...)
	if repeat || count {
		defer s.reset()
		if err := s.tally(len(logits), prompt, output); err != nil {
			return nil, err
		}
		s.penalise(p)
	}
	for id, b := range p.LogitBias {
		if id < 0 || int(id) >= len(logits) {
			return nil, &ParamError{fmt.Sprintf("logit_bias[%d]", id), b,
				fmt.Sprintf("for a token id below the vocabulary's %d", len(logits))}
		}
		s.logits[id] += b
	}
	return s.logits, nil
}

// tally counts the tokens so far; only ids in s.dirty have non-zero counts.
func (s *Scratch) tally(vocab int, prompt, output []int32) error {
	if len(s.counts) < vocab {
		s.counts = make([]int32, vocab)
		s.seen = make([]bool, vocab)
	}
	for part, ids := range [2][]int32{prompt, output} {
		for at, id := range ids {
			if id < 0 || int(id) >= vocab {
				return fmt.Errorf("%s[%d] is token %d: it must be in [0, %d)", [2]string{"prompt", "output"}[part], at, id, vocab)
			}
			if !s.seen[id] {
				s.seen[id] = true
				s.dirty = append(s.dirty, id)
			}
			s.counts[id] += int32(part) // the prompt's occurrences do not count
		}
	}
	return nil
}

func (s *Scratch) penalise(p Params) {
	for _, id := range s.dirty {
		l := s.logits[id]
		if l > 0 {
			l /= p.RepetitionPenalty
		} else {
			l *= p.RepetitionPenalty
		}
		if n := s.counts[id]; n > 0 {
			// The conversions keep compilers from fusing, which would round differently.
			l -= float32(p.FrequencyPenalty * float32(n))
			l -= p.PresencePenalty
		}
		s.logits[id] = l
	}
}

func (s *Scratch) reset() {
	for _, id := range s.dirty {
		s.counts[id] = 0
		s.seen[id] = false
	}
	s.dirty = s.dirty[:0]
}

// draw applies temperature, min-p, top-k and top-p and draws by inverting the
// cumulative distribution. Min-p and top-k both keep a prefix of the tokens
// in descending order, so applying top-k first keeps the same set.
func (s *Scratch) draw(logits []float32, highest float32, index int, p Params) int32 {
	if p.TopK > 0 && p.TopK < len(logits) {
		s.cands = selectTop(s.cands[:0], logits, p.TopK)
	} else {
		s.cands = s.cands[:0]
		for id, l := range logits {
			s.cands = append(s.cands, candidate{logit: l, id: int32(id)})
		}
	}
	kept, sum := s.cands[:0], 0.0
	for _, c := range s.cands {
		c.weight = exp((float64(c.logit) - float64(highest)) / float64(p.Temperature))
		if c.weight >= float64(p.MinP) && c.weight > 0 {
			kept = append(kept, c)
			sum += c.weight
		}
	}
	if p.TopP < 1 {
		kept, sum = s.nucleus(kept, float64(float64(p.TopP)*sum))
	}
	at := float64(uniform(p.Seed, uint64(index)) * sum)
	for _, c := range kept {
		if at < c.weight {
			return c.id
		}
		at -= c.weight
	}
	return kept[len(kept)-1].id // rounding left a crumb
}

// nucleus keeps the heaviest candidates until their sum reaches mass; at
// least one. It returns them, lightest first, and their sum.
func (s *Scratch) nucleus(c []candidate, mass float64) ([]candidate, float64) {
	c = s.narrow(c, mass)
	for i := len(c)/2 - 1; i >= 0; i-- {
		siftDown(c, i, before)
	}
	sum, n := 0.0, len(c)
	for n > 0 && (sum == 0 || sum < mass) {
		// The taken ones gather, heaviest last, at the end.
		n--
		sum += c[0].weight
		c[0], c[n] = c[n], c[0]
		siftDown(c[:n], 0, before)
	}
	return c[n:], sum
}

// weightBuckets is the number of classes of weights that share exponent and
// the first two bits of the mantissa.
const weightBuckets = 1023<<2 + 1

// bucket numbers the classes from the heaviest; weights are in (0, 1].
func bucket(weight float64) int {
	return weightBuckets - 1 - int(math.Float64bits(weight)>>50)
}

// narrow drops, in place, light candidates that nucleus cannot reach: a heap
// of a whole vocabulary costs more than everything else.
func (s *Scratch) narrow(c []candidate, mass float64) []candidate {
	if s.buckets == nil {
		s.buckets = make([]float64, weightBuckets)
	}
	clear(s.buckets)
	for i := range c {
		s.buckets[bucket(c[i].weight)] += c[i].weight
	}
	last, sum := 0, s.buckets[0]
	// nucleus adds in another order, so its sum may be rounded otherwise.
	for margin := mass * (1 + 1e-9); sum < margin && last < weightBuckets-1; {
		last++
		sum += s.buckets[last]
	}
	kept := c[:0]
	for i := range c {
		if bucket(c[i].weight) <= last {
			kept = append(kept, c[i])
		}
	}
	return kept
}

// report fills in the log probabilities of the raw logits.
func (s *Scratch) report(tok *Token, logits []float32, n int) {
	highest := float64(logits[argmax(logits)])
	sum := 0.0
	for _, l := range logits {
		sum += exp(float64(l) - highest)
	}
	norm := highest + log(sum)
	tok.Logprob = float32(float64(logits[tok.ID]) - norm)
	if n == 0 {
		return
	}
	s.tops = selectTop(s.tops[:0], logits, min(n, len(logits)))
	s.top = s.top[:0]
	for _, c := range s.tops {
		s.top = append(s.top, TopToken{c.id, float32(float64(c.logit) - norm)})
	}
	tok.Top = s.top
}

// uniform returns a number in [0, 1) from the seed and the index: two rounds
// of SplitMix64 (Steele, Lea and Flood, 2014), the index mixed in between.
func uniform(seed, index uint64) float64 {
	return float64(splitmix(splitmix(seed)^index)>>11) * 0x1p-53
}

func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
