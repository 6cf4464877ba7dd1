package recall

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kvlend/kvlend/internal/dialogue"
)

// Outcome says what an answer is.
type Outcome string

// The outcomes. All but Right are wrong.
const (
	Right   Outcome = "right"   // contains all that it must and nothing else that was told, or says of what was never told that it was not
	Refused Outcome = "refused" // says that it was not told, though it was
	Stale   Outcome = "stale"   // a value from before a correction
	Mixed   Outcome = "mixed"   // the value of another fact, with or without the right one, the right one of somebody else, or only some of several
	False   Outcome = "false"   // an answer to something that was never told
	Other   Outcome = "other"   // anything else
)

// refusals are words that say that something was not told. The first is the
// assistant's of package dialogue, the others are of models that were not
// trained on its dialogues.
var refusals = []string{
	"not told", "n't told", "never told", "not know", "n't know", "not mention", "n't mention", "never mention",
	"not say", "n't say", "no information", "not have that", "n't have that", "nothing",
}

// score judges an answer. told are all the facts of the dialogue.
func score(p *dialogue.Probe, told []dialogue.Fact, answer string) Outcome {
	refuses := slices.ContainsFunc(refusals, func(s string) bool { return strings.Contains(strings.ToLower(answer), s) })
	if p.Kind == dialogue.Unknown {
		switch {
		case refuses:
			return Right
		case strings.TrimSpace(answer) == "":
			return Other
		}
		return False
	}
	values := make([]string, len(told))
	for i, f := range told {
		values[i] = f.Value
	}
	has := func(v string) bool { return contains(without(answer, v, values), v) }
	lacks := func(v string) bool { return !has(v) }
	others := slices.DeleteFunc(slices.Clone(values), func(v string) bool { return slices.Contains(p.Values, v) || slices.Contains(p.Old, v) })
	other := p.Kind != dialogue.Count && slices.ContainsFunc(others, has)
	switch {
	case !slices.ContainsFunc(p.Values, lacks):
		if other || ofAnother(p, told, answer) {
			return Mixed
		}
		return Right
	case slices.ContainsFunc(p.Old, has):
		return Stale
	case other, p.Kind == dialogue.About && slices.ContainsFunc(p.Values, has):
		return Mixed
	case refuses:
		return Refused
	}
	return Other
}

// ofAnother reports whether an answer names somebody else whom the dialogue tells
// of, and not who was asked about, or counts what was told about anything else. One
// that names nobody is about who was asked.
func ofAnother(p *dialogue.Probe, told []dialogue.Fact, answer string) bool {
	lower := strings.ToLower(answer)
	if i := strings.LastIndex(lower, about); i >= 0 && p.Kind == dialogue.Count {
		subject := lower[i+len(about):]
		known := append([]string{p.Entity}, pronouns...)
		if p.Entity == "" {
			known = []string{"you", "your", "yourself"}
		}
		// "About 3 things" names nobody.
		return !strings.ContainsAny(subject[:min(1, len(subject))], "0123456789") &&
			!slices.ContainsFunc(known, func(who string) bool { return begins(subject, who) })
	}
	asked := []string{p.Entity}
	if p.Entity == "" {
		asked = []string{"you", "your"}
	}
	if slices.ContainsFunc(asked, func(who string) bool { return contains(answer, who) }) {
		return false
	}
	return slices.ContainsFunc(told, func(f dialogue.Fact) bool {
		names := func(v string) bool { return contains(v, f.Entity) }
		return f.Entity != "" && f.Entity != p.Entity && !slices.ContainsFunc(p.Values, names) && contains(answer, f.Entity)
	})
}

// about stands before who was asked about, in the answer to a count.
const about = "about "

// pronouns are who was asked about, without a name.
var pronouns = []string{"him", "her", "it", "them", "that", "this"}

// begins reports whether a text in small letters begins with a value, as words of
// their own.
func begins(text, value string) bool {
	rest, ok := strings.CutPrefix(text, strings.ToLower(value))
	after, _ := utf8.DecodeRuneInString(rest)
	return ok && !wordRune(after)
}

// exact reports whether an answer is the expected one to the letter.
func exact(p *dialogue.Probe, answer string) bool { return strings.TrimSpace(answer) == p.Answer }

// without is an answer without the other values that were told and hold a value
// as a part, as "dark red" holds "red".
func without(answer, value string, told []string) string {
	for _, t := range told {
		if len(t) > len(value) && contains(t, value) {
			answer = strings.ReplaceAll(answer, t, "")
		}
	}
	return answer
}

// contains reports whether text has a value as words of their own, in capitals
// or not.
func contains(text, value string) bool {
	text, value = strings.ToLower(text), strings.ToLower(value)
	for from := 0; ; {
		i := strings.Index(text[from:], value)
		if i < 0 {
			return false
		}
		begin, end := from+i, from+i+len(value)
		before, _ := utf8.DecodeLastRuneInString(text[:begin])
		after, _ := utf8.DecodeRuneInString(text[end:])
		if !wordRune(before) && !wordRune(after) {
			return true
		}
		from = begin + 1
	}
}

func wordRune(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
