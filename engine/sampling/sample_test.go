package sampling

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// reference is an independent and slow statement of what Sample does, up to
// the draw: it returns the probability of each token.
func reference(logits []float32, prompt, output []int32, p Params) []float64 {
	l := slices.Clone(logits)
	for id := range l {
		in := int32(id)
		n := 0
		for _, t := range output {
			if t == in {
				n++
			}
		}
		if n > 0 || slices.Contains(prompt, in) {
			if l[id] > 0 {
				l[id] /= p.RepetitionPenalty
			} else {
				l[id] *= p.RepetitionPenalty
			}
		}
		if n > 0 {
			l[id] -= p.FrequencyPenalty * float32(n)
			l[id] -= p.PresencePenalty
		}
		l[id] += p.LogitBias[in]
	}
	probs := make([]float64, len(l))
	if p.Temperature == 0 {
		probs[argmax(l)] = 1
		return probs
	}
	order := make([]int, len(l))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(l[b], l[a]) })
	highest := float64(l[order[0]])
	for id := range l {
		probs[id] = math.Exp((float64(l[id]) - highest) / float64(p.Temperature))
	}
	for rank, id := range order {
		if probs[id] < float64(p.MinP) || p.TopK > 0 && rank >= p.TopK {
			probs[id] = 0
		}
	}
	normalise(probs)
	if p.TopP < 1 {
		sum := 0.0
		for rank, id := range order {
			if rank > 0 && sum >= float64(p.TopP) {
				probs[id] = 0
			}
			sum += probs[id]
		}
		normalise(probs)
	}
	return probs
}

func normalise(p []float64) {
	sum := 0.0
	for _, x := range p {
		sum += x
	}
	for i := range p {
		p[i] /= sum
	}
}

// frequencies draws n tokens with successive indices.
func frequencies(t *testing.T, logits []float32, prompt, output []int32, p Params, n int) []int {
	t.Helper()
	var s Scratch
	counts := make([]int, len(logits))
	for i := range n {
		tok, err := Sample(logits, prompt, output, i, p, &s)
		if err != nil {
			t.Fatal(err)
		}
		counts[tok.ID]++
	}
	return counts
}

// chiSquare compares counts with probabilities. Cells that expect fewer than
// five are pooled.
func chiSquare(counts []int, probs []float64) (stat float64, cells int) {
	n := 0
	for _, c := range counts {
		n += c
	}
	var restWant float64
	var restGot int
	add := func(got int, want float64) {
		stat += (float64(got) - want) * (float64(got) - want) / want
		cells++
	}
	for i, p := range probs {
		if want := p * float64(n); want >= 5 {
			add(counts[i], want)
		} else {
			restWant += want
			restGot += counts[i]
		}
	}
	if restWant > 0 {
		add(restGot, max(restWant, 1e-9))
	}
	return stat, cells
}

func TestDistribution(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	logits := make([]float32, 50)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * 2)
	}
	prompt, output := []int32{1, 2, 3}, []int32{3, 3, 4}
	for name, change := range map[string]func(*Params){
		"plain":       func(*Params) {},
		"hot":         func(p *Params) { p.Temperature = 3 },
		"cold":        func(p *Params) { p.Temperature = 0.4 },
		"top-k":       func(p *Params) { p.TopK = 7 },
		"top-k 1":     func(p *Params) { p.TopK = 1 },
		"top-p":       func(p *Params) { p.TopP = 0.8 },
		"tiny top-p":  func(p *Params) { p.TopP = 1e-6 },
		"min-p":       func(p *Params) { p.MinP = 0.1 },
		"all filters": func(p *Params) { p.Temperature, p.TopK, p.TopP, p.MinP = 1.5, 20, 0.9, 0.02 },
		"penalties":   func(p *Params) { p.RepetitionPenalty, p.PresencePenalty, p.FrequencyPenalty = 1.3, 0.5, 0.7 },
		"bias":        func(p *Params) { p.LogitBias = map[int32]float32{0: 4, 5: -100} },
	} {
		t.Run(name, func(t *testing.T) {
			p := Default()
			p.Seed = 42
			change(&p)
			const n = 20000
			probs := reference(logits, prompt, output, p)
			counts := frequencies(t, logits, prompt, output, p, n)
			for id, c := range counts {
				if c > 0 && probs[id] == 0 {
					t.Errorf("token %d was drawn %d times, but cannot be", id, c)
				}
			}
			stat, cells := chiSquare(counts, probs)
			// Mean k, deviation sqrt(2k): five deviations, and the seed is fixed.
			k := float64(cells - 1)
			if stat > k+5*math.Sqrt(2*k) {
				t.Errorf("chi-square is %.1f with %g degrees of freedom", stat, k)
			}
		})
	}
}

func drawParams(r *rapid.T) Params {
	p := Default()
	p.Temperature = rapid.Float32Range(0, 3).Draw(r, "temperature")
	p.TopK = rapid.IntRange(-1, 12).Draw(r, "top_k")
	p.TopP = rapid.Float32Range(0.01, 1).Draw(r, "top_p")
	p.MinP = rapid.Float32Range(0, 1).Draw(r, "min_p")
	p.RepetitionPenalty = rapid.Float32Range(0.5, 2).Draw(r, "repetition")
	p.PresencePenalty = rapid.Float32Range(-2, 2).Draw(r, "presence")
	p.FrequencyPenalty = rapid.Float32Range(-2, 2).Draw(r, "frequency")
	p.Seed = rapid.Uint64().Draw(r, "seed")
	p.Logprobs = rapid.IntRange(-1, 5).Draw(r, "logprobs")
	return p
}

// Whatever the parameters: the token can be drawn, the logits stay as they
// are, the scratch has no influence, and equal arguments give equal tokens.
func TestSampleProperties(t *testing.T) {
	var shared Scratch
	rapid.Check(t, func(r *rapid.T) {
		// Few distinct values, so that there are ties.
		logits := rapid.SliceOfN(rapid.Map(rapid.IntRange(-8, 8), func(i int) float32 { return float32(i) / 2 }), 1, 40).Draw(r, "logits")
		ids := rapid.SliceOf(rapid.Int32Range(0, int32(len(logits)-1)))
		prompt, output := ids.Draw(r, "prompt"), ids.Draw(r, "output")
		p := drawParams(r)
		index := rapid.IntRange(0, 1000).Draw(r, "index")
		before := slices.Clone(logits)
		a, err := Sample(logits, prompt, output, index, p, &shared)
		if err != nil {
			r.Fatal(err)
		}
		a.Top = slices.Clone(a.Top)
		b, err := Sample(logits, prompt, output, index, p, nil)
		if err != nil || a.ID != b.ID || a.Logprob != b.Logprob || !slices.Equal(a.Top, b.Top) {
			r.Fatalf("%+v with one scratch and %+v (%v) with another", a, b, err)
		}
		if !slices.Equal(before, logits) {
			r.Fatal("the logits changed")
		}
		// A little wider, for sums that are rounded differently at the edge.
		wide := p
		wide.TopP, wide.MinP = min(1, p.TopP*(1+1e-6)), p.MinP*(1-1e-6)
		if probs := reference(logits, prompt, output, wide); probs[a.ID] == 0 {
			r.Fatalf("token %d cannot be drawn from %v", a.ID, probs)
		}
		checkLogprobs(r, logits, a, p)
	})
}

func checkLogprobs(r *rapid.T, logits []float32, tok Token, p Params) {
	if p.Logprobs < 0 {
		if tok.Logprob != 0 || tok.Top != nil {
			r.Fatalf("log probabilities that nobody asked for: %+v", tok)
		}
		return
	}
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l))
	}
	want := func(id int32) float64 { return float64(logits[id]) - math.Log(sum) }
	if math.Abs(float64(tok.Logprob)-want(tok.ID)) > 1e-5 {
		r.Fatalf("the log probability of %d is %v, want %v", tok.ID, tok.Logprob, want(tok.ID))
	}
	if len(tok.Top) != min(p.Logprobs, len(logits)) {
		r.Fatalf("%d alternatives, want %d", len(tok.Top), p.Logprobs)
	}
	for i, alt := range tok.Top {
		better := 0
		for id, l := range logits {
			if l > logits[alt.ID] || l == logits[alt.ID] && int32(id) < alt.ID {
				better++
			}
		}
		if better != i || math.Abs(float64(alt.Logprob)-want(alt.ID)) > 1e-5 {
			r.Fatalf("alternative %d is %+v", i, alt)
		}
	}
}

func TestGreedyIsLowestArgmax(t *testing.T) {
	p := Default()
	p.Temperature = 0
	tok, err := Sample([]float32{1, 3, 2, 3, 3}, nil, nil, 0, p, nil)
	if err != nil || tok.ID != 1 {
		t.Errorf("got %d, %v, want token 1", tok.ID, err)
	}
	p.Temperature, p.TopK = 1, 1
	for i := range 100 {
		if tok, err := Sample([]float32{1, 3, 2, 3, 3}, nil, nil, i, p, nil); err != nil || tok.ID != 1 {
			t.Errorf("top-k 1: got %d, %v, want token 1", tok.ID, err)
		}
	}
}

// Top-k keeps exactly k even where logits tie.
func TestTopKKeepsK(t *testing.T) {
	logits := make([]float32, 30)
	p := Default()
	for k := 1; k <= 30; k++ {
		p.TopK = k
		seen := map[int32]bool{}
		for i := range 2000 {
			tok, err := Sample(logits, nil, nil, i, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			seen[tok.ID] = true
		}
		if len(seen) != k || !seen[0] || seen[int32(k)] {
			t.Errorf("top-k %d drew %d different tokens", k, len(seen))
		}
	}
}

func TestBadLogits(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for name, logits := range map[string][]float32{
		"none": {}, "NaN": {0, nan}, "+Inf": {0, inf}, "all -Inf": {-inf, -inf},
	} {
		for _, heat := range []float32{0, 1} {
			p := Default()
			p.Temperature = heat
			if tok, err := Sample(logits, nil, nil, 0, p, nil); !errors.Is(err, ErrLogits) {
				t.Errorf("%s: got %+v, %v", name, tok, err)
			}
		}
	}
	p := Default()
	for i := range 200 {
		if tok, err := Sample([]float32{-inf, 1, -inf}, nil, nil, i, p, nil); err != nil || tok.ID != 1 {
			t.Fatalf("masked tokens: got %+v, %v", tok, err)
		}
	}
	p.RepetitionPenalty = 0.01
	if _, err := Sample([]float32{0, math.MaxFloat32}, []int32{1}, nil, 0, p, nil); !errors.Is(err, ErrLogits) {
		t.Errorf("overflow by a penalty: got %v", err)
	}
}

func TestBadIDs(t *testing.T) {
	p := Default()
	p.PresencePenalty = 1
	var s Scratch
	for _, ids := range [][2][]int32{{{5}, nil}, {nil, {0, -1}}} {
		if _, err := Sample([]float32{1, 2}, ids[0], ids[1], 0, p, &s); err == nil {
			t.Errorf("prompt %v and output %v were accepted", ids[0], ids[1])
		}
	}
	// The failures left nothing behind in the scratch.
	a, errA := Sample([]float32{1, 2}, nil, []int32{1}, 0, p, &s)
	b, errB := Sample([]float32{1, 2}, nil, []int32{1}, 0, p, nil)
	if errA != nil || errB != nil || a.ID != b.ID {
		t.Errorf("%+v, %v and %+v, %v", a, errA, b, errB)
	}
	p.LogitBias = map[int32]float32{2: 1}
	var pe *ParamError
	if _, err := Sample([]float32{1, 2}, nil, nil, 0, p, &s); !errors.As(err, &pe) {
		t.Errorf("bias beyond the vocabulary: got %v", err)
	}
}

// These values pin the random numbers: a change would change what seeded
// requests return.
func TestUniformIsPinned(t *testing.T) {
	for _, c := range []struct {
		seed, index uint64
		want        float64
	}{{0, 0, 0.6524484863740322}, {0, 1, 0.03401170130434639}, {42, 7, 0.08603176010658542}, {18446744073709551615, 12345, 0.6785045720544755}} {
		if got := uniform(c.seed, c.index); got != c.want {
			t.Errorf("uniform(%d, %d) is %v, want %v", c.seed, c.index, got, c.want)
		}
	}
}

func TestUniformIsUniform(t *testing.T) {
	for _, seed := range []uint64{0, 1, 1 << 63} {
		counts, probs := make([]int, 100), make([]float64, 100)
		for i := range uint64(100_000) {
			counts[int(uniform(seed, i)*100)]++
		}
		for i := range probs {
			probs[i] = 0.01
		}
		if stat, cells := chiSquare(counts, probs); stat > float64(cells)+5*math.Sqrt(2*float64(cells)) {
			t.Errorf("seed %d: chi-square is %.1f", seed, stat)
		}
	}
}

func TestExpAndLog(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	ulps := func(a, b float64) float64 { return math.Abs(a-b) / (math.Nextafter(b, math.Inf(1)) - b) }
	for range 200_000 {
		x := -math.Exp(rng.Float64()*40 - 33.5)
		if x > -708 && ulps(exp(x), math.Exp(x)) > 2 {
			t.Fatalf("exp(%v) is %v, want %v", x, exp(x), math.Exp(x))
		}
		y := math.Exp(rng.Float64()*600 - 300)
		if ulps(math.Abs(log(y)), math.Abs(math.Log(y))) > 2 {
			t.Fatalf("log(%v) is %v, want %v", y, log(y), math.Log(y))
		}
	}
	if exp(0) != 1 || log(1) != 0 || exp(math.Inf(-1)) != 0 || exp(-1e300) != 0 {
		t.Error("the ends are wrong")
	}
}

// Digests of the bits of exp and log, equal on every machine.
func TestExpAndLogArePinned(t *testing.T) {
	digest := uint64(0)
	for i := range 100_000 {
		x := -float64(i) * 0.00700001
		digest = splitmix(digest ^ math.Float64bits(exp(x)))
		digest = splitmix(digest ^ math.Float64bits(log(1-x)))
	}
	if digest != 0xd3dd75c277abf003 {
		t.Errorf("the digest is %#x", digest)
	}
}

func TestNoAllocations(t *testing.T) {
	logits := make([]float32, 1000)
	for i := range logits {
		logits[i] = float32(i%37) / 5
	}
	p := Default()
	p.TopK, p.TopP, p.MinP, p.RepetitionPenalty, p.Logprobs = 50, 0.9, 0.01, 1.1, 5
	p.LogitBias = map[int32]float32{3: 1}
	var s Scratch
	output := []int32{1, 2, 3}
	index := 0
	run := func() {
		index++
		if _, err := Sample(logits, output, output, index, p, &s); err != nil {
			t.Fatal(err)
		}
	}
	run()
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations per token", n)
	}
}

func BenchmarkSample(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 6))
	logits := make([]float32, 151_936)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * 3)
	}
	for name, change := range map[string]func(*Params){
		"greedy":       func(p *Params) { p.Temperature = 0 },
		"temperature":  func(*Params) {},
		"top-k 20":     func(p *Params) { p.TopK, p.TopP = 20, 0.95 },
		"top-p":        func(p *Params) { p.TopP = 0.9 },
		"logprobs 5":   func(p *Params) { p.Temperature, p.Logprobs = 0, 5 },
		"penalties 4k": func(p *Params) { p.Temperature, p.RepetitionPenalty = 0, 1.1 },
	} {
		b.Run(name, func(b *testing.B) {
			p := Default()
			change(&p)
			prompt := make([]int32, 4096)
			var s Scratch
			i := 0
			for b.Loop() {
				if _, err := Sample(logits, prompt, nil, i, p, &s); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}
