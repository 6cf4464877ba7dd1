// Package ranges computes checksums of memory and wipes it in the order of a
// stream: on the host where the host can address the memory, else where the
// memory is.
package ranges

import (
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvlend/kvlend/nvlink"
)

// Can reports whether Hash and Wipe work with spans of a on s.
func Can(s nvlink.Stream, a nvlink.Arena) bool {
	if a.Bytes() != nil {
		return true
	}
	_, ok := s.(nvlink.Ranger)
	return ok
}

// Hash enqueues that sums[i] becomes xxh3-64 of spans[i] with seed seeds[i],
// before the next event of s completes or its next Call runs. The slices belong
// to the stream until then and have equal lengths. Spans outside their arena
// and memory that neither side can read are refused at once.
func Hash(s nvlink.Stream, spans []nvlink.Span, seeds, sums []uint64) error {
	if len(seeds) != len(spans) || len(sums) != len(spans) {
		return fmt.Errorf("checksums: %d spans, %d seeds, %d sums; want as many of each", len(spans), len(seeds), len(sums))
	}
	here, err := onHost(s, spans)
	if err != nil {
		return err
	}
	if !here {
		return s.(nvlink.Ranger).HashBatch(spans, seeds, sums)
	}
	return s.Call(func() error {
		for i, sp := range spans {
			sums[i] = xxh3.HashSeed(bytesOf(sp), seeds[i])
		}
		return nil
	})
}

// Wipe enqueues that spans become zero. The slice belongs to the stream until
// its next event. Errors are those of Hash.
func Wipe(s nvlink.Stream, spans []nvlink.Span) error {
	here, err := onHost(s, spans)
	if err != nil {
		return err
	}
	if !here {
		return s.(nvlink.Ranger).WipeBatch(spans)
	}
	return s.Call(func() error {
		for _, sp := range spans {
			clear(bytesOf(sp))
		}
		return nil
	})
}

func bytesOf(s nvlink.Span) []byte { return s.Arena.Bytes()[s.Off:][:s.Len] }

// onHost reports whether the host can address all spans.
func onHost(s nvlink.Stream, spans []nvlink.Span) (bool, error) {
	here := true
	for i, sp := range spans {
		switch {
		case sp.Arena == nil:
			return false, fmt.Errorf("span %d: arena is nil: %w", i, nvlink.ErrBadSpan)
		case sp.Off < 0 || sp.Len <= 0 || sp.Off > sp.Arena.Size()-sp.Len:
			return false, fmt.Errorf("span %d: [%d, +%d) of arena %q with %d bytes: %w", i, sp.Off, sp.Len, sp.Arena.Name(), sp.Arena.Size(), nvlink.ErrBadSpan)
		case !Can(s, sp.Arena):
			return false, fmt.Errorf("span %d: neither the host nor the stream can read arena %q: %w", i, sp.Arena.Name(), nvlink.ErrBadSpan)
		}
		here = here && sp.Arena.Bytes() != nil
	}
	return here, nil
}
