package configs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Violation is one thing that is wrong with a configuration.
type Violation struct {
	File     string // as given to Parse
	Line     int    // from 1; 0: not known
	Column   int    // from 1; 0: not known
	Path     string // such as models[1].arena
	Value    string // as written, shortened; empty where it says nothing
	Problem  string // what is wrong
	Accepted string // what would be accepted; empty where Problem says it
}

// String is one line: file:line:column: path: "value": problem; want ....
func (v Violation) String() string {
	var b strings.Builder
	if v.File != "" {
		b.WriteString(v.File + ":")
	}
	if v.Line > 0 {
		fmt.Fprintf(&b, "%d:%d:", v.Line, v.Column)
	}
	for _, part := range []string{v.Path, quoteShort(v.Value), v.Problem} {
		if part == "" {
			continue
		}
		if b.Len() > 0 {
			if !strings.HasSuffix(b.String(), ":") {
				b.WriteByte(':')
			}
			b.WriteByte(' ')
		}
		b.WriteString(part)
	}
	if v.Accepted != "" {
		b.WriteString("; want " + v.Accepted)
	}
	return b.String()
}

// maxShown bounds how much of a value a message repeats.
const maxShown = 64

func quoteShort(s string) string {
	if s == "" {
		return ""
	}
	if len(s) > maxShown {
		s = strings.ToValidUTF8(s[:maxShown], "") + "..."
	}
	return fmt.Sprintf("%q", s)
}

// Errors is everything that is wrong with a configuration, by line.
type Errors []Violation

// Error lists the violations, one per line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, v := range e {
		lines[i] = v.String()
	}
	return strings.Join(lines, "\n")
}

// sorted orders by place in the file and returns nil as a nil error.
func (e Errors) sorted() error {
	if len(e) == 0 {
		return nil
	}
	slices.SortStableFunc(e, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return e
}

// nearest returns the candidate that resembles s most, or "" when none does:
// at most a third of its letters may differ.
func nearest(s string, candidates []string) string {
	if len(s) > maxShown {
		return ""
	}
	best, bestDist := "", 0
	for _, c := range candidates {
		d := editDistance(strings.ToLower(s), c)
		if d <= max(len(c)/3, 1) && (best == "" || d < bestDist) {
			best, bestDist = c, d
		}
	}
	return best
}

// editDistance is the optimal string alignment distance: insertions,
// deletions, substitutions and swaps of neighbours cost 1 each.
func editDistance(a, b string) int {
	var before []int
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev = prev, row
	}
	return prev[len(b)]
}
