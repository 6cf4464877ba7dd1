package disk

import (
	"context"
	"fmt"
	"time"
)

// duel is one load, done by us and by fio in turn.
type duel struct {
	path   string
	load   load
	rounds int
	each   time.Duration
	alone  bool // without fio
	say    func(string)
	before func() error // each measurement; nil: nothing

	best         tuning // of fio
	ours, theirs []sample
}

// run fills in the samples, a pair for each round.
func (d *duel) run(ctx context.Context, us func(round int) (sample, error)) error {
	if !d.alone {
		d.say("looking for fio's best settings")
		if err := d.tune(ctx); err != nil {
			return err
		}
	}
	for round := range d.rounds {
		d.say(fmt.Sprintf("round %d of %d", round+1, d.rounds))
		for turn := range 2 {
			switch {
			case turn == round%2:
				m, err := d.prepared(func() (sample, error) { return us(round) })
				if err != nil {
					return err
				}
				d.ours = append(d.ours, m)
			case !d.alone:
				m, err := d.fio(ctx, d.each, d.best)
				if err != nil {
					return err
				}
				d.theirs = append(d.theirs, m)
			}
		}
	}
	return nil
}

func (d *duel) prepared(measure func() (sample, error)) (sample, error) {
	if d.before != nil {
		if err := d.before(); err != nil {
			return sample{}, err
		}
	}
	return measure()
}

func (d *duel) fio(ctx context.Context, each time.Duration, t tuning) (sample, error) {
	return d.prepared(func() (sample, error) { return runFio(ctx, d.path, d.load, each, t) })
}

// tune runs every setting of fio twice and takes the fastest on average.
func (d *duel) tune(ctx context.Context) error {
	list := tuningsAt(d.load.depth)
	if len(list) == 1 {
		d.best = list[0]
		return nil
	}
	got := make([]float64, len(list))
	for range 2 {
		for i, t := range list {
			m, err := d.fio(ctx, d.each/2, t)
			if err != nil {
				return err
			}
			got[i] += m.bytesPerSec
		}
	}
	best := 0
	for i := range got {
		if got[i] > got[best] {
			best = i
		}
	}
	d.best = list[best]
	return nil
}
