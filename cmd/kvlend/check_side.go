package main

import (
	"slices"

	"github.com/kvlend/kvlend/coordinator"
	"github.com/kvlend/kvlend/coordinator/agent"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/internal/check"
	"github.com/kvlend/kvlend/master"
	"github.com/kvlend/kvlend/worker"
)

// checkMaster reports on a master: its cache, and per lender its cache's and
// its agent's view. The two are taken one after the other.
func checkMaster(r *wire.CheckReport, cache *master.Cache, askers []*asker) {
	check.Add(r, check.OneTable, cache.Check())
	for i, h := range cache.Holdings() {
		check.Add(r, check.Replica, h.Errs)
		hold := wire.Holding{Worker: h.Lender, Used: check.Fit(r, h.Units)}
		askers[i].agent.Inspect(func(m *coordinator.Borrower) {
			check.Add(r, check.Books, m.Check())
			hold.Version = m.Version()
			known, parting := m.Holdings()
			hold.Known, hold.Parting = check.Fit(r, known), check.Fit(r, parting)
		})
		r.Holds = append(r.Holds, hold)
	}
}

// checkWorker reports on a worker: its cache, its units, its unit table and
// its lender, all under the one lock that guards them, except for the cache's
// tables, which are looked at first.
func checkWorker(r *wire.CheckReport, cache *worker.Cache, units *elastic.Units, floor int64, lender *agent.Lender, owners []uint32) {
	check.Add(r, check.OneTable, cache.Check())
	lender.Inspect(func(m *coordinator.Lender) {
		check.Add(r, check.Books, units.Check())
		check.Add(r, check.Books, m.Check())
		check.Add(r, check.Floor, elastic.CheckTable(units.Table(), floor))
		r.Total, r.Local = units.Total(), units.Count(elastic.Local)
		for _, owner := range owners {
			r.Versions = append(r.Versions, wire.OwnerVersion{Owner: owner, Version: m.Version(owner)})
			for _, s := range [...]elastic.State{elastic.Lent, elastic.Reclaiming, elastic.Fenced} {
				g := wire.UnitGroup{Owner: owner, State: s.String()}
				for e := range units.UnitsOf(owner, s) {
					g.Units = append(g.Units, wire.UnitEpoch(e))
				}
				if len(g.Units) > 0 {
					slices.SortFunc(g.Units, func(a, b wire.UnitEpoch) int { return int(a.Unit) - int(b.Unit) })
					g.Units = check.Fit(r, g.Units)
					r.Away = append(r.Away, g)
				}
			}
		}
	})
}
