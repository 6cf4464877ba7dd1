package scheduler

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/kvlend/kvlend/prefix"
)

// toyPrefix is a toyCache that keeps full blocks for later sequences, and loses
// some of them at random.
type toyPrefix struct{ *toyCache }

func newToyPrefix(seed uint64, block, limit, total int) toyPrefix {
	c := newToyCache(seed, block, limit, total)
	c.keep = &toyKeep{blocks: map[string]int{}, names: map[int]string{}, text: map[int][]int32{}, hints: map[uint64]int{}}
	return toyPrefix{c}
}

// toyKeep knows blocks by the root and all tokens up to their end, written out.
// Methods on nil do nothing. The cache's mu guards it.
type toyKeep struct {
	blocks map[string]int
	names  map[int]string
	text   map[int][]int32 // the tokens of a block, as they were written
	forget float64         // share of Admits before which a kept block is lost
	hints  map[uint64]int  // calls of Expect by sequence
}

// blockName is the identity of the block that ends at the end of text.
func blockName(root prefix.Key, text []int32) string {
	b := binary.LittleEndian.AppendUint64(nil, root.Hi)
	b = binary.LittleEndian.AppendUint64(b, root.Lo)
	for _, t := range text {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	return string(b)
}

func (k *toyKeep) has(b int) bool { return k != nil && k.names[b] != "" }

func (k *toyKeep) drop(b int) {
	if k.has(b) {
		delete(k.blocks, k.names[b])
		delete(k.names, b)
	}
}

// idle lists kept blocks that no sequence uses.
func (k *toyKeep) idle(refs map[int]int) (out []int) {
	if k == nil {
		return nil
	}
	for b := range k.names {
		if refs[b] == 0 {
			out = append(out, b)
		}
	}
	slices.Sort(out)
	return out
}

func (c toyPrefix) Admit(a Admission) (cached int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.luck(c.faults.evict) {
		c.evictOne()
	}
	c.watch.asks(c.toyCache, a.ID)
	defer func() { c.watch.answered(c.toyCache, a.ID, a.Room, err) }()
	if c.held[a.ID] != nil || a.Room < len(a.Tokens) || a.Compute == nil || a.Compute(0, len(a.Tokens)) < 0 {
		c.broken("Admit(%+v)", a)
	}
	k := c.keep
	if idle := k.idle(c.refs); len(idle) > 0 && c.rng.Float64() < k.forget {
		b := idle[c.rng.IntN(len(idle))]
		k.drop(b)
		c.zombies = append(c.zombies, b)
		c.bury()
	}
	var found []int
	for end := c.block; end < len(a.Tokens); end += c.block {
		b, ok := k.blocks[blockName(a.Root, a.Tokens[:end])]
		if !ok {
			break
		}
		found = append(found, b)
	}
	if k.forget > 0 && c.rng.IntN(4) == 0 { // computing is sometimes better
		found = found[:c.rng.IntN(len(found)+1)]
	}
	if err := c.reserve(a.ID, a.Room, found); err != nil {
		return 0, err
	}
	h := c.held[a.ID]
	h.written = len(found) * c.block
	h.admission = admission{a.Root, slices.Clone(a.Tokens), h.written}
	return h.written, nil
}

func (c toyPrefix) Expect(a Admission) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[a.ID] != nil || len(a.Tokens) == 0 || a.Room < len(a.Tokens) || a.Compute != nil {
		c.broken("Expect(%+v)", a)
	}
	c.keep.hints[a.ID]++
}

func (c toyPrefix) Receipt(id uint64) Receipt {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.held[id]; h != nil {
		return Receipt{Local: h.cached}
	}
	return Receipt{}
}

// check compares a step with what its sequence was admitted with and with what
// its blocks hold.
func (k *toyKeep) check(c *toyCache, s StepSeq, h *toyHeld) {
	if k == nil {
		return
	}
	end := s.Start + s.New
	if known := min(end, len(h.text)); s.Start < known && !slices.Equal(s.Tokens[:known-s.Start], h.text[s.Start:known]) {
		c.broken("sequence %d runs %v at %d, was admitted with %v", s.ID, s.Tokens, s.Start, h.text)
	}
	for i := 0; i < s.Start; i += c.block {
		part := h.text[i:min(i+c.block, s.Start)]
		if got := k.text[h.blocks[i/c.block]]; len(got) < len(part) || !slices.Equal(got[:len(part)], part) {
			c.broken("sequence %d starts at %d of %v, but position %d lies in a block with %v", s.ID, s.Start, h.text, i, got)
		}
	}
}

// written notes what a committed step has written, and keeps full blocks.
func (k *toyKeep) written(c *toyCache, p toyPart) {
	if k == nil {
		return
	}
	h := p.held
	for i, t := range p.Tokens {
		pos := p.Start + i
		b := h.blocks[pos/c.block]
		if pos >= len(h.text) {
			h.text = append(h.text, t)
		}
		if pos%c.block == 0 {
			k.text[b] = nil
		}
		k.text[b] = append(k.text[b][:pos%c.block], t)
		if (pos+1)%c.block != 0 {
			continue
		}
		if name := blockName(h.root, h.text[:pos+1]); k.blocks[name] == 0 && !k.has(b) {
			if _, ok := k.blocks[name]; !ok {
				k.blocks[name], k.names[b] = b, name
			}
		}
	}
}

// watcher compares the order in which a scheduler asks for memory with the
// documented one, computed naively. It runs on the scheduler's goroutine. A nil
// watcher watches nothing.
type watcher struct {
	s         *Scheduler
	overtaken map[uint64]int       // by requests from behind, since queued
	since     map[uint64]time.Time // first refusal at the front
	need      map[uint64]int       // blocks, after a refusal that was no fault
	bypassed  int
	most      int // largest value in overtaken
}

func watch(s *Scheduler, c *toyCache) *watcher {
	w := &watcher{s: s, overtaken: map[uint64]int{}, since: map[uint64]time.Time{}, need: map[uint64]int{}}
	c.watch = w
	return w
}

// order is the queue as it is documented.
func (w *watcher) order() (out []*seq) {
	for _, l := range w.s.queue.levels {
		out = append(out, l.resumed...)
		if l.chosen != nil {
			out = append(out, l.chosen)
		}
		for _, f := range l.flows {
			out = append(out, f.waiting...)
		}
	}
	class := func(q *seq) int {
		switch {
		case q.resumed:
			return 0
		case q.flow.level.chosen == q:
			return 1
		}
		return 2
	}
	slices.SortFunc(out, func(a, b *seq) int {
		if a.req.Priority != b.req.Priority {
			return a.req.Priority - b.req.Priority
		}
		if class(a) != class(b) {
			return class(a) - class(b)
		}
		if class(a) == 2 && a.flow.service != b.flow.service {
			if a.flow.service < b.flow.service {
				return -1
			}
			return 1
		}
		return int(a.id) - int(b.id)
	})
	return out
}

func (w *watcher) running(id uint64) bool { return w != nil && w.s.findRunning(id) != nil }

// asks is called before the cache answers a sequence that waits.
func (w *watcher) asks(c *toyCache, id uint64) {
	if w == nil {
		return
	}
	order := w.order()
	w.check(c, order)
	at := slices.IndexFunc(order, func(q *seq) bool { return q.id == id })
	if at < 0 {
		c.broken("request %d is asked for and not in the queue", id)
		return
	}
	if at == 0 {
		return
	}
	now := w.s.opt.Clock.Now()
	if len(w.s.running)+1 >= w.s.opt.MaxRunning {
		c.broken("request %d would take the last place", id)
	}
	first := order[0]
	if first.refusedGen != w.s.memGen {
		c.broken("request %d is asked for before request %d", id, first.id)
	}
	if n, ok := w.need[first.id]; ok && len(c.changed) == 0 {
		used := c.used() - len(c.keep.idle(c.refs))
		if used+n <= c.limit {
			c.broken("request %d overtakes request %d, whose %d blocks are free (%d of %d used)", id, first.id, n, used, c.limit)
		}
	}
	for _, q := range order[:at] {
		since, stuck := w.since[q.id]
		if w.overtaken[q.id] >= w.s.opt.MaxBypass || stuck && now.Sub(since) >= w.s.opt.BypassTime {
			c.broken("request %d may not overtake request %d: overtaken %d times, stuck since %v, now %v", id, q.id, w.overtaken[q.id], since, now)
		}
	}
}

// answered is called with the cache's answer.
func (w *watcher) answered(c *toyCache, id uint64, tokens int, err error) {
	if w == nil {
		return
	}
	order := w.order()
	at := slices.IndexFunc(order, func(q *seq) bool { return q.id == id })
	if err != nil {
		if _, ok := w.since[id]; at == 0 && !ok {
			w.since[id] = w.s.opt.Clock.Now()
		}
		delete(w.need, id)
		if n := (tokens + c.block - 1) / c.block; c.used()+n-len(c.keep.idle(c.refs)) > c.limit {
			w.need[id] = n
		}
		return
	}
	if at > 0 {
		w.bypassed++
	}
	for _, q := range order[:max(at, 0)] {
		w.overtaken[q.id]++
		w.most = max(w.most, w.overtaken[q.id])
	}
	delete(w.overtaken, id)
	delete(w.since, id)
	delete(w.need, id)
}

// check looks at the scheduler's lists. order is the queue.
func (w *watcher) check(c *toyCache, order []*seq) {
	s := w.s
	if got := s.queue.ahead(nil, len(order)); !slices.Equal(got, order) || len(order) > 0 && s.queue.next() != order[0] || s.queue.n != len(order) {
		c.broken("the queue's order is not the documented one")
	}
	if !slices.IsSortedFunc(s.running, byRank) {
		c.broken("those that run are not in order")
	}
	overtaken := 0
	for _, q := range order {
		if q.overtaken != w.overtaken[q.id] {
			c.broken("request %d was overtaken %d times, want %d", q.id, q.overtaken, w.overtaken[q.id])
		}
		if q.overtaken > 0 {
			overtaken++
		}
	}
	if overtaken != s.overtaken {
		c.broken("%d requests were overtaken, want %d", s.overtaken, overtaken)
	}
	for _, q := range s.running {
		if q.guest && overtaken == 0 {
			c.broken("request %d is a guest of nobody", q.id)
		}
	}
	for _, l := range s.queue.levels {
		live := 0
		for _, f := range l.flows {
			live += f.live
			if f.live == 0 && f.service <= l.floor && len(l.flows) > maxIdleFlows {
				c.broken("tenant %q is remembered for nothing", f.tenant)
			}
			if len(f.waiting) > 0 && f.service < l.floor {
				c.broken("tenant %q waits below the floor", f.tenant)
			}
		}
		if live != l.live || live == 0 {
			c.broken("priority %d: %d live requests, want %d", l.priority, l.live, live)
		}
	}
}
