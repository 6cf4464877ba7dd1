package sampling

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// stopReference cuts text at the first byte where a stop string ends.
func stopReference(text string, stops []string) (string, bool) {
	for end := 1; end <= len(text); end++ {
		longest := 0
		for _, s := range stops {
			if s != "" && strings.HasSuffix(text[:end], s) {
				longest = max(longest, len(s))
			}
		}
		if longest > 0 {
			return text[:end-longest], true
		}
	}
	return text, false
}

// pushAll feeds chunks and returns all that was emitted.
func pushAll(m *StopMatcher, chunks []string) (string, bool) {
	out := ""
	for _, c := range chunks {
		emit, stopped := m.Push(c)
		out += emit
		if stopped {
			return out, true
		}
	}
	return out + m.Flush(), false
}

func TestStopMatcher(t *testing.T) {
	for name, c := range map[string]struct {
		stops  []string
		chunks []string
		want   string
		found  bool
	}{
		"none":          {nil, []string{"a", "b"}, "ab", false},
		"empty stop":    {[]string{""}, []string{"ab"}, "ab", false},
		"whole":         {[]string{"\n\n"}, []string{"a\n\nb"}, "a", true},
		"across chunks": {[]string{"END"}, []string{"xE", "N", "Dy"}, "x", true},
		"false start":   {[]string{"END"}, []string{"xE", "N", "Ey"}, "xENEy", false},
		"overlap":       {[]string{"aab"}, []string{"aa", "ab"}, "a", true},
		"longest":       {[]string{"c", "abc"}, []string{"xabc"}, "x", true},
		"earliest end":  {[]string{"abcd", "bc"}, []string{"abcd"}, "a", true},
		"flush":         {[]string{"END"}, []string{"xEN"}, "xEN", false},
		"characters":    {[]string{"é"}, []string{"è", "ê", "é!"}, "èê", true},
	} {
		t.Run(name, func(t *testing.T) {
			got, found := pushAll(NewStopMatcher(c.stops), c.chunks)
			if got != c.want || found != c.found {
				t.Errorf("got %q, %v, want %q, %v", got, found, c.want, c.found)
			}
		})
	}
}

func TestStopMatcherHoldsBackNoMoreThanNeeded(t *testing.T) {
	m := NewStopMatcher([]string{"END", "\n"})
	for _, c := range [][2]string{{"ab", "ab"}, {"E", ""}, {"x", "Ex"}, {"EN", ""}, {"E", "EN"}, {"E", "E"}} {
		if got, _ := m.Push(c[0]); got != c[1] {
			t.Errorf("after %q: got %q, want %q", c[0], got, c[1])
		}
	}
	if got, stopped := m.Push("\nrest"); got != "E" || !stopped {
		t.Errorf("got %q, %v", got, stopped)
	}
	if got, stopped := m.Push("more"); got != "" || !stopped || m.Flush() != "" {
		t.Errorf("after the stop: got %q, %v", got, stopped)
	}
}

// The result does not depend on the chunks, and no chunk splits a character.
func TestStopMatcherProperties(t *testing.T) {
	letters := rapid.StringOfN(rapid.SampledFrom([]rune("abé日")), 0, -1, -1)
	rapid.Check(t, func(r *rapid.T) {
		chunks := rapid.SliceOf(letters).Draw(r, "chunks")
		stops := rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom([]rune("abé日")), 0, 4, -1), 0, 4).Draw(r, "stops")
		want, found := stopReference(strings.Join(chunks, ""), stops)
		m := NewStopMatcher(stops)
		out := ""
		for _, c := range chunks {
			emit, stopped := m.Push(c)
			if !utf8.ValidString(emit) {
				r.Fatalf("%q splits a character", emit)
			}
			out += emit
			if stopped != found && stopped {
				r.Fatalf("stopped after %q", out)
			}
		}
		if out += m.Flush(); out != want {
			r.Fatalf("got %q, want %q", out, want)
		}
	})
}
