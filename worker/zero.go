package worker

import (
	"fmt"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/nvlink"
)

// Zero returns an elastic.UnitsOptions.OnChange that wipes a unit of unitBytes
// whenever it changes hands, in both directions (zero_on_return): a borrower
// cannot read what the worker's requests left, nor the other way round, nor one
// borrower what another did. It takes the time of writing the unit once, with
// the cache locked.
func Zero(arena nvlink.Arena, unitBytes int64) (func(unit int, to elastic.State), error) {
	mem := arena.Bytes()
	if mem == nil {
		return nil, fmt.Errorf("zero_on_return: true, must be false: the host cannot write to arena %q", arena.Name())
	}
	if unitBytes < 1 || unitBytes > int64(len(mem)) {
		return nil, fmt.Errorf("units of %d bytes, must be 1 to %d, the size of arena %q", unitBytes, len(mem), arena.Name())
	}
	return func(unit int, _ elastic.State) {
		clear(mem[int64(unit)*unitBytes:][:unitBytes])
	}, nil
}
