package worker

import (
	"fmt"
	"time"

	"github.com/kvlend/kvlend/scheduler"
)

type receipt = scheduler.Receipt

// Admit implements scheduler.PrefixCache. What was kept is in place already, so
// all that is found of it is used.
func (c *Cache) Admit(a scheduler.Admission) (cached int, err error) {
	if a.Room > c.MaxTokens() {
		return 0, scheduler.ErrNever
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seqs[a.ID] != nil {
		panic(fmt.Sprintf("BUG: sequence %d is admitted twice", a.ID))
	}
	c.cfg.Policy.Observe(c.cfg.Now(), a.Room)
	s := &sequence{chain: chain{known: true, root: a.Root}}
	c.matched = c.index.Match(a.Root, a.Tokens[:len(a.Tokens)-1], c.matched[:0])
	for _, n := range c.matched {
		c.use(n.Value)
		s.blocks = append(s.blocks, n.Value)
		s.chain.node = n
	}
	clear(c.matched)
	need := c.space.Geometry().Blocks(a.Room) - len(s.blocks)
	if err := c.room(need); err != nil {
		c.unuseAll(s.blocks)
		return 0, err
	}
	cached = len(s.blocks) * c.BlockTokens()
	s.receipt = account(a, cached)
	c.alloc(s, need)
	c.seqs[a.ID] = s
	c.stats.Reused += uint64(cached)
	return cached, nil
}

// account is the receipt for a prompt of which so many tokens were in place.
func account(a scheduler.Admission, cached int) receipt {
	r := receipt{Local: cached}
	if a.Compute != nil {
		r.PredictedMS = inMS(a.Compute(cached, len(a.Tokens)))
		r.RecomputeMS = inMS(a.Compute(0, len(a.Tokens)))
	}
	return r
}

func inMS(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Expect implements scheduler.PrefixCache: nothing is ever far away.
func (c *Cache) Expect(scheduler.Admission) {}

// Receipt implements scheduler.PrefixCache.
func (c *Cache) Receipt(id uint64) scheduler.Receipt {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.seqs[id]; s != nil {
		return s.receipt
	}
	return scheduler.Receipt{}
}

// room sees to it that need blocks are free. Cold blocks make way first, then
// borrowers give units back (Algorithm 1, ScaleUp), and where none are away, or
// do not come, younger blocks make way too. A refusal drops nothing.
func (c *Cache) room(need int) error {
	short := need - c.space.FreeBlocks()
	if short <= 0 {
		c.needy = 0
		return nil
	}
	c.chill()
	if over := short - c.idle.cold; over > 0 {
		if err := c.scaleUp(over, short > c.idle.len); err != nil {
			return err
		}
	}
	for c.space.FreeBlocks() < need {
		c.forget(c.idle.first)
	}
	c.needy, c.asked = 0, 0
	return nil
}

// scaleUp asks for the units that need more blocks take. It returns nil if
// kept blocks have to do instead; with must they cannot.
func (c *Cache) scaleUp(need int, must bool) error {
	now, u := c.cfg.Now(), c.cfg.Units
	units := min(u.Spec().UnitsFor(c.space.Geometry(), need), u.Away())
	overdue := c.asked > 0 && now >= c.asked+c.cfg.Hold
	switch {
	case must && units == 0:
		return scheduler.ErrWait
	case !must && (units == 0 || overdue):
		return nil
	}
	if c.asked == 0 {
		c.asked = now
	}
	c.needy = now + c.cfg.Hold
	c.cfg.Need(units)
	return scheduler.ErrComing
}
