package placement

import (
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var names = []string{Bandwidth, Uniform, Single}

func parse(t interface{ Fatal(...any) }, name string) Policy {
	p, err := ParsePolicy(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const plenty = 1 << 40

// roomy are devices with these rates and more room than anybody needs.
func roomy(rates ...float64) []Device {
	out := make([]Device, len(rates))
	for i, r := range rates {
		out[i] = Device{Rate: r, Free: plenty, Slots: plenty}
	}
	return out
}

// counts are the blocks by device.
func counts(parts []Part, devices int) []int {
	out := make([]int, devices)
	for _, p := range parts {
		out[p.Device] += p.Count
	}
	return out
}

func sum(ns []int) (s int) {
	for _, n := range ns {
		s += n
	}
	return s
}

// algorithm1 is the paper's, in exact arithmetic: floor(p_i * n) each, the
// remainder one each to the largest p.
func algorithm1(rates []int64, n int) []int {
	total := new(big.Int)
	for _, r := range rates {
		total.Add(total, big.NewInt(r))
	}
	out, order := make([]int, len(rates)), make([]int, len(rates))
	for i, r := range rates {
		x := new(big.Int).Mul(big.NewInt(r), big.NewInt(int64(n)))
		out[i], order[i] = int(x.Quo(x, total).Int64()), i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(min(1, max(-1, rates[b]-rates[a]))) })
	for i := 0; sum(out) < n; i++ {
		out[order[i]]++
	}
	return out
}

func TestAlgorithm1(t *testing.T) {
	for _, c := range []struct {
		rates []float64
		n     int
		want  []int
	}{
		{[]float64{1, 1, 1, 1}, 8, []int{2, 2, 2, 2}},
		{[]float64{1, 2, 7}, 10, []int{1, 2, 7}},
		{[]float64{1, 2, 7}, 1000, []int{100, 200, 700}},
		// Shares 0.5, 0.3, 0.2 of 11 are 5.5, 3.3, 2.2.
		{[]float64{5, 3, 2}, 11, []int{6, 3, 2}},
		// 6.5, 3.9, 2.6: the remainder of 2 goes to the largest shares and not to
		// the largest fractions.
		{[]float64{5, 3, 2}, 13, []int{7, 4, 2}},
		{[]float64{2, 3, 5}, 13, []int{2, 4, 7}},
		// Ties go to the lower index.
		{[]float64{1, 1, 1}, 5, []int{2, 2, 1}},
		{[]float64{7e9, 3.5e9, 3.5e9}, 7, []int{4, 2, 1}},
		{[]float64{20e9, 6.8e9, 6.8e9, 3.2e9}, 4096, []int{2227, 757, 756, 356}},
		{[]float64{3e9}, 5, []int{5}},
	} {
		got := counts(parse(t, Bandwidth).Place(nil, roomy(c.rates...), c.n), len(c.rates))
		ints := make([]int64, len(c.rates))
		for i, r := range c.rates {
			ints[i] = int64(r)
		}
		if exact := algorithm1(ints, c.n); !slices.Equal(exact, c.want) {
			t.Errorf("the reference for %v, %d blocks is %v, want %v", c.rates, c.n, exact, c.want)
		} else if !slices.Equal(got, exact) {
			t.Errorf("%v, %d blocks: %v, want %v", c.rates, c.n, got, exact)
		}
	}
}

func TestPropertyAlgorithm1(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rates := rapid.SliceOfN(rapid.Int64Range(1, 50e9), 1, 32).Draw(t, "rates")
		n := rapid.IntRange(len(rates), 1<<20).Draw(t, "blocks")
		floats := make([]float64, len(rates))
		for i, r := range rates {
			floats[i] = float64(r)
		}
		got := counts(parse(t, Bandwidth).Place(nil, roomy(floats...), n), len(rates))
		if want := algorithm1(rates, n); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
		for i := range rates {
			rates[i] = 1
		}
		got = counts(parse(t, Uniform).Place(nil, roomy(floats...), n), len(rates))
		if want := algorithm1(rates, n); !slices.Equal(got, want) {
			t.Fatalf("uniform: %v, want %v", got, want)
		}
	})
}

// drawRates are those of any devices, or of a few fast ones among many slow ones
// that are alike, where giving to who is most behind would not do.
func drawRates(t *rapid.T) []float64 {
	if rapid.Bool().Draw(t, "any") {
		return rapid.SliceOfN(rapid.Float64Range(1e6, 1e9), 1, 32).Draw(t, "rates")
	}
	rates := make([]float64, rapid.IntRange(2, 32).Draw(t, "devices"))
	fast := 1 + rapid.IntRange(0, len(rates)/4).Draw(t, "fast")
	for i := range rates {
		rates[i] = 1e6
		if i < fast {
			rates[i] *= float64(rapid.IntRange(2, 14).Draw(t, "times"))
		}
	}
	return rates
}

// Many small runs: at no time is a device a whole block away from its share of
// all blocks so far, however small the share.
func TestPropertySmallRunsStarveNobody(t *testing.T) {
	for _, name := range []string{Bandwidth, Uniform} {
		rapid.Check(t, func(t *rapid.T) {
			rates := drawRates(t)
			lengths := rapid.SliceOfN(rapid.IntRange(1, 3), 1, 8).Draw(t, "lengths")
			devices := roomy(rates...)
			p := parse(t, name)
			shares := p.Shares(nil, devices)
			got := make([]int, len(rates))
			var parts []Part
			total := 0
			for range 60 {
				for _, n := range lengths {
					parts = p.Place(parts[:0], devices, n)
					total += n
					for _, q := range parts {
						got[q.Device] += q.Count
					}
				}
				for i := range got {
					if away := float64(got[i]) - shares[i]*float64(total); math.Abs(away) >= 1+1e-6 {
						t.Fatalf("%s: device %d of share %v is %v blocks away after %d", name, i, shares[i], away, total)
					}
				}
			}
		})
	}
}

// Serving whoever is most behind would leave some of these 1.36 blocks behind.
func TestSoonestBehindIsServedFirst(t *testing.T) {
	rates := []float64{14, 14, 14, 14}
	for range 21 {
		rates = append(rates, 1)
	}
	devices := roomy(rates...)
	p := parse(t, Bandwidth)
	shares := p.Shares(nil, devices)
	got := make([]int, len(rates))
	for total := 1; total <= 154; total++ {
		got[p.Place(nil, devices, 1)[0].Device]++
		for i := range got {
			if away := float64(got[i]) - shares[i]*float64(total); math.Abs(away) >= 1+1e-6 {
				t.Fatalf("device %d is %v blocks away after %d", i, away, total)
			}
		}
	}
	// 77 blocks are a whole number for each, so nothing is carried.
	for i, n := range got {
		if n != 2*int(rates[i]) {
			t.Errorf("device %d got %d blocks, want %v", i, n, 2*rates[i])
		}
	}
}

// A run of fewer blocks than devices: Algorithm 1 would give both to the first.
func TestShortFirstRun(t *testing.T) {
	if got := counts(parse(t, Bandwidth).Place(nil, roomy(5, 3, 1, 1), 2), 4); !slices.Equal(got, []int{1, 1, 0, 0}) {
		t.Errorf("%v", got)
	}
}

// A long run by Algorithm 1 can leave many small devices behind at once: then
// they are served first, and soon nobody is a block behind.
func TestSmallRunsAfterALongOne(t *testing.T) {
	rates := []float64{10}
	for range 30 {
		rates = append(rates, 3)
	}
	devices := roomy(rates...)
	p := parse(t, Bandwidth)
	shares := p.Shares(nil, devices)
	total := 31
	got := counts(p.Place(nil, devices, total), len(rates))
	worst := 0.0
	for range 300 {
		total++
		got[p.Place(nil, devices, 1)[0].Device]++
		worst = 0
		for i := range got {
			worst = max(worst, math.Abs(float64(got[i])-shares[i]*float64(total)))
		}
		if worst >= 1.5 {
			t.Fatalf("%v blocks away after %d", worst, total)
		}
	}
	if worst >= 1+1e-6 {
		t.Errorf("%v blocks away at the end", worst)
	}
}

// Runs of all lengths, with rates that drift: the sum of the shares at each time
// is what a device gets, give or take two blocks.
func TestPropertySharesFollowDrift(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rates := rapid.SliceOfN(rapid.Float64Range(1e6, 1e9), 1, 16).Draw(t, "rates")
		devices := roomy(rates...)
		p := parse(t, Bandwidth)
		due, got := make([]float64, len(rates)), make([]int, len(rates))
		for range 200 {
			n := rapid.OneOf(rapid.IntRange(1, 3), rapid.IntRange(1, 500)).Draw(t, "blocks")
			for i, s := range p.Shares(nil, devices) {
				due[i] += s * float64(n)
			}
			for _, q := range p.Place(nil, devices, n) {
				got[q.Device] += q.Count
			}
			for i := range got {
				if away := float64(got[i]) - due[i]; math.Abs(away) >= 2 {
					t.Fatalf("device %d is %v blocks away from what it was due", i, away)
				}
			}
			i := rapid.IntRange(0, len(rates)-1).Draw(t, "who drifts")
			devices[i].Rate *= rapid.Float64Range(0.8, 1.25).Draw(t, "drift")
		}
	})
}

func TestUnknownRates(t *testing.T) {
	for _, c := range []struct {
		rates []float64
		want  []int
	}{
		{[]float64{0, 0, 0, 0}, []int{3, 3, 3, 3}},
		{[]float64{4, 2, 0}, []int{6, 3, 3}},
		{[]float64{4, math.NaN(), 2, math.Inf(1)}, []int{5, 3, 2, 2}},
		{[]float64{-5, 1e300, 0.5, 6}, []int{3, 3, 3, 3}},
	} {
		if got := counts(parse(t, Bandwidth).Place(nil, roomy(c.rates...), 12), len(c.rates)); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.rates, got, c.want)
		}
	}
	// A device that takes nothing does not say what slow is.
	devices := roomy(8, 0, 1)
	devices[2].State = Fenced
	if got := counts(parse(t, Bandwidth).Place(nil, devices, 10), 3); !slices.Equal(got, []int{5, 5, 0}) {
		t.Errorf("beside a fenced device: %v", got)
	}
}

func TestConditions(t *testing.T) {
	at := func(free, slots int) Device { return Device{Rate: 1e9, Free: free, Slots: slots} }
	in := func(s State) Device { d := at(plenty, plenty); d.State = s; return d }
	fenced := at(plenty, plenty)
	fenced.Fences = 1
	for _, c := range []struct {
		name    string
		devices []Device
		blocks  int
		want    []int
	}{
		{"slow", []Device{in(OK), in(Slow)}, 100, []int{80, 20}},
		{"fenced", []Device{in(OK), in(Fenced), in(OK)}, 100, []int{50, 0, 50}},
		{"draining", []Device{in(Draining), in(OK)}, 100, []int{0, 100}},
		{"a state that nobody knows", []Device{in(9), in(OK)}, 100, []int{0, 100}},
		{"all fenced", []Device{in(Fenced), in(Draining)}, 100, []int{0, 0}},
		{"only a slow one", []Device{in(Fenced), in(Slow)}, 100, []int{0, 100}},
		{"nearly full", []Device{at(800, 800), at(25, 800)}, 50, []int{40, 10}},
		{"an eighth free", []Device{at(800, 800), at(100, 800)}, 50, []int{25, 25}},
		{"both nearly full", []Device{at(60, 800), at(30, 800)}, 30, []int{20, 10}},
		{"size unknown", []Device{at(800, 0), at(30, 0)}, 50, []int{25, 25}},
		{"full", []Device{at(0, 800), at(800, 800)}, 50, []int{0, 50}},
		{"less than nothing free", []Device{at(-3, 800), at(800, 800)}, 50, []int{0, 50}},
		{"its share goes to the others", []Device{at(7, 7), at(800, 800), at(800, 800)}, 107, []int{7, 50, 50}},
		{"one after the other", []Device{at(5, 5), at(12, 12), at(800, 800)}, 60, []int{5, 12, 43}},
		{"no room for all", []Device{at(5, 5), at(12, 12)}, 60, []int{5, 12}},
		{"back after a fence", []Device{at(plenty, plenty), fenced}, 170, []int{160, 10}},
		{"no devices", nil, 60, nil},
		{"no blocks", []Device{in(OK)}, 0, []int{0}},
		{"fewer than no blocks", []Device{in(OK)}, -5, []int{0}},
	} {
		for _, name := range []string{Bandwidth, Uniform} { // equal rates: equal policies
			got := counts(parse(t, name).Place(nil, c.devices, c.blocks), len(c.devices))
			if !slices.Equal(got, c.want) {
				t.Errorf("%s, %s: %v, want %v", c.name, name, got, c.want)
			}
		}
	}
}

// Who is full leaves its share to the others in proportion to theirs.
func TestOverflowFollowsShares(t *testing.T) {
	devices := roomy(6, 3, 1)
	devices[0].Free, devices[0].Slots = 10, 10
	if got := counts(parse(t, Bandwidth).Place(nil, devices, 90), 3); !slices.Equal(got, []int{10, 60, 20}) {
		t.Errorf("%v", got)
	}
}

func TestComesBackSlowly(t *testing.T) {
	devices := roomy(1e9, 1e9)
	p := parse(t, Bandwidth)
	share := func() float64 { return p.Shares(nil, devices)[1] }
	if s := share(); s != 0.5 {
		t.Fatalf("share is %v", s)
	}
	for again := range 2 {
		devices[1].State = Fenced
		devices[1].Fences++
		if s := share(); s != 0 {
			t.Fatalf("share when fenced is %v", s)
		}
		devices[1].State = OK
		var seen []float64
		got := 0
		for range 2000 {
			if share() == 0.5 {
				break
			}
			if s := share(); !slices.Contains(seen, s) {
				if len(seen) > 0 && got%rampBlocks != 0 {
					t.Errorf("the share changes after %d blocks", got)
				}
				seen = append(seen, s)
			}
			got += counts(p.Place(nil, devices, 1), 2)[1]
		}
		want := []float64{1. / 17, 1. / 9, 1. / 5, 1. / 3}
		if !slices.Equal(seen, want) || got != rampSteps*rampBlocks {
			t.Errorf("time %d: shares %v and %d blocks on the way, want %v and %d", again, seen, got, want, rampSteps*rampBlocks)
		}
	}
}

func TestSingle(t *testing.T) {
	p := parse(t, Single)
	devices := roomy(1, 9, 9)
	if got := p.Place(nil, devices, 10); !slices.Equal(got, []Part{{0, 10}}) {
		t.Errorf("%v", got)
	}
	devices[0].Free = 4
	if got := p.Place(nil, devices, 10); !slices.Equal(got, []Part{{0, 4}, {1, 6}}) {
		t.Errorf("the first is full: %v", got)
	}
	devices[0].State = Fenced
	if got := p.Place(nil, devices, 10); !slices.Equal(got, []Part{{1, 10}}) {
		t.Errorf("the first is fenced: %v", got)
	}
	if got := p.Shares(nil, devices); !slices.Equal(got, []float64{0, 1, 0}) {
		t.Errorf("shares %v", got)
	}
}

func TestParsePolicy(t *testing.T) {
	for _, name := range names {
		if p := parse(t, name); p.Name() != name {
			t.Errorf("%q is called %q", name, p.Name())
		}
	}
	for _, name := range []string{"", "Bandwidth", "random"} {
		p, err := ParsePolicy(name)
		if p != nil || err == nil || !strings.Contains(err.Error(), `placement: "`+name+`": must be bandwidth, uniform or single`) {
			t.Errorf("%q: %v, %v", name, p, err)
		}
	}
}

func TestStateString(t *testing.T) {
	for s, want := range map[State]string{OK: "ok", Slow: "slow", Fenced: "fenced", Draining: "draining", 7: "state(7)"} {
		if s.String() != want {
			t.Errorf("%d is %q, want %q", s, s, want)
		}
	}
}

func TestFinish(t *testing.T) {
	const block = 1 << 20
	for _, c := range []struct {
		rates []float64
		parts []Part
		want  time.Duration
	}{
		{[]float64{block, 2 * block}, nil, 0},
		{[]float64{block, 2 * block}, []Part{{0, 2}, {1, 6}}, 3 * time.Second},
		{[]float64{block, 2 * block}, []Part{{0, 4}, {1, 6}}, 4 * time.Second},
		{[]float64{4 * block, 0}, []Part{{0, 4}, {1, 6}}, 1500 * time.Millisecond},
		{[]float64{0, 0}, []Part{{0, 4}, {1, 6}}, 0},
		{[]float64{1}, []Part{{0, plenty}}, 1 << 62},
	} {
		if got := Finish(c.parts, roomy(c.rates...), block); got != c.want {
			t.Errorf("%v at %v: %v, want %v", c.parts, c.rates, got, c.want)
		}
	}
	// A device that takes no more blocks is read all the same.
	devices := roomy(block, 2*block)
	devices[0].State = Draining
	if got := Finish([]Part{{0, 3}}, devices, block); got != 3*time.Second {
		t.Errorf("from a draining device: %v", got)
	}
}

// optimal is the least time in which the blocks can be had: each goes to where
// it would be done first, which is optimal for equal blocks.
func optimal(rates []float64, n int, bytes float64) float64 {
	got := make([]float64, len(rates))
	longest := 0.0
	for range n {
		best := 0
		for i := range rates {
			if (got[i]+1)/rates[i] < (got[best]+1)/rates[best] {
				best = i
			}
		}
		got[best]++
		longest = max(longest, got[best]*bytes/rates[best])
	}
	return longest
}

// Each device is done within one block's time on it of the best possible end,
// and uniform takes as much longer as the shares predict: its slowest device has
// 1/N of the bytes where it should have b_min / sum b.
func TestPropertyFinish(t *testing.T) {
	const block = 64 << 10
	rapid.Check(t, func(t *rapid.T) {
		rates := rapid.SliceOfN(rapid.Float64Range(0.1e9, 20e9), 1, 16).Draw(t, "rates")
		n := rapid.IntRange(len(rates), 4096).Draw(t, "blocks")
		devices := roomy(rates...)
		best := optimal(rates, n, block)
		aware := parse(t, Bandwidth).Place(nil, devices, n)
		for _, p := range aware {
			if end, one := float64(p.Count)*block/rates[p.Device], block/rates[p.Device]; end > best+one*(1+1e-9) {
				t.Fatalf("device %d is done after %v s, the best is %v and a block takes %v", p.Device, end, best, one)
			}
		}
		total, slow := 0.0, rates[0]
		for _, r := range rates {
			total, slow = total+r, min(slow, r)
		}
		one := block / slow
		ideal := float64(n) * block / total
		even := Finish(parse(t, Uniform).Place(nil, devices, n), devices, block).Seconds()
		predicted := total / (float64(len(rates)) * slow) // times the ideal
		if math.Abs(even-ideal*predicted) > one+1e-9 {
			t.Fatalf("uniform takes %v s, predicted are %v", even, ideal*predicted)
		}
		if got := Finish(aware, devices, block).Seconds(); got > even+one+1e-9 {
			t.Fatalf("bandwidth-aware takes %v s, uniform %v", got, even)
		}
	})
}
