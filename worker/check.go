package worker

import (
	"fmt"

	"github.com/kvlend/kvlend/elastic"
)

// Check verifies that every block belongs to one sequence, and that the
// sequences' blocks are all that are in use. The units have checks of their
// own.
func (c *Cache) Check() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	owner := map[elastic.BlockID]uint64{}
	for id, blocks := range c.seqs {
		for _, b := range blocks {
			if other, taken := owner[b]; taken {
				errs = append(errs, fmt.Errorf("block %d is in the tables of sequences %d and %d", b, other, id))
			}
			if !c.space.Allocated(b) {
				errs = append(errs, fmt.Errorf("block %d of sequence %d is free", b, id))
			}
			owner[b] = id
		}
	}
	if used := c.space.UsedBlocks(); used != len(owner) {
		errs = append(errs, fmt.Errorf("%d blocks are in use, sequences have %d", used, len(owner)))
	}
	return errs
}
