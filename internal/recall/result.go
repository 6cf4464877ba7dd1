package recall

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/kvlend/kvlend/internal/dialogue"
)

// Result of a run.
type Result struct {
	Model   string  `json:"model"`   // the caller's to set
	Longest int     `json:"longest"` // the model's context in tokens, 0: not known
	Seconds float64 `json:"seconds"`
	Options Options `json:"options"`
	// Estimated: the tokens were estimated. The caller's to set.
	Estimated bool `json:"estimated_tokens,omitempty"`
	// Cut says why the run ended before all was asked; empty: it did not.
	Cut   string `json:"cut,omitempty"`
	Cells []Cell `json:"cells"`

	All Share `json:"all"`
	// Single are the questions about one fact, told or corrected.
	Single     Share       `json:"single_facts"`
	ByKind     []Group     `json:"by_kind"`
	ByLength   []Group     `json:"by_length"`   // single facts
	ByDistance []Group     `json:"by_distance"` // single facts
	ByFacts    []Group     `json:"by_facts"`    // single facts
	ByPosition []Group     `json:"by_position"` // single facts
	Grid       []GridShare `json:"grid"`        // single facts
	False      FalseShare  `json:"false_answers"`

	Underneath Underneath `json:"underneath"`
	// Comparison with an earlier run is the caller's to set.
	Comparison *Comparison `json:"comparison,omitempty"`
	Probes     []Asked     `json:"probes"`
}

// Share is how many probes were answered right, and the interval that the true
// rate lies in with a confidence of 95 %.
type Share struct {
	Asked    int             `json:"asked"`
	Right    int             `json:"right"`
	Exact    int             `json:"exact"`
	Rate     float64         `json:"rate"` // 0 if none was asked
	Low      float64         `json:"low"`
	High     float64         `json:"high"`
	Outcomes map[Outcome]int `json:"outcomes,omitempty"`
}

// FalseShare is how many questions about what was never told were answered all
// the same, and the interval that the true rate lies in with a confidence of 95 %.
type FalseShare struct {
	Asked int     `json:"asked"`
	False int     `json:"false"`
	Rate  float64 `json:"rate"` // 0 if none was asked
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Group is the share of probes with a property.
type Group struct {
	Name string `json:"name"`
	// UpTo is the largest value in the group, which begins above the group
	// before; 0 for kinds.
	UpTo float64 `json:"up_to,omitempty"`
	Share
}

// GridShare is the share of the probes of a distance and a number of facts,
// each from above half to the whole of it.
type GridShare struct {
	Distance int `json:"distance"`
	Facts    int `json:"facts"`
	Share
}

// Underneath is what a server tells of how it answered.
type Underneath struct {
	Requests     int   `json:"requests"`
	PromptTokens int64 `json:"prompt_tokens"`
	// Tokens of prompts whose KV was there, and where it was.
	Cached   int64 `json:"cached"`
	Local    int64 `json:"local"`
	Borrowed int64 `json:"borrowed"`
	Host     int64 `json:"host"`
	Pool     int64 `json:"pool"`
	// BorrowedBlocks is the most that one request held.
	BorrowedBlocks int `json:"borrowed_blocks"`
	// System is what the server's metrics tell, nil if there are none.
	System *System `json:"system,omitempty"`
}

// System is what the models' processes count, all of them together, during a run.
type System struct {
	UnitsLent int64 `json:"units_lent"` // most at once
	Granted   int64 `json:"units_granted"`
	Reclaimed int64 `json:"units_reclaimed"` // asked back
	Fenced    int64 `json:"units_fenced"`    // taken back without consent
	Loaded    int64 `json:"loaded"`          // bytes streamed from memory that is not the model's own
	Stored    int64 `json:"stored"`          // bytes written there
	Moved     int64 `json:"moved"`           // blocks moved out of the way
	Preempted int64 `json:"preempted"`       // requests
	Stale     int64 `json:"stale"`           // borrowed blocks that were gone when they were to be loaded
	Corrupt   int64 `json:"corrupt"`         // blocks that did not match their checksum
	// Restarts are processes that began to count anew: what they had counted since
	// they were last looked at is missing.
	Restarts int64 `json:"restarts,omitempty"`
}

// counters are what only grows while a process lives.
func (s *System) counters() []*int64 {
	return []*int64{&s.Granted, &s.Reclaimed, &s.Fenced, &s.Loaded, &s.Stored, &s.Moved, &s.Preempted, &s.Stale, &s.Corrupt}
}

// Add counts what a process has counted between two looks at it.
func (s *System) Add(before, now System) {
	began, counted := before.counters(), now.counters()
	for i := range counted {
		if *counted[i] < *began[i] {
			s.Restarts++
			before = System{}
			break
		}
	}
	for i, c := range s.counters() {
		*c += *counted[i] - *began[i]
	}
}

func (u *Underneath) add(r Reply) {
	u.Requests++
	u.PromptTokens += int64(r.Prompt)
	u.Cached += int64(r.Cached)
	u.Local += int64(r.Local)
	u.Borrowed += int64(r.Borrowed)
	u.Host += int64(r.Host)
	u.Pool += int64(r.Pool)
	u.BorrowedBlocks = max(u.BorrowedBlocks, r.BorrowedBlocks)
}

// z95 is the quantile of the normal distribution that leaves 2.5 % above it.
const z95 = 1.959963984540054

// Wilson is the score interval of a rate of which right out of n were seen, with
// a confidence of 95 % (E. B. Wilson, "Probable inference, the law of
// succession, and statistical inference", 1927). Without any it is 0 to 1.
func Wilson(right, n int) (low, high float64) {
	if n == 0 {
		return 0, 1
	}
	p, count := float64(right)/float64(n), float64(n)
	mid := p + z95*z95/(2*count)
	width := z95 * math.Sqrt(p*(1-p)/count+z95*z95/(4*count*count))
	scale := 1 + z95*z95/count
	low, high = (mid-width)/scale, (mid+width)/scale
	// Rounding must not exclude what was seen.
	return max(0, min(low, p)), min(1, max(high, p))
}

// shareOf counts the probes that fit.
func shareOf(probes []Asked, fits func(*Asked) bool) Share {
	s := Share{Outcomes: map[Outcome]int{}}
	for i := range probes {
		p := &probes[i]
		if !fits(p) {
			continue
		}
		s.Asked++
		s.Outcomes[p.Outcome]++
		if p.Outcome == Right {
			s.Right++
		}
		if p.Exact {
			s.Exact++
		}
	}
	return s.rated()
}

func (s Share) rated() Share {
	if s.Asked > 0 {
		s.Rate = float64(s.Right) / float64(s.Asked)
	}
	s.Low, s.High = Wilson(s.Right, s.Asked)
	return s
}

// isSingle reports whether a question is for one fact that was told.
func isSingle(k dialogue.Kind) bool { return k == dialogue.Recall || k == dialogue.Corrected }

func (a *Asked) single() bool { return isSingle(a.Kind) }

// leastDistance is the first bucket of distances; each has twice the one before.
const leastDistance = 256

// doubling is the smallest of least, 2*least, 4*least, ... that is at least v.
func doubling(v, least int) int {
	if v <= least {
		return least
	}
	return least << bits.Len(uint((v-1)/least))
}

func distanceBucket(v int) int { return doubling(v, leastDistance) }
func factsBucket(v int) int    { return doubling(v, 1) }

// positions is how many parts of a dialogue are told apart.
const positions = 5

func (a *Asked) part() int { return min(int(a.Position*positions), positions-1) }

// Why a run was cut short, and a cell of it has no probes.
const (
	timeOver       = "the time was over"
	wasInterrupted = "the run was interrupted"
	wasBroken      = "the run ended with an error"
)

// result sums up what was asked.
func (r *run) result(took time.Duration) *Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := &Result{
		Longest: r.opt.Longest, Seconds: took.Seconds(), Options: r.opt, Cut: r.cut, Cells: r.cells,
		Underneath: r.under, Probes: slices.Concat(r.asked...),
	}
	res.Options.Progress = nil // it is over
	for i := range res.Cells {
		if c := &res.Cells[i]; r.cut != "" && c.Asked == 0 && c.Missing == "" {
			c.Missing = r.cut
		}
	}
	res.sum()
	return res
}

// sum fills in the shares.
func (r *Result) sum() {
	all := func(*Asked) bool { return true }
	r.All, r.Single = shareOf(r.Probes, all), shareOf(r.Probes, (*Asked).single)
	for _, k := range r.Options.Kinds {
		s := shareOf(r.Probes, func(a *Asked) bool { return a.Kind == k })
		r.ByKind = append(r.ByKind, Group{Name: string(k), Share: s})
	}
	r.ByLength = r.groups(tokens, func(a *Asked) int { return a.Length })
	r.ByDistance = r.groups(tokens, func(a *Asked) int { return distanceBucket(a.Distance) })
	r.ByFacts = r.groups(func(v int) string { return fmt.Sprint(v) }, func(a *Asked) int { return factsBucket(a.Facts) })
	r.ByPosition = r.groups(func(v int) string {
		return fmt.Sprintf("%d-%d %%", v*100/positions, (v+1)*100/positions)
	}, (*Asked).part)
	for i := range r.ByPosition {
		r.ByPosition[i].UpTo = float64(int(r.ByPosition[i].UpTo)+1) / positions
	}
	r.Grid = r.grid()
	never := shareOf(r.Probes, func(a *Asked) bool { return a.Kind == dialogue.Unknown })
	rated := Share{Asked: never.Asked, Right: never.Outcomes[False]}.rated()
	r.False = FalseShare{rated.Asked, rated.Right, rated.Rate, rated.Low, rated.High}
}

// groups sums single facts up by a whole number, in rising order.
func (r *Result) groups(name func(int) string, of func(*Asked) int) []Group {
	out := []Group{}
	for _, v := range values(r.Probes, of) {
		s := shareOf(r.Probes, func(a *Asked) bool { return a.single() && of(a) == v })
		out = append(out, Group{Name: name(v), UpTo: float64(v), Share: s})
	}
	return out
}

// values are those of single facts, in rising order, each once.
func values(probes []Asked, of func(*Asked) int) []int {
	var out []int
	for i := range probes {
		if probes[i].single() {
			out = append(out, of(&probes[i]))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (r *Result) grid() []GridShare {
	out := []GridShare{}
	for _, d := range values(r.Probes, func(a *Asked) int { return distanceBucket(a.Distance) }) {
		for _, f := range values(r.Probes, func(a *Asked) int { return factsBucket(a.Facts) }) {
			s := shareOf(r.Probes, func(a *Asked) bool {
				return a.single() && distanceBucket(a.Distance) == d && factsBucket(a.Facts) == f
			})
			if s.Asked > 0 {
				out = append(out, GridShare{d, f, s})
			}
		}
	}
	return out
}

// Thresholds are what a result must keep to.
type Thresholds struct {
	Accuracy float64 // least share of right answers, of all that was asked
	False    float64 // largest share of false answers; 1: any
}

// Check compares the result with thresholds.
func (r *Result) Check(t Thresholds) error {
	switch {
	case r.All.Asked == 0:
		return fmt.Errorf("recall: nothing was asked")
	case r.All.Rate < t.Accuracy:
		return fmt.Errorf("recall: %s of the answers are right, at least %s are wanted", percent(r.All.Rate), percent(t.Accuracy))
	case r.False.Asked == 0 && t.False < 1:
		return fmt.Errorf("recall: nothing was asked that was never told: at most %s of such questions may have an answer", percent(t.False))
	case r.False.Rate > t.False:
		return fmt.Errorf("recall: %s of the questions about what was never told have an answer, at most %s are wanted", percent(r.False.Rate), percent(t.False))
	}
	return nil
}

// WriteJSON writes the result, with every probe.
func (r *Result) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(r)
}

// Read reads what WriteJSON wrote.
func Read(from io.Reader) (*Result, error) {
	r := new(Result)
	if err := json.NewDecoder(from).Decode(r); err != nil {
		return nil, fmt.Errorf("recall: no result of kvlend eval recall --json: %w", err)
	}
	if len(r.Options.Kinds) == 0 {
		return nil, fmt.Errorf("recall: no result of kvlend eval recall --json: it has no options")
	}
	return r, nil
}
