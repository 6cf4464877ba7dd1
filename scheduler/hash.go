package scheduler

import (
	"encoding/binary"
	"math"

	"github.com/zeebo/xxh3"
)

// HashRow extends a logits hash by one row of logits: xxh3-64 over the
// little-endian float32 bits of row, seeded with the hash of the rows before
// (0 at the start). Usage.LogitsHash is this chain over the sampled rows.
func HashRow(prev uint64, row []float32) uint64 {
	return xxh3.HashSeed(float32Bytes(row), prev)
}

func encodeFloat32(row []float32) []byte {
	out := make([]byte, 0, 4*len(row))
	for _, v := range row {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}
