package nvlink

// Ranger is a Stream that computes checksums and wipes memory where the memory
// is. Streams of fabrics whose arenas the host cannot address implement it.
type Ranger interface {
	Stream
	// HashBatch enqueues that sums[i] becomes xxh3-64 of spans[i] with seed
	// seeds[i]. spans and seeds are copied before it returns; sums is written
	// before the next event completes or the next Call runs. Errors are those of
	// CopyBatch.
	HashBatch(spans []Span, seeds, sums []uint64) error
	// WipeBatch enqueues that spans become zero. Errors are those of CopyBatch.
	WipeBatch(spans []Span) error
}
