package plan

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/elastic"
)

// SweepSchema names the form of a SweepResult as JSON.
const SweepSchema = "kvlend.sweep/1"

// MaxCombinations bounds a sweep.
const MaxCombinations = 4096

// Axis is one setting that a sweep varies.
type Axis struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

// AxisNames lists what a sweep can vary.
func AxisNames() []string { return []string{"block", "policy", "waste", "share", "buffers"} }

// setter changes a configuration to one value of an axis.
type setter func(cfg *configs.Config)

// ParseAxis reads an axis as NAME=VALUE,VALUE,...:
//
//	block    tokens in a block, of all models; M/W: of masters and of workers
//	policy   unit policies
//	waste    max_waste of the policy padded, such as 2%
//	share    part of every worker's arena that may be lent; the floor is the rest
//	buffers  of the layer stream cache
func ParseAxis(text string) (Axis, error) {
	name, list, ok := strings.Cut(text, "=")
	if !ok || list == "" {
		return Axis{}, fmt.Errorf("sweep %q: want NAME=VALUE,VALUE,... with NAME one of %s", text, strings.Join(AxisNames(), ", "))
	}
	a := Axis{Name: name, Values: strings.Split(list, ",")}
	for i, v := range a.Values {
		v = strings.TrimSpace(v)
		a.Values[i] = v
		if _, err := a.setter(v); err != nil {
			return Axis{}, err
		}
		if slices.Contains(a.Values[:i], v) {
			return Axis{}, fmt.Errorf("sweep of %s: value %q appears twice", name, v)
		}
	}
	return a, nil
}

func (a Axis) setter(value string) (setter, error) {
	refuse := func(accepted string) (setter, error) {
		return nil, fmt.Errorf("sweep of %s: value %q, want %s", a.Name, value, accepted)
	}
	switch a.Name {
	case "block":
		master, worker, both := strings.Cut(value, "/")
		m, err1 := strconv.Atoi(master)
		w, err2 := m, error(nil)
		if both {
			w, err2 = strconv.Atoi(worker)
		}
		if err1 != nil || err2 != nil || !blockOK(m) || !blockOK(w) {
			return refuse("tokens from 16 to 1024, a multiple of 16, or two of them as MASTERS/WORKERS")
		}
		return func(cfg *configs.Config) { setBlocks(cfg, m, w) }, nil
	case "policy":
		if !slices.Contains(elastic.Policies(), elastic.Policy(value)) {
			return refuse(fmt.Sprintf("one of %q", elastic.Policies()))
		}
		return func(cfg *configs.Config) { cfg.Lending.Unit.Policy = elastic.Policy(value) }, nil
	case "waste", "share":
		var v configs.Percent
		if err := v.UnmarshalText([]byte(value)); err != nil || v > 100 || a.Name == "waste" && v >= 100 {
			return refuse("a share such as 5%, from 0% to 100% (waste: less)")
		}
		if a.Name == "waste" {
			return func(cfg *configs.Config) { cfg.Lending.Unit.MaxWaste = v }, nil
		}
		return func(cfg *configs.Config) { setShare(cfg, v) }, nil
	case "buffers":
		if value != "1" && value != "2" {
			return refuse("1 or 2")
		}
		return func(cfg *configs.Config) { setBuffers(cfg, int(value[0]-'0')) }, nil
	}
	return nil, fmt.Errorf("sweep of %q: want one of %s", a.Name, strings.Join(AxisNames(), ", "))
}

func blockOK(tokens int) bool { return tokens >= 16 && tokens <= 1024 && tokens%16 == 0 }

func setBlocks(cfg *configs.Config, masters, others int) {
	for i := range cfg.Models {
		cfg.Models[i].BlockTokens = others
		if cfg.Models[i].Role == configs.RoleMaster {
			cfg.Models[i].BlockTokens = masters
		}
	}
}

func setShare(cfg *configs.Config, lent configs.Percent) {
	for i := range cfg.Models {
		if m := &cfg.Models[i]; m.Role == configs.RoleWorker {
			m.Floor = m.Arena - configs.Bytes(float64(m.Arena)*lent.Fraction())
		}
	}
}

func setBuffers(cfg *configs.Config, n int) {
	for i := range cfg.Models {
		if cfg.Models[i].Role == configs.RoleMaster {
			cfg.Models[i].LSC.Buffers = n
		}
	}
}

// SweepResult is a configuration under all combinations of some settings, the
// last axis varying fastest.
type SweepResult struct {
	Schema  string     `json:"schema"`
	File    string     `json:"file,omitempty"`
	Axes    []Axis     `json:"axes"`
	Masters []string   `json:"masters"`
	Rows    []SweepRow `json:"rows"`
	// Best are the rows of the largest sum of the masters' contexts with the
	// fewest errors and warnings, as indices; none if nothing is possible.
	Best []int `json:"best"`
}

// SweepRow is one combination.
type SweepRow struct {
	Values   []string  `json:"values"`          // of the axes, in their order
	Contexts []int     `json:"max_tokens"`      // of the masters, in their order
	Ratios   []float64 `json:"ratios"`          // to each master's context without lending
	Unit     int64     `json:"unit_bytes"`      // the largest of the workers'
	Waste    float64   `json:"waste"`           // share of the workers' idle memory that cannot be used
	Errors   int       `json:"errors"`          // findings
	Warnings int       `json:"warnings"`        // findings
	Codes    []string  `json:"codes"`           // of these findings
	Error    string    `json:"error,omitempty"` // why the combination is impossible
}

// Sweep plans every combination of the axes. Its error is one of the axes; a
// combination that is impossible is a row.
func Sweep(cfg *configs.Config, axes []Axis, opt Options) (*SweepResult, error) {
	opt = opt.filled()
	total := 1
	for i, a := range axes {
		if slices.ContainsFunc(axes[:i], func(o Axis) bool { return o.Name == a.Name }) {
			return nil, fmt.Errorf("sweep of %s: given twice", a.Name)
		}
		if total *= len(a.Values); total > MaxCombinations {
			return nil, fmt.Errorf("sweep: more than %d combinations", MaxCombinations)
		}
	}
	r := &SweepResult{Schema: SweepSchema, File: opt.File, Axes: axes, Masters: []string{}, Rows: []SweepRow{}, Best: []int{}}
	for _, m := range cfg.Models {
		if m.Role == configs.RoleMaster {
			r.Masters = append(r.Masters, m.Name)
		}
	}
	if total == 0 || len(r.Masters) == 0 {
		return nil, errors.New("sweep: nothing to vary, or no model with role: master")
	}
	for n := range total {
		row, err := r.row(cfg, n, opt)
		if err != nil {
			return nil, err
		}
		r.Rows = append(r.Rows, row)
	}
	r.pickBest()
	return r, nil
}

// row plans combination n: its digits are the axes' values.
func (r *SweepResult) row(base *configs.Config, n int, opt Options) (SweepRow, error) {
	row := SweepRow{Values: make([]string, len(r.Axes)), Contexts: []int{}, Ratios: []float64{}, Codes: []string{}}
	cfg := clone(base)
	var sets []setter
	for i := len(r.Axes) - 1; i >= 0; i-- {
		a := r.Axes[i]
		row.Values[i] = a.Values[n%len(a.Values)]
		n /= len(a.Values)
		set, err := a.setter(row.Values[i])
		if err != nil {
			return row, err
		}
		sets = append(sets, set)
	}
	for _, set := range sets {
		set(cfg)
	}
	err := cfg.Check(opt.Find)
	var p *Plan
	if err == nil {
		p, err = New(cfg, opt)
	}
	if err != nil {
		row.Error = brief(err)
		return row, nil
	}
	row.fill(p, r.Masters)
	return row, nil
}

// brief is the first thing that is wrong, without its place in the file: a
// sweep's value is not written there.
func brief(err error) string {
	var list configs.Errors
	if !errors.As(err, &list) {
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	v := list[0]
	text := fmt.Sprintf("%s %s: %s", v.Path, v.Value, v.Problem)
	if len(list) > 1 {
		text += fmt.Sprintf(" (and %d more)", len(list)-1)
	}
	return text
}

func (row *SweepRow) fill(p *Plan, masters []string) {
	for _, name := range masters {
		m := p.Model(name)
		row.Contexts = append(row.Contexts, m.MaxTokens)
		row.Ratios = append(row.Ratios, m.Master.Ratio)
	}
	var lost, idle float64
	for _, m := range p.Models {
		if l := m.Lender; l != nil {
			row.Unit = max(row.Unit, l.Unit)
			idle += float64(l.Idle)
			lost += float64(l.Stuck) + float64(l.Idle-l.Stuck)*l.Waste
		}
	}
	if idle > 0 {
		row.Waste = lost / idle
	}
	row.Errors, row.Warnings = p.Count(Error), p.Count(Warning)
	for _, f := range p.Findings {
		if f.Severity != Note && !slices.Contains(row.Codes, f.Code) {
			row.Codes = append(row.Codes, f.Code)
		}
	}
}

// total is the sum of the masters' contexts.
func (row *SweepRow) total() int {
	n := 0
	for _, c := range row.Contexts {
		n += c
	}
	return n
}

func (r *SweepResult) pickBest() {
	better := func(a, b *SweepRow) int {
		switch {
		case a.Errors != b.Errors:
			return b.Errors - a.Errors
		case a.Warnings != b.Warnings:
			return b.Warnings - a.Warnings
		}
		return a.total() - b.total()
	}
	for i := range r.Rows {
		if r.Rows[i].Error != "" {
			continue
		}
		if len(r.Best) > 0 {
			if c := better(&r.Rows[i], &r.Rows[r.Best[0]]); c < 0 {
				continue
			} else if c > 0 {
				r.Best = r.Best[:0]
			}
		}
		r.Best = append(r.Best, i)
	}
}

// Possible reports whether any combination can work.
func (r *SweepResult) Possible() bool {
	return slices.ContainsFunc(r.Rows, func(row SweepRow) bool { return row.Error == "" && row.Errors == 0 })
}

// WriteJSON writes the sweep as indented JSON.
func (r *SweepResult) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// WriteText writes the sweep for a terminal. The best rows have a star.
func (r *SweepResult) WriteText(w io.Writer) error {
	header := table.Row{""}
	left := []int{0}
	for i, a := range r.Axes {
		header = append(header, a.Name)
		left = append(left, i+1)
	}
	for _, m := range r.Masters {
		header = append(header, m, "ratio")
	}
	header = append(header, "largest unit", "idle wasted", "errors, warnings")
	left = append(left, len(header)-1)
	t := grid(left, header...)
	for i, row := range r.Rows {
		mark := ""
		if slices.Contains(r.Best, i) {
			mark = "*"
		}
		cells := table.Row{mark}
		for _, v := range row.Values {
			cells = append(cells, v)
		}
		if row.Error != "" {
			for range 2*len(r.Masters) + 2 {
				cells = append(cells, "-")
			}
			t.AppendRow(append(cells, "impossible: "+row.Error))
			continue
		}
		for k := range r.Masters {
			cells = append(cells, row.Contexts[k], times(row.Ratios[k]))
		}
		t.AppendRow(append(cells, human(row.Unit), share(row.Waste), strings.Join(row.Codes, ", ")))
	}
	best := "* largest context among those with the fewest errors and warnings."
	if len(r.Best) == 0 {
		best = "No combination is possible."
	}
	_, err := fmt.Fprintf(w, "Longest context in tokens\n%s\n%s\n", t.Render(), best)
	return err
}
