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
	Right   Outcome = "right"   // contains all that it must, or says of what was never told that it was not
	Refused Outcome = "refused" // says that it was not told, though it was
	Stale   Outcome = "stale"   // a value from before a correction
	Mixed   Outcome = "mixed"   // the value of another fact, or only some of several
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

// score judges an answer. told are all the values that the dialogue tells.
func score(p *dialogue.Probe, told []string, answer string) Outcome {
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
	has := func(v string) bool { return contains(answer, v) }
	lacks := func(v string) bool { return !contains(without(answer, v, told), v) }
	switch {
	case !slices.ContainsFunc(p.Values, lacks):
		return Right
	case slices.ContainsFunc(p.Old, has):
		return Stale
	case p.Kind != dialogue.Count && slices.ContainsFunc(told, has):
		return Mixed
	case refuses:
		return Refused
	}
	return Other
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
