package scheduler

import (
	"cmp"
	"slices"
)

const (
	// outputWeight is the service of a generated token in prompt tokens, as in
	// the paper on virtual token counters.
	outputWeight = 2
	// maxIdleFlows is how many tenants without a request the queue remembers
	// in one priority because they have had more than their share.
	maxIdleFlows = 1024
)

// queue holds the requests that wait. It offers memory by priority; within a
// priority to those that were admitted in their turn before and lost their KV,
// by arrival; then to the chosen request; then to the tenant with the least
// service, by arrival.
//
// Service is a virtual token counter (Sheng et al., "Fairness in Serving Large
// Language Models", OSDI 2024) per tenant and priority: prompt tokens to be
// computed are charged at the first admission, generated tokens when they are
// drawn, what is computed again never. A tenant whose first request comes into
// the queue is lifted to the least service of those that wait, so nobody saves
// up service for a burst. A tenant without requests is forgotten as soon as it
// has no more than a new one would start with.
//
// The chosen request was the first when the cache refused it. It stays first in
// its priority until it is admitted or ends, whatever the counters do
// meanwhile: the memory that it needs must be able to gather.
type queue struct {
	n      int
	levels []*level // by priority; those with requests that have not ended
}

// level is what the queue knows of one priority.
type level struct {
	priority int
	live     int // requests that have not ended
	resumed  []*seq
	chosen   *seq
	flows    map[string]*flow // by tenant
	backlog  []*flow          // those with waiting requests, in no order
	idle     int              // flows without a request that has not ended
	floor    uint64           // least service when memory was offered last; never falls
}

// flow is one tenant in one level.
type flow struct {
	level   *level
	tenant  string
	service uint64
	live    int
	waiting []*seq // by arrival
}

// join makes q, which is new, known and queues it.
func (u *queue) join(q *seq) {
	i, ok := slices.BinarySearchFunc(u.levels, q.req.Priority, func(l *level, p int) int { return cmp.Compare(l.priority, p) })
	if !ok {
		u.levels = slices.Insert(u.levels, i, &level{priority: q.req.Priority, flows: map[string]*flow{}})
	}
	l := u.levels[i]
	f := l.flows[q.req.Tenant]
	switch {
	case f == nil:
		f = &flow{level: l, tenant: q.req.Tenant}
		l.flows[f.tenant] = f
	case f.live == 0:
		l.idle--
	}
	f.live++
	l.live++
	q.flow = f
	u.push(q)
}

// leave forgets q, which has ended and is not queued.
func (u *queue) leave(q *seq) {
	f, l := q.flow, q.flow.level
	f.live--
	l.live--
	if l.live == 0 {
		u.levels = slices.DeleteFunc(u.levels, func(x *level) bool { return x == l })
		return
	}
	if f.live == 0 {
		l.idle++
		l.forget(f)
	}
}

// forget drops idle flows that mean nothing any more, and the one that means
// least if there are too many. Cheap unless there are many idle flows.
func (l *level) forget(f *flow) {
	if f.service <= l.floor {
		delete(l.flows, f.tenant)
		l.idle--
		return
	}
	if l.idle <= maxIdleFlows {
		return
	}
	least := f
	for _, g := range l.flows {
		switch {
		case g.live > 0:
		case g.service <= l.floor:
			delete(l.flows, g.tenant)
			l.idle--
		case g.service < least.service || g.service == least.service && g.tenant < least.tenant:
			least = g
		}
	}
	if l.idle > maxIdleFlows {
		delete(l.flows, least.tenant)
		l.idle--
	}
}

// push queues q at its place.
func (u *queue) push(q *seq) {
	u.n++
	l := q.flow.level
	if q.resumed {
		l.resumed = insert(l.resumed, q)
		return
	}
	f := q.flow
	if len(f.waiting) == 0 {
		f.service = max(f.service, l.least())
		l.backlog = append(l.backlog, f)
	}
	f.waiting = insert(f.waiting, q)
}

// remove takes q out of the queue.
func (u *queue) remove(q *seq) {
	u.n--
	l := q.flow.level
	switch {
	case q.resumed:
		l.resumed = remove(l.resumed, q)
	case l.chosen == q:
		l.chosen = nil
	default:
		q.flow.unqueue(q)
	}
}

func (f *flow) unqueue(q *seq) {
	f.waiting = remove(f.waiting, q)
	if len(f.waiting) == 0 {
		i := slices.Index(f.level.backlog, f)
		last := len(f.level.backlog) - 1
		f.level.backlog[i] = f.level.backlog[last]
		f.level.backlog = f.level.backlog[:last]
	}
}

// least is where a tenant starts: the least service of those that wait.
func (l *level) least() uint64 {
	if f := l.poorest(); f != nil {
		return max(l.floor, f.service)
	}
	return l.floor
}

// poorest is the waiting flow with the least service; of equal ones that whose
// request came first.
func (l *level) poorest() (best *flow) {
	for _, f := range l.backlog {
		if best == nil || byService(f.waiting[0], best.waiting[0]) < 0 {
			best = f
		}
	}
	return best
}

func byService(a, b *seq) int {
	return cmp.Or(cmp.Compare(a.flow.service, b.flow.service), cmp.Compare(a.id, b.id))
}

// next is the request that memory is offered to; nil if none waits.
func (u *queue) next() *seq {
	for _, l := range u.levels {
		if len(l.resumed) > 0 {
			return l.resumed[0]
		}
		if l.chosen != nil {
			return l.chosen
		}
		if f := l.poorest(); f != nil {
			return f.waiting[0]
		}
	}
	return nil
}

// choose keeps q, the next one, at its place whatever the counters do.
func (u *queue) choose(q *seq) {
	l := q.flow.level
	if q.resumed || l.chosen == q {
		return
	}
	l.floor = max(l.floor, q.flow.service)
	q.flow.unqueue(q)
	l.chosen = q
}

// offered notes that q is being admitted, in its turn.
func (u *queue) offered(q *seq) {
	if l := q.flow.level; !q.resumed && l.chosen != q {
		l.floor = max(l.floor, q.flow.service)
	}
}

// ahead appends to buf the first requests of the queue, at most n, in order of
// the offer as the counters are now.
func (u *queue) ahead(buf []*seq, n int) []*seq {
	for _, l := range u.levels {
		if len(buf) >= n {
			break
		}
		buf = append(buf, l.resumed[:min(len(l.resumed), n-len(buf))]...)
		if l.chosen != nil && len(buf) < n {
			buf = append(buf, l.chosen)
		}
		buf = l.merge(buf, n)
	}
	return buf
}

// merge appends the fresh requests of l that come first until buf holds n.
func (l *level) merge(buf []*seq, n int) []*seq {
	from := len(buf)
	for _, f := range l.backlog {
		for _, q := range f.waiting[:min(len(f.waiting), n-from)] {
			i, _ := slices.BinarySearchFunc(buf[from:], q, byService)
			if from+i == n {
				break // and so do all after it
			}
			buf = slices.Insert(buf, from+i, q)
			buf = buf[:min(len(buf), n)]
		}
	}
	return buf
}
