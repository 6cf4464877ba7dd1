package recall

import "fmt"

// Comparison of a run with an earlier one.
type Comparison struct {
	Same    int      `json:"same"`    // probes with equal answers
	Changed []Change `json:"changed"` // with different ones
	// Hashes is how many equal answers were computed from different logits.
	Hashes int `json:"hashes"`
	// Probes that only one of the two runs has asked.
	OnlyHere  int `json:"only_here"`
	OnlyThere int `json:"only_there"`
	// Partial: the earlier run was cut short, so some may be asked only here.
	Partial bool `json:"partial,omitempty"`
	// Before is the model of the earlier run.
	Before string `json:"before"`
}

// Change is a probe that is answered differently.
type Change struct {
	ID       string  `json:"id"`
	Question string  `json:"question"`
	Before   string  `json:"before"`
	Was      Outcome `json:"was"`
	Now      string  `json:"now"`
	Is       Outcome `json:"is"`
}

// Compare compares the answers of r with those of an earlier result. Probes are
// the same if all that was asked is, to the byte; it is an error if there are
// none.
func (r *Result) Compare(before *Result) (*Comparison, error) {
	if err := r.Options.Matches(&before.Options); err != nil {
		return nil, err
	}
	known := map[string]*Asked{}
	for i := range before.Probes {
		known[before.Probes[i].Digest] = &before.Probes[i]
	}
	c := &Comparison{Changed: []Change{}, Partial: before.Cut != "", Before: before.Model}
	for i := range r.Probes {
		now := &r.Probes[i]
		was := known[now.Digest]
		switch {
		case was == nil:
			c.OnlyHere++
		case was.Reply != now.Reply:
			c.Changed = append(c.Changed, Change{now.ID, now.Question, was.Reply, was.Outcome, now.Reply, now.Outcome})
		default:
			c.Same++
			if was.Hash != "" && now.Hash != "" && was.Hash != now.Hash {
				c.Hashes++
			}
		}
	}
	c.OnlyThere = len(known) - c.Same - len(c.Changed)
	if c.Same+len(c.Changed) == 0 {
		return nil, fmt.Errorf("recall: none of %d questions is among the %d of the yardstick: want the same tokenizer, or a longer run", len(r.Probes), len(before.Probes))
	}
	return c, nil
}

// Err says that answers have changed, or that some could not be compared.
func (c *Comparison) Err() error {
	compared := len(c.Changed) + c.Same
	switch {
	case len(c.Changed) > 0:
		return fmt.Errorf("recall: %d of %d answers are not those of the yardstick, which %s gave; %d questions are not among its", len(c.Changed), compared, c.Before, c.OnlyHere)
	case c.OnlyHere > 0 && !c.Partial:
		return fmt.Errorf("recall: %d of %d questions are not among those of the yardstick, so nothing is known of their answers: ask no others (flags that are not given are the yardstick's), or make a yardstick of all", c.OnlyHere, compared+c.OnlyHere)
	}
	return nil
}
