package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/planner/perf"
	"github.com/kvlend/kvlend/planner/sim"
)

// Beyond these a planner is warned.
const (
	fullShare    = 0.95 // of a GPU's time
	fullLink     = 0.90 // of a link's time
	growth       = 2    // of the unanswered requests, from the second to the last quarter
	someRequests = 4    // fewer unanswered ones are no queue
	declinedPart = 0.02 // of the prompts' tokens
	slowedPart   = 0.05 // of a worker's steps
	shortLife    = 5    // years of a disk
	fewAnswers   = 100  // a P99 is their slowest
)

// warnings are what a planner should know.
func (c *Comparison) warnings(r *Report) []Warning {
	out := []Warning{}
	all := func(kind, format string, args ...any) {
		out = append(out, Warning{Kind: kind, Text: fmt.Sprintf(format, args...)})
	}
	if t := &r.Trace; t.CutSessions+t.CutTurns > 0 {
		all(WarnCut, "not all of the trace fits into %d tokens: %d sessions were dropped and %d turns cut", t.MaxContext, t.CutSessions, t.CutTurns)
	}
	if names := c.guessed(); len(names) > 0 {
		all(WarnGuess, "nothing was measured of %s: efficiencies and overheads are a guess; ratios hold better than times", strings.Join(names, ", "))
	}
	for i := range r.Systems {
		s := &r.Systems[i]
		add := func(kind, format string, args ...any) {
			out = append(out, Warning{s.Name, kind, fmt.Sprintf(format, args...)})
		}
		for k := range s.Loads {
			c.warnLoad(&s.Loads[k], c.loads[k], add)
		}
		c.warnMachine(i, s, add)
		slow, _ := slowStores(c.systems[i], sim.NewHardware(c.opt.Systems[i].Config, c.opt.Machine))
		for _, text := range slow {
			add(WarnLink, "%s", text)
		}
	}
	return out
}

// guessed are the models for which there is no calibration.
func (c *Comparison) guessed() []string {
	var out []string
	guess := perf.DefaultCalibration()
	for i, sys := range c.systems {
		hw := sim.NewHardware(c.opt.Systems[i].Config, c.opt.Machine)
		for _, m := range sys.Models {
			if e, err := hw.Engine(m); err == nil && e.Calibration() == guess && !slices.Contains(out, m.Config.Name) {
				out = append(out, m.Config.Name)
			}
		}
	}
	return out
}

func (c *Comparison) warnLoad(l *Load, in sim.Load, add func(kind, format string, args ...any)) {
	for _, r := range l.Refused {
		add(WarnRefused, "%s refused %d requests (%s): %s", l.Model, r.Count, r.Code, r.Reason)
	}
	if n := len(in.Trace.Sessions); n > 0 {
		last := in.Trace.Sessions[n-1].Start
		if in.Length > 0 {
			last = min(last, in.Length)
		}
		before, after := l.Waiting.between(last/4, last/2), l.Waiting.between(last*3/4, last)
		if after > growth*before+someRequests {
			add(WarnOverload, "%s falls behind: %.0f requests are unanswered on average in the second quarter of the arrivals, %.0f in the last", l.Model, before, after)
		}
	}
	if l.Tiers.Declined > declinedPart {
		add(WarnDeclined, "%s computed %.1f %% of its prompts' tokens again although they were cached: loading them would have taken longer", l.Model, 100*l.Tiers.Declined)
	}
	if l.Slower > 0 {
		add(WarnSlower, "%s: %d answers were predicted to take longer with the cache than without", l.Model, l.Slower)
	}
	if l.Answered > 0 && l.Answered < fewAnswers {
		add(WarnFew, "%s answered %d requests: P99 is the slowest of them", l.Model, l.Answered)
	}
}

func (c *Comparison) warnMachine(i int, s *System, add func(kind, format string, args ...any)) {
	for _, d := range s.Devices {
		if d.Busy > fullShare {
			add(WarnBusy, "%s computes %.1f %% of the time: it has nothing to spare", d.Name, 100*d.Busy)
		}
	}
	for _, l := range s.Links {
		if l.Busy > fullLink {
			add(WarnLink, "the link from %s to %s is busy %.0f %% of the time", l.From, l.To, 100*l.Busy)
		}
	}
	for _, m := range s.Models {
		if p := part(m.Slowed, m.Busy); m.Role != configs.RoleMaster && p > slowedPart {
			add(WarnDisturbed, "others' transfers cost %s %.1f %% of the time of its steps", m.Name, 100*p)
		}
	}
	for _, d := range s.Disks {
		if d.Years > 0 && d.Years < shortLife {
			add(WarnWear, "%s is worn out after %s years of this", d.Name, three(d.Years))
		}
	}
	if s.Control.Fenced > 0 {
		add(WarnFenced, "%d units were taken back without consent: masters did not evacuate them within lending.reclaim_deadline (%s)",
			s.Control.Fenced, time.Duration(c.opt.Systems[i].Config.Lending.ReclaimDeadline))
	}
	lenders := 0
	for _, m := range c.systems[i].Models {
		lenders += len(m.Lenders)
	}
	if lenders > 0 && s.Lent.Most == 0 {
		add(WarnUnlent, "nothing was ever lent: the masters' own memory sufficed, or floors and units forbid it")
	}
}
