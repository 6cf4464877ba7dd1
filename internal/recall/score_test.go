package recall

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvlend/kvlend/internal/dialogue"
)

func TestScore(t *testing.T) {
	colour := &dialogue.Probe{Kind: dialogue.Recall, Entity: "Mira", Values: []string{"red"}, Answer: "Mira's favourite colour is red."}
	corrected := &dialogue.Probe{Kind: dialogue.Corrected, Values: []string{"dark blue"}, Old: []string{"pale pink"}}
	number := &dialogue.Probe{Kind: dialogue.Recall, Entity: "Mira", Values: []string{"412"}}
	unknown := &dialogue.Probe{Kind: dialogue.Unknown, Answer: "You have not told me Mira's age."}
	count := &dialogue.Probe{Kind: dialogue.Count, Entity: "Mira", Values: []string{"3"}}
	mineAll := &dialogue.Probe{Kind: dialogue.Count, Values: []string{"3"}}
	none := &dialogue.Probe{Kind: dialogue.Count, Entity: "Mira", Values: []string{"nothing"}}
	about := &dialogue.Probe{Kind: dialogue.About, Values: []string{"red", "412"}}
	cat := &dialogue.Probe{Kind: dialogue.Recall, Entity: "Mira", Values: []string{"Otto"}}
	mine := &dialogue.Probe{Kind: dialogue.Recall, Values: []string{"7"}}
	told := []dialogue.Fact{
		{Entity: "Mira", Value: "red"}, {Entity: "Tom", Value: "dark red"}, {Entity: "Mira", Value: "412"}, {Value: "7"},
		{Entity: "Mira", Value: "pale pink"}, {Entity: "Mira", Value: "dark blue"}, {Entity: "Otto", Value: "Bonn"}, {Entity: "Mira", Value: "Otto"},
	}
	for _, tc := range []struct {
		p      *dialogue.Probe
		answer string
		want   Outcome
	}{
		{colour, "Mira's favourite colour is red.", Right},
		{colour, "RED is what she likes", Right},
		{colour, "Mira's favourite colour is dark red.", Mixed},
		{colour, "Reddish, I hope.", Other},
		{colour, "It is dark red, or red.", Mixed},
		{colour, "It is red.", Right},
		{colour, "Tom's favourite colour is red.", Mixed},
		{colour, "Mira, a friend of Tom, likes red.", Right},
		{colour, "Tomas likes red.", Right}, // nobody was told of
		{cat, "Otto.", Right},
		{cat, "Tom's cat is called Otto.", Mixed},
		{mine, "Your lucky number is 7.", Right},
		{mine, "7", Right},
		{mine, "Mira's lucky number is 7.", Mixed},
		{mine, "It is 7 or 412.", Mixed},
		{colour, "You have not told me Mira's favourite colour.", Refused},
		{colour, "I don't know.", Refused},
		{colour, "", Other},
		{number, "Mira's lucky number is 412.", Right},
		{number, "Mira's lucky number is 4123.", Other},
		{number, "It is 7.", Mixed},
		{corrected, "It is dark blue.", Right},
		{corrected, "It is not pale pink: it is dark blue.", Right},
		{corrected, "It is pale pink.", Stale},
		{corrected, "It is dark red.", Mixed},
		{unknown, "You have not told me Mira's age.", Right},
		{unknown, "I do not know that.", Right},
		{unknown, "Mira is 31 years old.", False},
		{unknown, "I hope that the weather gets better.", False},
		{unknown, " ", Other},
		{count, "You have told me 3 things about Mira.", Right},
		{count, "You told me 3 things about her.", Right},
		{count, "3", Right},
		{count, "About 3 things.", Right},
		{count, "About 3 things about Otto.", Mixed},
		{count, "You have told me 3 things about you.", Mixed},
		{count, "You have told me 3 things about Mirabel.", Mixed},
		{mineAll, "You have told me 3 things about you.", Right},
		{mineAll, "You have told me 3 things about yourself.", Right},
		{mineAll, "You have told me 3 things about Otto.", Mixed},
		{count, "You have told me 7 things about Mira.", Other},
		{count, "You have told me nothing about Mira.", Refused},
		{none, "You have told me nothing about Mira.", Right},
		{about, "It is red. It is 412.", Right},
		{about, "It is red.", Mixed},
		{about, "It is red. It is 412. Tom's is dark red.", Mixed},
		{about, "You have told me nothing about Mira.", Refused},
	} {
		if got := score(tc.p, told, tc.answer); got != tc.want {
			t.Errorf("%s %v, answer %q: %s, want %s", tc.p.Kind, tc.p.Values, tc.answer, got, tc.want)
		}
	}
	if !exact(colour, colour.Answer+"\n") || exact(colour, "mira's favourite colour is red.") {
		t.Error("what is exact is not")
	}
}

// TestWilson has the values of R. G. Newcombe, "Two-sided confidence intervals
// for the single proportion", 1998, table I, method 3.
func TestWilson(t *testing.T) {
	for _, tc := range []struct {
		right, n  int
		low, high float64
	}{
		{81, 263, 0.2553, 0.3662},
		{15, 148, 0.0624, 0.1605},
		{0, 20, 0, 0.1611},
		{1, 29, 0.0061, 0.1718},
		{29, 29, 0.8830, 1},
		{0, 0, 0, 1},
	} {
		low, high := Wilson(tc.right, tc.n)
		if math.Abs(low-tc.low) > 5e-5 || math.Abs(high-tc.high) > 5e-5 {
			t.Errorf("%d of %d: %.4f to %.4f, want %.4f to %.4f", tc.right, tc.n, low, high, tc.low, tc.high)
		}
	}
}

func TestWilsonHoldsTheRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 1e6).Draw(t, "n")
		right := rapid.IntRange(0, n).Draw(t, "right")
		low, high := Wilson(right, n)
		if rate := float64(right) / float64(n); !(0 <= low && low <= rate && rate <= high && high <= 1) {
			t.Fatalf("%d of %d: %v to %v", right, n, low, high)
		}
		if l, h := Wilson(4*right, 4*n); h-l >= high-low {
			t.Fatalf("%d of %d: %v to %v, no wider than of four times as many", right, n, low, high)
		}
		if l, h := Wilson(n-right, n); math.Abs(1-h-low) > 1e-12 || math.Abs(1-l-high) > 1e-12 {
			t.Fatalf("%d of %d: %v to %v, and %v to %v of the others", right, n, low, high, l, h)
		}
	})
}

func TestBuckets(t *testing.T) {
	for v, want := range map[int]int{0: 256, 1: 256, 256: 256, 257: 512, 512: 512, 513: 1024, 1024: 1024, 8191: 8192, 8193: 16384, 32768: 32768} {
		if got := distanceBucket(v); got != want {
			t.Errorf("distance %d is in %d, want %d", v, got, want)
		}
	}
	for v, want := range map[int]int{1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 32: 32, 33: 64, 64: 64} {
		if got := factsBucket(v); got != want {
			t.Errorf("%d facts are in %d, want %d", v, got, want)
		}
	}
	for p, want := range map[float64]int{0: 0, 0.199: 0, 0.2: 1, 0.99: 4, 1: 4} {
		if got := (&Asked{Probe: dialogue.Probe{Position: p}}).part(); got != want {
			t.Errorf("position %v is in part %d, want %d", p, got, want)
		}
	}
}

// TestShades: rates that differ have colours that do, and text can be read.
func TestShades(t *testing.T) {
	seen := map[string]float64{}
	for i := range 21 {
		rate := float64(i) / 20
		fill, ink := shade(rate)
		if was, ok := seen[fill]; ok {
			t.Errorf("%v and %v are both %s", was, rate, fill)
		}
		seen[fill] = rate
		var r, g, b, x int
		if _, err := fmt.Sscanf(fill+ink, "#%02x%02x%02x#%02x", &r, &g, &b, &x); err != nil {
			t.Fatalf("%s on %s: %v", ink, fill, err)
		}
		if light := (299*r + 587*g + 114*b) / 1000; max(light-x, x-light) < 100 {
			t.Errorf("rate %v: %s on %s", rate, ink, fill)
		}
	}
}
