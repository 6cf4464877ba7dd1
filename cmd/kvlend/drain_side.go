package main

import (
	"sync/atomic"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/agent"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/master"
	"github.com/kvlend/kvlend/worker"
)

// workerDrain keeps a worker that is drained from lending.
type workerDrain struct{ on atomic.Bool }

// spare is how many units may be lent: none while draining.
func (d *workerDrain) spare(lendable func(coordinator.Wish) int) func(coordinator.Wish) int {
	return func(w coordinator.Wish) int {
		if d.on.Load() {
			return 0
		}
		return lendable(w)
	}
}

// set starts or ends the drain: what is lent is asked back, in the way in which
// the worker's own requests do it. It returns how many units are away.
func (d *workerDrain) set(on bool, cache *worker.Cache, units *elastic.Units, lender *agent.Lender) (away int) {
	began := d.on.Swap(on) != on && on
	cache.Locked(func() bool {
		if away = units.Away(); began && away > 0 {
			lender.Need(away)
		}
		return false
	})
	return away
}

// drainMaster gives everything back that a master has borrowed, once its
// requests have ended. Nothing more is borrowed then, since nobody asks for
// memory; what was asked for before comes and goes back.
func drainMaster(cache *master.Cache, on, idle bool) (units int) {
	if on && idle {
		return cache.ReturnUnused()
	}
	for _, h := range cache.Holdings() {
		units += len(h.Units)
	}
	return units
}
