package dialogue

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// quietOptions draws options that Probes accepts.
func quietOptions(t *rapid.T) Options {
	o := Options{
		Tokens:  rapid.IntRange(MinTokens, 3000).Draw(t, "tokens"),
		HeldOut: rapid.Bool().Draw(t, "heldOut"),
		Kind:    rapid.SampledFrom([]Kind{"", Recall, Corrected}).Draw(t, "kind"),
	}
	if rapid.Bool().Draw(t, "given") {
		o.Facts = rapid.IntRange(1, o.mostFacts()).Draw(t, "facts")
	}
	return o
}

func TestProbesHoldTheirPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := quietOptions(t)
		seed, n := rapid.Uint64().Draw(t, "seed"), rapid.Uint64().Draw(t, "n")
		d, probes, err := Probes(seed, n, o)
		noError(t, err)
		again, same, err := Probes(seed, n, o)
		noError(t, err)
		must(t, reflect.DeepEqual(d, again) && reflect.DeepEqual(probes, same), "not the same twice")
		must(t, len(d.Questions) == 0, "%d questions in the dialogue", len(d.Questions))
		last := map[string]string{}
		corrections := 0
		for _, f := range d.Facts {
			last[f.Entity+"/"+f.Attribute] = f.Value
			if f.Corrects {
				corrections++
			}
		}
		must(t, o.Facts == 0 || len(last) == o.Facts, "%d facts, %d asked for", len(last), o.Facts)
		must(t, o.Kind != Recall || corrections == 0, "%d corrections", corrections)
		must(t, o.Kind != Corrected || corrections > 0, "nothing is corrected")
		asked := map[Kind]int{}
		for _, p := range probes {
			asked[p.Kind]++
			p.check(t, d, last)
			tokens := Estimate(Message{"user", p.Question}.Text()) + Estimate(Message{"assistant", p.Answer}.Text())
			must(t, d.Tokens+tokens <= o.Tokens, "%d and %d tokens, %d asked for", d.Tokens, tokens, o.Tokens)
		}
		must(t, asked[Recall]+asked[Corrected] == len(last), "%d facts, %v probes", len(last), asked)
		must(t, asked[Unknown] >= leastUnknown && asked[Count] > 1 && asked[About] > 0, "probes %v", asked)
	})
}

// check compares p with the facts that were told.
func (p *Probe) check(t failer, d *Dialogue, last map[string]string) {
	t.Helper()
	must(t, !malformed.MatchString(p.Question) && !malformed.MatchString(p.Answer), "%+v", p)
	key := p.Entity + "/" + p.Attribute
	value, told := last[key]
	switch p.Kind {
	case Recall, Corrected:
		must(t, told && slices.Equal(p.Values, []string{value}), "%+v, told %q", p, value)
		must(t, (len(p.Old) > 0) == (p.Kind == Corrected), "%+v", p)
	case Unknown:
		must(t, !told && len(p.Values) == 0 && p.Distance == 0, "%+v, told %q", p, value)
	}
	for _, v := range p.Values {
		must(t, strings.Contains(strings.ToLower(p.Answer), strings.ToLower(v)), "%+v", p)
	}
	if p.Position == 0 {
		must(t, p.Distance == 0 && (p.Kind == Unknown || p.Values[0] == nothing), "%+v is nowhere", p)
		return
	}
	// The distance is that of the exchange, to the token.
	for i := 0; i <= len(d.Messages); i += 2 {
		rest := 0
		for _, m := range d.Messages[i:] {
			rest += Estimate(m.Text())
		}
		if rest == p.Distance {
			must(t, p.Position > 0 && p.Position <= 1, "%+v is told before message %d", p, i)
			return
		}
	}
	t.Fatalf("no exchange ends %d tokens before the end: %+v", p.Distance, p)
}

// TestProbesAreAnsweredByReading: every answer follows from the text alone.
func TestProbesAreAnsweredByReading(t *testing.T) {
	right := 0
	for n := range uint64(60) {
		d, probes, err := Probes(3, n, Options{Tokens: 400 + 60*int(n), HeldOut: n%2 == 1})
		noError(t, err)
		known := names(d)
		for _, p := range probes {
			known[p.Entity] = p.Entity != ""
		}
		r := &reader{told: map[string][]string{}, list: map[string][]string{}}
		for i := 0; i < len(d.Messages); i += 2 {
			r.tell(d.Messages[i].Content, known)
		}
		for _, p := range probes {
			kind, value := r.answer(p.Question, known)
			must(t, kind == p.Kind, "dialogue %d: %s: kind %s, want %s", n, p.Question, kind, p.Kind)
			if kind == Recall || kind == Corrected || kind == Count {
				must(t, strings.EqualFold(value, p.Values[0]), "dialogue %d: %s: read %q, want %q", n, p.Question, value, p.Values)
				right++
			}
		}
	}
	must(t, right > 500, "only %d probes were answered", right)
}

func TestBadQuietOptionsAreNamed(t *testing.T) {
	for want, o := range map[string]Options{
		"tokens is 10, want at least":        {Tokens: 10},
		`kind is "about" with Quiet`:         {Tokens: 1000, Kind: About},
		"distance is 300 with Quiet, want 0": {Tokens: 1000, Distance: 300},
	} {
		_, _, err := Probes(1, 1, o)
		must(t, err != nil && strings.Contains(err.Error(), want), "%v, want %s", err, want)
	}
}
