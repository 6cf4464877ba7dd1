package elastic

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestAlgorithm1(t *testing.T) {
	// N_i, B_i, MEU_i, MEU_m, length, then what ScaleUp and ScaleDown return.
	for _, c := range []struct {
		n, b, meuI, meuM, length int
		upI, upM, downI, downM   int
	}{
		{10, 16, 4, 3, 160, 0, 0, 0, 0}, // exactly fits
		{10, 16, 4, 3, 161, 4, 3, 0, 0}, // one token more: one unit
		{10, 16, 4, 3, 16 * 14, 4, 3, 0, 0},
		{10, 16, 4, 3, 16*14 + 1, 8, 6, 0, 0},
		{10, 16, 4, 3, 16 * 7, 0, 0, 0, 0}, // three spare blocks: no whole unit
		{10, 16, 4, 3, 16 * 6, 0, 0, 4, 3},
		{10, 16, 4, 3, 1, 0, 0, 8, 6},
		{10, 16, 4, 3, 0, 0, 0, 8, 6},
		{0, 16, 32, 9, 1, 32, 9, 0, 0},
		{64, 16, 32, 9, 0, 0, 0, 64, 18},
	} {
		if i, m := ScaleUp(c.n, c.b, c.meuI, c.meuM, c.length); i != c.upI || m != c.upM {
			t.Errorf("ScaleUp(%+v) = %d, %d", c, i, m)
		}
		if i, m := ScaleDown(c.n, c.b, c.meuI, c.meuM, c.length); i != c.downI || m != c.downM {
			t.Errorf("ScaleDown(%+v) = %d, %d", c, i, m)
		}
	}
}

func TestWindowMax(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := time.Duration(rapid.IntRange(1, 50).Draw(t, "window"))
		w := NewWindowMax(window)
		var all []sample
		now := time.Duration(0)
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 20).Draw(t, "dt"))
			if rapid.IntRange(0, 9).Draw(t, "observe") > 0 {
				s := sample{now, rapid.IntRange(0, 100).Draw(t, "tokens")}
				all = append(all, s)
				w.Observe(s.at, s.tokens)
			}
			want := 0
			for _, s := range all {
				if now-s.at < window {
					want = max(want, s.tokens)
				}
			}
			if got := w.Max(now); got != want {
				t.Fatalf("at %d: max %d, want %d", now, got, want)
			}
		}
		if len(w.deque) > 2*len(all)+64 {
			t.Fatalf("the deque keeps %d entries of %d", len(w.deque), len(all))
		}
	})
}

// allScaleOptions has one of each policy.
func allScaleOptions() []ScaleOptions {
	return []ScaleOptions{
		{Down: DownWindow, Window: time.Minute},
		{Down: DownQuantile, Window: time.Minute, Quantile: 0.9},
		{Down: DownHysteresis, Low: 0.3, High: 0.8},
		{Down: DownFloor},
	}
}

// TestScalePolicies is the behaviour suite that every policy passes.
func TestScalePolicies(t *testing.T) {
	for _, o := range allScaleOptions() {
		t.Run(string(o.Down), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { scaleSuite(t, o) })
			t.Run("idle gives everything", func(t *testing.T) {
				p := mustPolicy(t, o)
				s := ScaleState{Blocks: 64, BlockTokens: 16, MEU: 8, Pieces: 1}
				if n := p.Down(0, s); n != 8 {
					t.Errorf("an idle worker gives %d units, want 8", n)
				}
			})
		})
	}
}

func mustPolicy(t rapid.TB, o ScaleOptions) ScalePolicy {
	t.Helper()
	p, err := NewScalePolicy(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func scaleSuite(t *rapid.T, o ScaleOptions) {
	p, twin := mustPolicy(t, o), mustPolicy(t, o)
	now := time.Duration(0)
	for range rapid.IntRange(1, 30).Draw(t, "requests") {
		now += time.Duration(rapid.IntRange(0, 30).Draw(t, "seconds")) * time.Second
		tokens := rapid.IntRange(1, 4000).Draw(t, "tokens")
		p.Observe(now, tokens)
		twin.Observe(now, tokens)

		blocks := rapid.IntRange(0, 300).Draw(t, "blocks")
		s := ScaleState{
			Blocks: blocks, Used: rapid.IntRange(0, blocks).Draw(t, "used"), BlockTokens: 16,
			MEU: rapid.IntRange(1, 40).Draw(t, "meu"), Pieces: rapid.SampledFrom([]int{1, 4, 36}).Draw(t, "pieces"),
			Lent: rapid.IntRange(0, 50).Draw(t, "lent"),
		}
		up, down := p.Up(s, tokens), p.Down(now, s)
		if up != twin.Up(s, tokens) || down != twin.Down(now, s) {
			t.Fatal("the same history gave two answers")
		}
		if up < 0 || up > s.Lent || down < 0 {
			t.Fatalf("up %d of %d, down %d", up, s.Lent, down)
		}
		if (s.Blocks-s.Used)*s.Pieces-down*s.MEU < 0 {
			t.Fatalf("down %d would take blocks in use: %+v", down, s)
		}
		free := (s.Blocks-s.Used)*s.Pieces + up*s.MEU
		if need := ceilDiv(tokens, 16) * s.Pieces; up < s.Lent && free < need {
			t.Fatalf("up %d leaves %d of %d: %+v", up, free, need, s)
		} else if up > 0 && free-s.MEU >= need {
			t.Fatalf("up %d is more than needed: %+v", up, s)
		}
		if longer := p.Up(s, tokens+16); longer < up {
			t.Fatalf("a longer request takes fewer units: %d, %d", longer, up)
		}
		full := s
		full.Used = s.Blocks
		if n := p.Down(now, full); n != 0 {
			t.Fatalf("a full worker gives %d units", n)
		}
		if o.Down == DownWindow && s.Used == 0 {
			after := s
			after.Blocks -= (down*s.MEU + s.Pieces - 1) / s.Pieces
			if s.Pieces == 1 && p.Up(after, tokens) > p.Up(s, tokens) {
				t.Fatalf("what the window gave away is taken back for a request inside the window: %+v", s)
			}
		}
	}
}

func TestQuantileForgetsOutlier(t *testing.T) {
	p := mustPolicy(t, ScaleOptions{Down: DownQuantile, Window: time.Minute, Quantile: 0.9})
	w := mustPolicy(t, ScaleOptions{Down: DownWindow, Window: time.Minute})
	for i := range 10 {
		tokens := 16
		if i == 3 {
			tokens = 1600
		}
		p.Observe(time.Duration(i), tokens)
		w.Observe(time.Duration(i), tokens)
	}
	s := ScaleState{Blocks: 100, BlockTokens: 16, MEU: 1, Pieces: 1}
	if n := p.Down(10, s); n != 99 {
		t.Errorf("quantile gives %d units, want 99", n)
	}
	if n := w.Down(10, s); n != 0 {
		t.Errorf("window gives %d units, want 0", n)
	}
	if n := w.Down(time.Minute+3, s); n != 99 {
		t.Errorf("window gives %d units once the outlier is old, want 99", n)
	}
	if n := p.Down(2*time.Minute, s); n != 100 {
		t.Errorf("quantile gives %d units after a quiet window, want 100", n)
	}
}

func TestHysteresisMarks(t *testing.T) {
	p := mustPolicy(t, ScaleOptions{Down: DownHysteresis, Low: 0.3, High: 0.8})
	s := ScaleState{Blocks: 100, BlockTokens: 16, MEU: 1, Pieces: 1, Used: 31}
	if n := p.Down(0, s); n != 0 {
		t.Errorf("above the low mark: %d", n)
	}
	s.Used = 24
	if n := p.Down(0, s); n != 70 { // 24 of 30 is 80 %
		t.Errorf("below the low mark: %d, want 70", n)
	}
}

func TestScaleOptionRefusals(t *testing.T) {
	for _, o := range []ScaleOptions{
		{}, {Down: "best"}, {Down: DownWindow}, {Down: DownWindow, Window: -1},
		{Down: DownQuantile, Window: 1}, {Down: DownQuantile, Window: 1, Quantile: 1.1},
		{Down: DownHysteresis, Low: 0.5, High: 0.5}, {Down: DownHysteresis, Low: -1, High: 0.5},
	} {
		if _, err := NewScalePolicy(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}
