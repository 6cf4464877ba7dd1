package calibrate

import (
	"slices"

	"github.com/kvlend/kvlend/planner/perf"
)

// NewGrid is the batches to measure for a model whose sequences have at most long
// tokens, whose steps have at most chunk, of at most seqs sequences: prefill,
// decode and both together, from small to large. Prefill goes in multiples of a
// block. room is how many tokens of KV there is memory for in all.
func NewGrid(long, chunk, seqs, block, room int) [][]perf.Seq {
	long = max(2, long)
	chunk = max(1, min(chunk, long-1))
	seqs = max(1, min(seqs, 64, room))
	deep := max(1, min(long, room)-chunk) // of one sequence
	level := max(1, min(long, room/seqs)-1)
	var grid [][]perf.Seq
	for _, n := range distinct(block, chunk/4, chunk/2, chunk) {
		for _, d := range distinct(0, min(chunk, deep), min(4*chunk, deep), min(16*chunk, deep), deep) {
			if n >= 1 && n <= chunk {
				grid = append(grid, []perf.Seq{{Start: d, New: n}})
			}
		}
	}
	for _, n := range distinct(1, 2, seqs/2, seqs) {
		if n < 1 || n > seqs {
			continue
		}
		for _, d := range distinct(min(block, level), min(4*chunk, level), min(16*chunk, level), level) {
			grid = append(grid, decode(n, d))
		}
	}
	// Of a mixed step decode has what it needs, and prefill the rest.
	for _, n := range distinct(1, seqs/2, seqs-1) {
		if n < 1 || n >= min(seqs, chunk) {
			continue
		}
		for _, d := range distinct(min(4*chunk, level), min(16*chunk, level)/2) {
			rest := min(chunk-n, level-d)
			if rest > 0 {
				grid = append(grid, append(decode(n, d), perf.Seq{Start: d, New: rest}))
			}
		}
	}
	return grid
}

func decode(n, depth int) []perf.Seq {
	batch := make([]perf.Seq, n)
	for i := range batch {
		batch[i] = perf.Seq{Start: depth, New: 1}
	}
	return batch
}

// distinct sorts numbers and drops repetitions and negative ones.
func distinct(n ...int) []int {
	slices.Sort(n)
	n = slices.Compact(n)
	return slices.DeleteFunc(n, func(v int) bool { return v < 0 })
}
