// Package kernels holds the arithmetic of the CPU engine: packed weight
// matrices, matrix products, attention over a block table, and element-wise
// operators, each in three implementations (AVX-512, AVX2, pure Go) that give
// the same result to the bit.
//
// # Canonical arithmetic
//
// Every output element is defined by one fixed sequence of float32
// operations that depends on nothing but that element's own inputs: not on how
// many rows the batch has, on how a prefill was chunked, on the number of
// threads, or on the instruction set. Parallelism only decides who computes
// an element, never in what order its terms are added.
//
//   - BF16 weights: inputs are rounded to bfloat16 (nearest even, denormals to
//     zero); for k = 0, 2, 4, ... acc = fl(acc + x[k+1]*w[k+1]) and then
//     acc = fl(acc + x[k]*w[k]). Products of two bfloat16 are exact in float32,
//     and denormal results are flushed to zero. This is what VDPBF16PS does
//     (measured: 32,000,000 of 32,000,000 random lanes).
//   - F32 and F16 weights: for k = 0, 1, 2, ... acc = fma32(x[k], w[k], acc).
package kernels

// DType is the element type of weights or of KV cache in memory.
type DType uint8

// The element types.
const (
	F32 DType = iota + 1
	BF16
	F16
)

// KVLayout describes one layer block of KV cache: K and V of BlockTokens
// consecutive tokens for all KV heads of one layer. How the elements are
// arranged inside the block is private to this package; everyone else only
// moves whole layer blocks.
type KVLayout struct {
	BlockTokens int   // B, a multiple of 16
	KVHeads     int   // H_kv
	HeadDim     int   // D, a multiple of 16
	DType       DType // BF16 or F32
}

// AttnSeq is one sequence's share of an attention call.
type AttnSeq struct {
	Rows  int     // new tokens, consecutive rows of q and of out
	Start int     // absolute position of the first of them
	Table []int64 // Table[i]: byte offset in mem of the layer block with positions [i*B, (i+1)*B)
}
