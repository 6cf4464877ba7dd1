package sampling

// StopMatcher finds stop strings in text that arrives in chunks. What it
// emits does not depend on how the text was cut: it stops at the first byte
// where a stop string ends (the longest, where several end together) and
// emits everything before that string. It serves one goroutine.
type StopMatcher struct {
	stops   []stopString
	held    []byte // text not emitted yet: it may begin a stop string
	stopped bool
}

// stopString is the Knuth-Morris-Pratt automaton of one stop string.
type stopString struct {
	text string
	fail []int // fail[n]: the longest proper border of text[:n]
	have int   // length of the longest prefix of text that ends the input
}

// NewStopMatcher returns a matcher for stops, which should be valid UTF-8;
// empty ones are ignored.
func NewStopMatcher(stops []string) *StopMatcher {
	m := new(StopMatcher)
	for _, s := range stops {
		if s != "" {
			m.stops = append(m.stops, stopString{text: s, fail: borders(s)})
		}
	}
	return m
}

func borders(s string) []int {
	fail := make([]int, len(s)+1)
	for i, n := 1, 0; i < len(s); i++ {
		for n > 0 && s[i] != s[n] {
			n = fail[n]
		}
		if s[i] == s[n] {
			n++
		}
		fail[i+1] = n
	}
	return fail
}

// step advances by one byte and reports whether the string ends here.
func (s *stopString) step(b byte) bool {
	if s.have == len(s.text) {
		s.have = s.fail[s.have]
	}
	for s.have > 0 && s.text[s.have] != b {
		s.have = s.fail[s.have]
	}
	if s.text[s.have] == b {
		s.have++
	}
	return s.have == len(s.text)
}

// Push adds text and returns what can be emitted now, and whether a stop
// string was found; after one, further text is ignored. Chunks of whole UTF-8
// sequences are emitted as whole sequences.
func (m *StopMatcher) Push(text string) (emit string, stopped bool) {
	if m.stopped {
		return "", true
	}
	if len(m.stops) == 0 {
		return text, false
	}
	for i := range len(text) {
		m.held = append(m.held, text[i])
		longest := 0
		for j := range m.stops {
			if m.stops[j].step(text[i]) {
				longest = max(longest, len(m.stops[j].text))
			}
		}
		if longest > 0 {
			m.stopped = true
			return m.release(longest), true
		}
	}
	keep := 0
	for j := range m.stops {
		keep = max(keep, m.stops[j].have)
	}
	return m.release(keep), false
}

// release emits all but the last keep held bytes.
func (m *StopMatcher) release(keep int) string {
	n := len(m.held) - keep
	emit := string(m.held[:n])
	m.held = m.held[:copy(m.held, m.held[n:])]
	return emit
}

// Flush returns the text still held back; call it when no more will come.
// After a stop string it returns "".
func (m *StopMatcher) Flush() string {
	if m.stopped {
		return ""
	}
	for j := range m.stops {
		m.stops[j].have = 0
	}
	return m.release(0)
}
