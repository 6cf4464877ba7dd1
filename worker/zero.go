package worker

import (
	"context"
	"fmt"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/ranges"
)

// Zero returns an elastic.UnitsOptions.OnChange that wipes a unit of unitBytes
// whenever it changes hands, in both directions (zero_on_return): a borrower
// cannot read what the worker's requests left, nor the other way round, nor one
// borrower what another did. It takes the time of writing the unit once, on
// stream s, with the cache locked.
//
// What it returns panics if the memory cannot be wiped: a unit that may hold
// somebody's bytes must not change hands, and a process whose memory does not
// answer cannot serve.
func Zero(arena nvlink.Arena, s nvlink.Stream, unitBytes int64) (func(unit int, to elastic.State), error) {
	if !ranges.Can(s, arena) {
		return nil, fmt.Errorf("zero_on_return: true, must be false: neither the host nor the stream can write to arena %q", arena.Name())
	}
	if unitBytes < 1 || unitBytes > arena.Size() {
		return nil, fmt.Errorf("units of %d bytes, must be 1 to %d, the size of arena %q", unitBytes, arena.Size(), arena.Name())
	}
	return func(unit int, _ elastic.State) {
		if err := wipe(s, nvlink.Span{Arena: arena, Off: int64(unit) * unitBytes, Len: unitBytes}); err != nil {
			panic(fmt.Sprintf("unit %d of arena %q cannot be wiped: %v", unit, arena.Name(), err))
		}
	}, nil
}

func wipe(s nvlink.Stream, span nvlink.Span) error {
	if err := ranges.Wipe(s, []nvlink.Span{span}); err != nil {
		return err
	}
	ev, err := s.Record()
	if err != nil {
		return err
	}
	return ev.Wait(context.Background())
}
