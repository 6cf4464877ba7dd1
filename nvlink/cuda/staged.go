//go:build cuda && cgo

package cuda

import (
	"errors"
	"fmt"
)

// staging is a stream's two pinned buffers for copies between devices of which
// neither reaches the other.
type staging struct {
	mem [2][]byte
	at  [2]uint64
}

func newStaging(ln *lane, size int64) (*staging, error) {
	g := &staging{}
	for i := range g.mem {
		var err error
		if g.mem[i], g.at[i], err = ln.drv.hostAlloc(ln.dev, size); err != nil {
			return nil, errors.Join(fmt.Errorf("staging buffers of %d bytes: %w", size, err), g.free(ln))
		}
	}
	return g, nil
}

func (g *staging) free(ln *lane) error {
	var errs []error
	for _, m := range g.mem {
		if m != nil {
			errs = append(errs, ln.drv.hostFree(ln.dev, m))
		}
	}
	return errors.Join(errs...)
}

// staged issues a part between two devices: p.from gathers into a buffer while
// p.to scatters from the other.
func (s *Stream) staged(p *part) error {
	s.fabric.notice(p.way)
	if s.staging == nil {
		var err error
		if s.staging, err = newStaging(s.home, s.fabric.cfg.Staging); err != nil {
			return err
		}
	}
	from, err := s.lane(p.from)
	if err != nil {
		return err
	}
	to, err := s.lane(p.to)
	if err != nil {
		return err
	}
	if err := errors.Join(s.after(from, s.home), s.after(to, s.home)); err != nil {
		return err
	}
	err = s.relay(p.runs, from, to)
	// Both: an error may have left one of them ahead of the other.
	return errors.Join(err, s.join(from), s.join(to))
}

// relay sends runs through the buffers, in turn. A buffer is filled again once
// it has been emptied.
func (s *Stream) relay(runs []run, from, to *lane) error {
	var emptied [2]uint64
	var in, out []run
	cut := cutter{runs: runs}
	for k := 0; ; k = 1 - k {
		in, out = cut.next(in[:0], out[:0], s.staging.at[k], uint64(s.fabric.cfg.Staging))
		if len(in) == 0 {
			return nil
		}
		if emptied[k] != 0 {
			if err := from.drv.streamWait(from.dev, from.stream, emptied[k]); err != nil {
				return err
			}
		}
		if err := from.copy(in); err != nil {
			return err
		}
		if err := s.after(to, from); err != nil {
			return err
		}
		if err := to.copy(out); err != nil {
			return err
		}
		var err error
		if emptied[k], err = to.mark(); err != nil {
			return err
		}
		s.pending.keep(to, emptied[k])
	}
}

// cutter cuts runs where a buffer is full.
type cutter struct {
	runs []run
	done uint64 // of runs[0]
}

// next appends the runs into, and out of, a buffer of size bytes at an address.
func (c *cutter) next(in, out []run, at, size uint64) (into, outOf []run) {
	var used uint64
	for len(c.runs) > 0 && used < size {
		r := c.runs[0]
		n := min(r.len-c.done, size-used)
		in = append(in, run{dst: at + used, src: r.src + c.done, len: n})
		out = append(out, run{dst: r.dst + c.done, src: at + used, len: n})
		used += n
		if c.done += n; c.done == r.len {
			c.runs, c.done = c.runs[1:], 0
		}
	}
	return in, out
}
