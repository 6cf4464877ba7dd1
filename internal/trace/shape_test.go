package trace

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// play makes the prompts of a session whose answers have the right length.
func play(c Content, s *Session) [][]int32 {
	var out [][]int32
	var prompt, answer []int32
	for k := range s.Turns {
		prompt = c.Prompt(&s.Turns[k], prompt, answer)
		answer = c.Stand(prompt, s.Turns[k].Output)
		out = append(out, prompt)
	}
	return out
}

// wellFormed checks what every trace that was read or shaped must be.
func wellFormed(t interface{ Errorf(string, ...any) }, tr *Trace) {
	last := time.Duration(0)
	var walk func(s *Session)
	walk = func(s *Session) {
		before := 0
		for k, p := range s.Prompts() {
			turn := &s.Turns[k]
			switch {
			case p < 1 || turn.Output < 1:
				t.Errorf("session %s turn %d: %d prompt tokens, %d to generate", s.ID, k, p, turn.Output)
			case turn.At < 0 || turn.Think < 0:
				t.Errorf("session %s turn %d: at %v, think %v", s.ID, k, turn.At, turn.Think)
			case turn.Keep > before || turn.Keep < KeepAll:
				t.Errorf("session %s turn %d keeps %d of %d tokens", s.ID, k, turn.Keep, before)
			}
			before = p
		}
		for i := range s.Subs {
			if a := s.Subs[i].After; a < -1 || a >= len(s.Turns) {
				t.Errorf("session %s: a sub-agent after turn %d of %d", s.ID, a, len(s.Turns))
			}
			walk(&s.Subs[i].Session)
		}
	}
	for i := range tr.Sessions {
		if s := &tr.Sessions[i]; s.Start < last {
			t.Errorf("session %s starts before the one before", s.ID)
		}
		last = tr.Sessions[i].Start
		walk(&tr.Sessions[i])
	}
}

// TestScalingKeepsSharing: prompts that share n tokens share n/f of them when
// lengths are divided by f, and prompts divide as the trace's lengths do.
func TestScalingKeepsSharing(t *testing.T) {
	traces := []*Trace{parse(t, string(sample(t, "mooncake.jsonl")), ""), parse(t, string(sample(t, "agentic.jsonl")), "")}
	// So many words that there is no chance equality.
	contents := []Content{{Seed: 1, Vocab: 1 << 30}, {Seed: 1, Text: counted(t, 1<<20)}}
	rapid.Check(t, func(t *rapid.T) {
		tr := rapid.SampledFrom(traces).Draw(t, "trace")
		f := rapid.Float64Range(1, 700).Draw(t, "divisor")
		small, _, err := (&Shape{Tokens: f}).Apply(tr)
		if err != nil {
			t.Fatal(err)
		}
		wellFormed(t, small)
		c := rapid.SampledFrom(contents).Draw(t, "content")
		i := rapid.IntRange(0, len(tr.Sessions)-1).Draw(t, "session")
		j := rapid.IntRange(0, i).Draw(t, "other session")
		big, lit := play(c, &tr.Sessions[i]), play(c, &small.Sessions[i])
		for k := range big {
			if want := max(1, int(float64(len(big[k]))/f)); len(lit[k]) != want {
				t.Fatalf("a prompt of %d tokens has %d when divided by %v, want %d", len(big[k]), len(lit[k]), f, want)
			}
		}
		compare := func(a, b, x, y []int32) {
			n := common(a, b)
			if got, want := common(x, y), min(int(float64(n)/f), len(x), len(y)); n < len(a) && n < len(b) && n > 0 && got != want && want > 0 {
				t.Fatalf("prompts that share %d tokens share %d when divided by %v, want %d", n, got, f, want)
			}
		}
		for k := 1; k < len(big); k++ {
			compare(big[k-1], big[k], lit[k-1], lit[k])
		}
		compare(big[0], play(c, &tr.Sessions[j])[0], lit[0], play(c, &small.Sessions[j])[0])
	})
}

func TestShape(t *testing.T) {
	tr := parse(t, string(sample(t, "agentic.jsonl")), "")
	out, cut, err := (&Shape{Time: 2, MaxContext: 21999, Tokens: 1, Rate: 10, Seed: 4}).Apply(tr)
	if err != nil {
		t.Fatal(err)
	}
	// The first session begins beyond the limit; the second has its last two
	// turns there, and a sub-agent that fits.
	if len(out.Sessions) != 1 || cut != (Cut{Sessions: 1, Turns: 4 + 2}) {
		t.Fatalf("%d sessions left, cut %+v", len(out.Sessions), cut)
	}
	s := out.Sessions[0]
	if len(s.Turns) != 2 || len(s.Subs) != 1 || s.Turns[1].Think != 145*time.Second/2 || s.Subs[0].At != 134227*time.Millisecond/2 {
		t.Errorf("session %+v", s)
	}
	if _, cut, err = (&Shape{MaxContext: 21999, Whole: true}).Apply(tr); err == nil || cut != (Cut{Sessions: 3, Turns: 12}) {
		t.Errorf("dropping whole sessions: %v, cut %+v", err, cut)
	}
	if tr.Size().Turns != 12 {
		t.Error("shaping changed the trace it was given")
	}
	for _, bad := range []Shape{{Tokens: 0.5}, {Tokens: math.NaN()}, {Time: -1}, {Time: math.Inf(1)}, {Rate: -1}, {MaxContext: 1}, {MaxContext: -5}, {Output: 0.1}} {
		if _, _, err := bad.Apply(tr); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%+v gives %v", bad, err)
		}
	}
}

func TestArrivals(t *testing.T) {
	syn := DefaultSynthetic()
	syn.Sessions = 4000
	tr, err := syn.Make()
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := (&Shape{Rate: 50, Seed: 9}).Apply(tr)
	if err != nil {
		t.Fatal(err)
	}
	wellFormed(t, out)
	// The last of a Poisson process's n arrivals is at n/rate, give or take
	// sqrt(n)/rate; five of those are never.
	if got, want, off := out.Sessions[3999].Start.Seconds(), 80.0, 5*math.Sqrt(4000)/50; math.Abs(got-want) > off {
		t.Errorf("the last of 4000 sessions at 50/s begins after %v s", got)
	}
}

func TestSynthetic(t *testing.T) {
	syn := DefaultSynthetic()
	syn.Sessions, syn.SystemShare = 3000, 0.5
	a, err := syn.Make()
	if err != nil {
		t.Fatal(err)
	}
	wellFormed(t, a)
	b, _ := syn.Make()
	if !cmp.Equal(a, b) {
		t.Error("equal descriptions make different conversations")
	}
	size := a.Size()
	if mean := float64(size.Turns) / 3000; mean < 3.7 || mean > 4.3 {
		t.Errorf("%v turns a conversation, want about 4", mean)
	}
	withSystem, longer := 0, 0
	var first []int
	for i := range a.Sessions {
		s := &a.Sessions[i]
		own := s.Turns[0].Append[len(s.Turns[0].Append)-1]
		first = append(first, own.Tokens)
		if len(s.Turns[0].Append) == 2 {
			withSystem++
		}
		if p := s.Prompts(); len(p) > 1 && p[1] > p[0]+s.Turns[0].Output {
			longer++
		} else if len(p) > 1 {
			t.Errorf("session %s: the second prompt does not hold the first, its answer and more", s.ID)
		}
	}
	slices.Sort(first)
	if m := first[1500]; m < 145 || m > 175 {
		t.Errorf("the median first message has %d tokens, want about 160", m)
	}
	if withSystem < 1350 || withSystem > 1650 || longer == 0 {
		t.Errorf("%d of 3000 conversations have the system prompt, want about half", withSystem)
	}
	c := Content{Vocab: 256}
	var system [][]int32
	for i := range a.Sessions {
		if s := &a.Sessions[i]; len(s.Turns[0].Append) == 2 {
			system = append(system, c.Prompt(&s.Turns[0], nil, nil))
		}
	}
	if got := common(system[0], system[1]); got < 64 || got > 72 {
		t.Errorf("two conversations share %d tokens, want the 64 of the system prompt", got)
	}
}

func TestSyntheticLengthsOfATrace(t *testing.T) {
	syn := DefaultSynthetic()
	syn.Turns, syn.System = 1, 0
	syn.Lengths = parse(t, "num_prefill_tokens,num_decode_tokens\n11,7\n13,5\n", "")
	tr, err := syn.Make()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[[2]int]int{}
	for i := range tr.Sessions {
		s := &tr.Sessions[i]
		seen[[2]int{s.Prompts()[0], s.Turns[0].Output}]++
	}
	if len(seen) != 2 || seen[[2]int{11, 7}] == 0 || seen[[2]int{13, 5}] == 0 {
		t.Errorf("lengths %v", seen)
	}
}

func TestSyntheticBadInput(t *testing.T) {
	for name, change := range map[string]func(*Synthetic){
		"number of sessions": func(s *Synthetic) { s.Sessions = 0 }, "rate": func(s *Synthetic) { s.Rate = math.NaN() },
		"turns": func(s *Synthetic) { s.Turns = 0.5 }, "think": func(s *Synthetic) { s.Think = -1 },
		"median": func(s *Synthetic) { s.Next = 0 }, "deviation": func(s *Synthetic) { s.Sigma = 5 },
		"system prompt": func(s *Synthetic) { s.System = -1 }, "share": func(s *Synthetic) { s.SystemShare = 1.1 },
	} {
		syn := DefaultSynthetic()
		change(&syn)
		if _, err := syn.Make(); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// fuzz checks that what is accepted can be played.
func fuzz(f *testing.F, format Format, name string) {
	f.Add(sample(f, name), 1.0)
	f.Add(sample(f, name), 37.5)
	f.Add(append(sample(f, name), '\n'), 37.5)
	text := counted(f, 100)
	f.Fuzz(func(t *testing.T, raw []byte, divisor float64) {
		tr, err := Read(bytes.NewReader(raw), "t", format, 50)
		if err != nil {
			return
		}
		wellFormed(t, tr)
		small, _, err := (&Shape{Tokens: divisor, Time: 3, MaxContext: 5000}).Apply(tr)
		if err != nil {
			return
		}
		wellFormed(t, small)
		c := Content{Vocab: 256}
		if len(raw)%2 == 0 {
			c.Text = text
		}
		for i := range small.Sessions[:min(3, len(small.Sessions))] {
			s := &small.Sessions[i]
			want := s.Prompts()
			for k, p := range play(c, s) {
				if len(p) != want[k] || len(p)+s.Turns[k].Output > 5000 {
					t.Errorf("turn %d has %d tokens, want %d, and %d to generate", k, len(p), want[k], s.Turns[k].Output)
				}
			}
		}
	})
}

func FuzzMooncake(f *testing.F) { fuzz(f, Mooncake, "mooncake.jsonl") }
func FuzzAgentic(f *testing.F)  { fuzz(f, Agentic, "agentic.jsonl") }
func FuzzAzure(f *testing.F)    { fuzz(f, Azure, "azure.csv") }
func FuzzShareGPT(f *testing.F) { fuzz(f, ShareGPT, "sharegpt.csv") }
func FuzzVidur(f *testing.F)    { fuzz(f, Vidur, "vidur.csv") }
