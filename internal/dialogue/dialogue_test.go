package dialogue

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the samples in testdata")

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// must ends the test unless ok.
func must(t failer, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(format, args...)
	}
}

func noError(t failer, err error) {
	t.Helper()
	must(t, err == nil, "%v", err)
}

// options draws options that Generate accepts.
func options(t *rapid.T) Options {
	o := Options{
		Tokens:  rapid.IntRange(MinTokens, 3000).Draw(t, "tokens"),
		HeldOut: rapid.Bool().Draw(t, "heldOut"),
		Kind:    rapid.SampledFrom(append(Kinds(), "")).Draw(t, "kind"),
	}
	if rapid.Bool().Draw(t, "given") {
		o.Facts = rapid.IntRange(1, o.mostFacts()).Draw(t, "facts")
	}
	if room := o.Tokens - finalTokens - 3*factTokens; room > 0 && (o.Kind == Recall || o.Kind == Corrected || o.Kind == "") && rapid.Bool().Draw(t, "far") {
		o.Distance = rapid.IntRange(1, room).Draw(t, "distance")
		o.Facts = min(o.Facts, 1)
	}
	return o
}

var malformed = regexp.MustCompile(`[\[\]{}|]|  |^[a-z]`)

func TestDialogueHoldsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := options(t)
		d, err := Generate(rapid.Uint64().Draw(t, "seed"), rapid.Uint64().Draw(t, "n"), o)
		noError(t, err)
		tokens := 0
		for i, m := range d.Messages {
			must(t, m.Role == []string{"user", "assistant"}[i%2], "message %d is the %s's", i, m.Role)
			must(t, !malformed.MatchString(m.Content), "message %d: %q", i, m.Content)
			tokens += Estimate(m.Text())
		}
		must(t, d.Tokens == tokens && tokens <= o.Tokens, "%d tokens, says %d, at most %d asked for", tokens, d.Tokens, o.Tokens)
		must(t, tokens > o.Tokens-finalTokens-factTokens-40, "%d tokens, %d asked for", tokens, o.Tokens)
		told := 0
		for _, f := range d.Facts {
			must(t, strings.Contains(strings.ToLower(d.Messages[f.Message].Content), strings.ToLower(f.Value)), "%+v is not in its message", f)
			must(t, reserved(f.Value) == o.HeldOut, "%q is of the other side", f.Value)
			if !f.Corrects {
				told++
			}
		}
		if o.Facts > 0 {
			must(t, told == o.Facts, "%d facts, %d asked for", told, o.Facts)
		}
		for _, q := range d.Questions {
			must(t, d.Messages[q.Message].Content == q.Answer, "%+v is answered %q", q, d.Messages[q.Message].Content)
			must(t, strings.Contains(strings.ToLower(q.Answer), strings.ToLower(q.Value)), "%+v", q)
		}
		if o.Kind == "" && o.Distance == 0 {
			return
		}
		last := d.Questions[len(d.Questions)-1]
		must(t, last.Message == len(d.Messages)-1, "the last message is %d, the last question %+v", len(d.Messages)-1, last)
		must(t, o.Kind == "" || last.Kind == o.Kind, "the last question is %+v, want %s", last, o.Kind)
		if o.Distance > 0 {
			off := last.Distance - o.Distance
			must(t, off >= -2*factTokens && off <= 2*factTokens, "distance %d, %d asked for", last.Distance, o.Distance)
			must(t, len(d.Questions) == 1, "%d questions", len(d.Questions))
		}
	})
}

// names are those of a dialogue's facts and questions.
func names(d *Dialogue) map[string]bool {
	known := map[string]bool{}
	for _, f := range d.Facts {
		known[f.Entity] = f.Entity != ""
	}
	for _, q := range d.Questions {
		known[q.Entity] = q.Entity != ""
	}
	return known
}

func TestAnswersFollowFromTheText(t *testing.T) {
	asked := map[Kind]int{}
	for n := range uint64(600) {
		d, err := Generate(11, n, Options{Tokens: MinTokens + int(n%12)*150, HeldOut: n%2 == 1})
		noError(t, err)
		known := names(d)
		r := &reader{told: map[string][]string{}, list: map[string][]string{}}
		questions := d.Questions
		for i := 0; i < len(d.Messages); i += 2 {
			content := d.Messages[i].Content
			if len(questions) == 0 || questions[0].Message != i+1 {
				r.tell(content, known)
				continue
			}
			q := questions[0]
			questions = questions[1:]
			kind, value := r.answer(content, known)
			asked[q.Kind]++
			at := fmt.Sprintf("dialogue %d, message %d: %s (facts read: %v)", n, i, content, r.told)
			must(t, kind == q.Kind, "%s: kind %s, want %s", at, kind, q.Kind)
			switch q.Kind {
			case Recall, Corrected:
				must(t, strings.EqualFold(q.Value, value), "%s: read %q, want %q", at, value, q.Value)
			case Count:
				must(t, value == q.Value, "%s: read %q, want %q", at, value, q.Value)
			case About:
				told := strings.Count(q.Answer, ".")
				if strings.Contains(q.Answer, "nothing") {
					told = 0
				}
				must(t, value == fmt.Sprint(told), "%s: read %s, want %q", at, value, q.Answer)
			case Unknown:
				must(t, strings.HasSuffix(q.Answer, " you have not told me."), "%s: %q", at, q.Answer)
			}
		}
		must(t, len(questions) == 0, "dialogue %d: no user asks %+v", n, questions)
	}
	for _, k := range Kinds() {
		must(t, asked[k] > 50, "only %d questions of kind %s", asked[k], k)
	}
}

func TestNothingHeldOutIsTrainedOn(t *testing.T) {
	var seen [2]map[string]bool // names and values
	var text [2]strings.Builder
	for side := range seen {
		seen[side] = map[string]bool{}
		for n := range uint64(400) {
			d, err := Generate(5, n, Options{Tokens: 1500, HeldOut: side == 1})
			noError(t, err)
			for _, f := range d.Facts {
				seen[side][f.Value] = true
			}
			for name, isName := range names(d) {
				if isName {
					seen[side][name] = true
				}
			}
			for _, m := range d.Messages {
				text[side].WriteString(m.Content + "\n")
			}
		}
	}
	must(t, len(seen[1]) > 500, "only %d words", len(seen[1]))
	for word := range seen[1] {
		must(t, !seen[0][word], "%q is on both sides", word)
	}
	sets := []*phrases{&tellFrames, &correctFrames, &askFrames, &countAsks, &aboutAsks}
	for _, a := range append(slices.Clone(personal), material...) {
		sets = append(sets, &a.tell, &a.ask)
	}
	for _, p := range sets {
		must(t, len(p.heldOut) > 0, "%q has nothing held out", p.train)
		for _, s := range p.heldOut {
			must(t, !slices.Contains(p.train, s), "%q is on both sides", s)
		}
	}
	// A held-out phrasing is a new order of words that training has seen.
	trained := map[string]bool{}
	word := regexp.MustCompile(`[A-Za-z]+`)
	for _, w := range word.FindAllString(strings.ToLower(text[0].String()), -1) {
		trained[w] = true
	}
	for _, p := range sets {
		for _, s := range p.heldOut {
			s = regexp.MustCompile(`\{\w+\}`).ReplaceAllString(s, " ")
			for _, w := range word.FindAllString(strings.ToLower(s), -1) {
				must(t, trained[w], "training has no %q, which %q needs", w, s)
			}
		}
	}
}

// TestCasual: what the user types carelessly, the assistant still says in its own
// words, and the values are those of the facts.
func TestCasual(t *testing.T) {
	var small, unended, american, odd, facts int
	listed := regexp.MustCompile(`(?i)^(` + strings.Join(colours, "|") + `)$`)
	for n := range uint64(200) {
		o := Options{Tokens: 800, Casual: true}
		d, err := Generate(3, n, o)
		noError(t, err)
		again, err := Generate(3, n, o)
		noError(t, err)
		must(t, slices.Equal(d.Messages, again.Messages), "dialogue %d differs the second time", n)
		for i, m := range d.Messages {
			if m.Role == "assistant" {
				must(t, !malformed.MatchString(m.Content) && strings.ContainsAny(m.Content[len(m.Content)-1:], ".?") && !strings.Contains(m.Content, "favorite"), "message %d: %q", i, m.Content)
				continue
			}
			if c := m.Content[0]; c >= 'a' && c <= 'z' {
				small++
			}
			if !strings.ContainsAny(m.Content[len(m.Content)-1:], ".?!") {
				unended++
			}
			if strings.Contains(m.Content, "favorite") {
				american++
			}
		}
		for _, f := range d.Facts {
			must(t, strings.Contains(strings.ToLower(d.Messages[f.Message+1].Content), strings.ToLower(f.Value)), "%+v is answered %q", f, d.Messages[f.Message+1].Content)
			if words := strings.Fields(f.Value); f.Attribute == "colour" {
				facts++
				if !listed.MatchString(words[len(words)-1]) {
					odd++
				}
			}
		}
	}
	must(t, small > 100 && unended > 100 && american > 10 && odd > facts/20 && odd < facts/2,
		"%d in small letters, %d unended, %d American; %d of %d colours are odd", small, unended, american, odd, facts)
}

func TestDialoguesDiffer(t *testing.T) {
	seen := map[[32]byte]bool{}
	const count = 2000
	for n := range uint64(count) {
		d, err := Generate(9, n, Options{Tokens: MinTokens})
		noError(t, err)
		data, err := json.Marshal(d.Messages)
		noError(t, err)
		seen[sha256.Sum256(data)] = true
	}
	must(t, len(seen) == count, "%d of %d differ", len(seen), count)
}

// TestSameToTheByte pins what a seed makes: a model's training is repeatable
// only while this holds.
func TestSameToTheByte(t *testing.T) {
	h := sha256.New()
	for n := range uint64(100) {
		d, err := Generate(7, n, Options{Tokens: 600, HeldOut: n%2 == 1})
		noError(t, err)
		noError(t, json.NewEncoder(h).Encode(d))
	}
	path := filepath.Join("testdata", "digest.txt")
	got := hex.EncodeToString(h.Sum(nil)) + "\n"
	if *update {
		noError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	noError(t, err)
	must(t, got == string(want), "go test -update writes the new digest, if the change is meant")
}

func TestSamples(t *testing.T) {
	for name, o := range map[string]Options{
		"training": {Tokens: 700},
		"heldout":  {Tokens: 700, HeldOut: true},
		"far":      {Tokens: 600, HeldOut: true, Kind: Corrected, Distance: 300, Facts: 3},
	} {
		d, err := Generate(1, 1, o)
		noError(t, err)
		var b strings.Builder
		for _, m := range d.Messages {
			fmt.Fprintf(&b, "%s: %s\n", m.Role, m.Content)
		}
		for _, q := range d.Questions {
			fmt.Fprintf(&b, "# %+v\n", q)
		}
		path := filepath.Join("testdata", name+".txt")
		if *update {
			noError(t, os.WriteFile(path, []byte(b.String()), 0o644))
		}
		want, err := os.ReadFile(path)
		noError(t, err)
		must(t, b.String() == string(want), "%s is now:\n%s", name, b.String())
	}
}

func TestBadOptionsAreNamed(t *testing.T) {
	for want, o := range map[string]Options{
		"tokens is 10, want at least":    {Tokens: 10},
		"and at most 1048576":            {Tokens: 1<<20 + 1},
		"facts is 100, want 0 to":        {Tokens: 1000, Facts: 100},
		`kind is "guess", want one of`:   {Tokens: 1000, Kind: "guess"},
		"distance is 990, want 0 to":     {Tokens: 1000, Distance: 990},
		"distance is 50 with kind count": {Tokens: 1000, Distance: 50, Kind: Count},
	} {
		_, err := Generate(1, 1, o)
		must(t, err != nil && strings.Contains(err.Error(), want), "%v, want %s", err, want)
	}
}
