package stream

import (
	"sync"
	"sync/atomic"
	"time"
)

// caller runs functions on a goroutine of its own, one at a time.
type caller struct {
	todo chan func() error // nil: there was no Call yet
	end  sync.WaitGroup

	// over is set when the function has returned, after what is below it.
	over         atomic.Bool
	err          error
	began, ended time.Time
}

// run has f run; s is woken when it is over.
func (c *caller) run(s *Stream, f func() error) {
	if c.todo == nil {
		c.todo = make(chan func() error, 1)
		c.end.Go(func() {
			for f := range c.todo {
				c.began = time.Now()
				c.err = f()
				c.ended = time.Now()
				c.over.Store(true)
				s.wakeUp()
			}
		})
	}
	c.over.Store(false)
	c.todo <- f
}

// close ends the goroutine. No function runs.
func (c *caller) close() {
	if c.todo != nil {
		close(c.todo)
		c.end.Wait()
	}
}
