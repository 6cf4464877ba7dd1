package check

import (
	"fmt"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
)

// row is a worker's book on one unit.
type row struct {
	owner uint32
	state string
	epoch uint64
}

// compared is a set of reports with the workers' books by unit.
type compared struct {
	reports []*wire.CheckReport
	books   map[string]map[uint32]row // by worker; away units only
	out     []wire.Finding
}

func (c *compared) add(invariant, format string, args ...any) {
	c.out = append(c.out, wire.Finding{Invariant: invariant, Text: fmt.Sprintf(format, args...)})
}

// Compare looks for contradictions between the reports of one round. Those
// that are only due to the time between the reports do not come again.
func Compare(reports []*wire.CheckReport) []wire.Finding {
	c := &compared{reports: reports, books: map[string]map[uint32]row{}}
	masters := map[uint32]*wire.CheckReport{}
	for _, r := range reports {
		if r.Total > 0 {
			c.openBook(r)
		}
		if len(r.Holds) > 0 {
			masters[r.Index] = r
		}
	}
	for _, r := range reports {
		for i := range r.Holds {
			c.holding(r, &r.Holds[i])
		}
	}
	c.oneWriter()
	for _, r := range reports {
		c.lost(r, masters)
		c.versions(r, masters)
	}
	return c.out
}

func (c *compared) openBook(r *wire.CheckReport) {
	book := map[uint32]row{}
	away := 0
	for _, g := range r.Away {
		for _, u := range g.Units {
			if old, dup := book[u.Unit]; dup {
				c.add(OneOwner, "%s: unit %d is of owner %d and of owner %d", r.Model, u.Unit, old.owner, g.Owner)
			}
			book[u.Unit] = row{g.Owner, g.State, u.Epoch}
			away++
		}
	}
	c.books[r.Model] = book
	if r.Local+away != r.Total {
		c.add(Sum, "%s: %d units at home and %d away are not %d", r.Model, r.Local, away, r.Total)
	}
}

// holding compares what a master uses with its worker's book.
func (c *compared) holding(m *wire.CheckReport, h *wire.Holding) {
	known := map[wire.UnitEpoch]bool{}
	for _, u := range h.Known {
		known[u] = true
	}
	used := map[wire.UnitEpoch]bool{}
	book, open := c.books[h.Worker]
	for _, u := range h.Used {
		used[u] = true
		if !known[u] {
			c.add(Books, "%s uses unit %d of %s at epoch %d, which was not granted or is given back", m.Model, u.Unit, h.Worker, u.Epoch)
		}
		if open {
			c.writer(m, h.Worker, u, book)
		}
	}
	for _, u := range h.Known {
		if !used[u] {
			c.add(Sum, "%s has unit %d of %s at epoch %d and does not use it", m.Model, u.Unit, h.Worker, u.Epoch)
		}
	}
}

// writer checks that a unit in use is its user's in the worker's book.
func (c *compared) writer(m *wire.CheckReport, worker string, u wire.UnitEpoch, book map[uint32]row) {
	r, away := book[u.Unit]
	switch {
	case !away:
		c.add(OneOwner, "%s uses unit %d of %s at epoch %d, which is at home", m.Model, u.Unit, worker, u.Epoch)
	case r.owner != m.Index:
		c.add(OneOwner, "%s uses unit %d of %s at epoch %d, which is %s of owner %d at epoch %d", m.Model, u.Unit, worker, u.Epoch, r.state, r.owner, r.epoch)
	case u.Epoch > r.epoch:
		c.add(Replica, "%s uses unit %d of %s at epoch %d, its owner is at epoch %d", m.Model, u.Unit, worker, u.Epoch, r.epoch)
	case u.Epoch < r.epoch && r.state != elastic.Fenced.String():
		c.add(OneOwner, "%s uses unit %d of %s at epoch %d, which is %s at epoch %d", m.Model, u.Unit, worker, u.Epoch, r.state, r.epoch)
	}
}

// oneWriter looks for units that two masters use.
func (c *compared) oneWriter() {
	type unit struct {
		worker string
		unit   uint32
	}
	user := map[unit]string{}
	for _, m := range c.reports {
		for _, h := range m.Holds {
			for _, u := range h.Used {
				k := unit{h.Worker, u.Unit}
				if other, taken := user[k]; taken {
					c.add(OneOwner, "unit %d of %s is used by %s and by %s", u.Unit, h.Worker, other, m.Model)
				}
				user[k] = m.Model
			}
		}
	}
}

// lost looks for units that are lent to a master that does not know of them.
// Fenced units are left out: they wait for the word of their last borrower, or
// for its end.
func (c *compared) lost(w *wire.CheckReport, masters map[uint32]*wire.CheckReport) {
	for _, g := range w.Away {
		m := masters[g.Owner]
		if m == nil || g.State == elastic.Fenced.String() {
			continue
		}
		known := map[wire.UnitEpoch]bool{}
		for _, h := range m.Holds {
			if h.Worker != w.Model {
				continue
			}
			for _, list := range [...][]wire.UnitEpoch{h.Known, h.Parting} {
				for _, u := range list {
					known[u] = true
				}
			}
		}
		for _, u := range g.Units {
			if !known[u] {
				c.add(Sum, "unit %d of %s at epoch %d is %s to %s, which does not know it", u.Unit, w.Model, u.Epoch, g.State, m.Model)
			}
		}
	}
}

// versions compares replicas with their owners.
func (c *compared) versions(w *wire.CheckReport, masters map[uint32]*wire.CheckReport) {
	for _, v := range w.Versions {
		m := masters[v.Owner]
		if m == nil {
			continue
		}
		for _, h := range m.Holds {
			if h.Worker == w.Model && h.Version > v.Version {
				c.add(Replica, "%s shows version %d of its units of %s, which is at version %d", m.Model, h.Version, w.Model, v.Version)
			}
		}
	}
}

// changedTotals finds workers whose number of units is not what it was.
func changedTotals(before, after []*wire.CheckReport) []wire.Finding {
	var c compared
	for i, r := range after {
		if r.Total != before[i].Total {
			c.add(Sum, "%s has %d units and had %d", r.Model, r.Total, before[i].Total)
		}
	}
	return c.out
}
