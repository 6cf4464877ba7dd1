package master

import (
	"fmt"
	"time"
)

const (
	// maxDamaged blocks of a store within damageWindow that are not what was stored
	// there put it out of use: disks as they should be return none in years.
	maxDamaged   = 8
	damageWindow = 10 * time.Minute
	// maxReused bounds the blocks of a start that are believed to have lost their
	// places before a crash: a store's book is never far behind.
	maxReused = 1024
)

// corruptStored takes note of a block in a store that is not what was stored there.
// The place of one that was stored before a crash may have been used again: that is
// the way of things, and no fault of the device.
func (c *Cache) corruptStored(at lentBlock, l int) {
	s := at.pool.shelf
	if b := at.pool.blocks[at.id]; b != nil && b.doubtful && s.reused < maxReused {
		s.reused++
		if log, ok := c.cfg.Log.(interface{ Debug(string, ...any) }); ok {
			log.Debug("the place of a block in a store was used again before a crash: it is computed again", "store", at.pool.cfg.Name, "slot", at.id)
		}
		return
	}
	s.misses++
	if c.cfg.Log != nil {
		c.cfg.Log.Warn("a block in a store is not what was stored there: it is computed again", "store", at.pool.cfg.Name, "slot", at.id, "layer", l)
	}
	now := c.cfg.Now()
	s.damaged = append(s.damaged, now)
	for now-s.damaged[0] > damageWindow {
		s.damaged = s.damaged[1:]
	}
	if s.fenced == nil && len(s.damaged) >= maxDamaged {
		c.fence(at.pool, fmt.Errorf("device %s: %d blocks within %v were not what had been stored there", at.pool.cfg.Name, len(s.damaged), damageWindow))
	}
}
