package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
)

// segmentTokens is the number of positions whose scores are normalised
// together. Segments start at multiples of it, whatever the block size.
const segmentTokens = 256

const segmentTiles = segmentTokens / tileTokens

// tilesAhead is how many tiles behind the current ones kernels may look up to
// fetch them into cache.
const tilesAhead = 4

// tileQueries is the number of (row, head) queries that share one pass over
// the segments.
const tileQueries = 48

// maxSplitFloats bounds the memory for outputs of split queries.
const maxSplitFloats = 8 << 20

// scratch is one worker's memory.
type scratch struct {
	tail   [maxRows * panelWidth]float32 // outputs of a partly filled panel
	scores [maxRows * segmentTokens]float32
	probs  operand // maxRows * segmentTokens
	out    []float32
	state  []partial
	sums   []float32 // outputs of state
	exps   [16]float32
	lanes  [16]float32
	// tiles holds byte offsets of the current segment's K tiles, its V tiles
	// and the first K tiles of the next segment. Kernels fetch ahead along
	// this list. Past the end of a sequence its last tile is repeated:
	// kernels may read it, and what they make of it is not used.
	tiles   [2*segmentTiles + tilesAhead]int64
	oneTile [1 + tilesAhead]int64
	pair    []byte // a V tile whose odd tokens are zero
}

// values lists the V tiles.
func (w *scratch) values() []int64 { return w.tiles[segmentTiles:] }

// partial is softmax statistics of some positions of one query: their largest
// score and the sum of exp(score - m).
type partial struct{ m, l float32 }

// attnScratch is the memory of one attention call.
type attnScratch struct {
	q      operand
	units  []attnUnit
	groups []int     // the first unit of each split tile of queries
	stats  []partial // of split units: [segment][query] of each tile
	outs   []float32 // the same, D each
}

// attnCall is one call of Attention.
type attnCall struct {
	*Runner
	l       KVLayout
	out     []float32
	heads   int
	group   int // query heads per KV head
	scale   float32
	mem     []byte
	seqs    []AttnSeq
	queries int // (row, head of a group) pairs of the call, per KV head
	q       operand
}

// attnUnit is what one worker does at a time: some consecutive queries of one
// sequence and KV head. Query i of a sequence is row i/group, head i%group of
// the group.
type attnUnit struct {
	seq, head   int
	base        int // first query of the sequence within the call
	first, last int // queries
	seg, segEnd int
	parts       int // where the statistics of a split query go; -1: not split
}

// Attention computes causal attention of new tokens over their sequences' KV
// cache: q and out are [rows][heads][D], the sequences' rows one after the
// other; row i of a sequence sees positions 0 .. Start+i, which have all been
// written. heads is a multiple of l.KVHeads; query head h reads KV head
// h/(heads/KVHeads). It returns an error when the layout or a table is
// unusable: too short, or an offset outside mem.
//
// For each query the positions are cut in segments of 256. Within a segment
// s_j = q . k_j, m = max(s_j) * scale, p_j = exp(fma(s_j, scale, -m)), l = the sum of p_j
// in 16 lanes (j mod 16) which are then added pairwise, and o = sum of p_j v_j
// in the order of j. With BF16 KV, q and p are rounded to bf16 and both
// products follow the package's order for BF16 (pairs of dimensions, pairs of
// positions; a missing last position counts as zero). Segments are merged from
// the first on: m' = max(m, m_s), a = exp(m-m'), b = exp(m_s-m'),
// l = l*a + l_s*b, o = o*a + o_s*b. The output is o * (1/l). (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018; Dao, "Flash
// attention", 2022.)
func (r *Runner) Attention(out, q []float32, heads int, scale float32, l KVLayout, mem []byte, seqs []AttnSeq) error {
	if err := l.Validate(); err != nil {
		return err
	}
	if heads < 1 || heads%l.KVHeads != 0 {
		return fmt.Errorf("kernels: %d query heads, want a positive multiple of %d KV heads", heads, l.KVHeads)
	}
	if !(scale > 0 && scale < math.MaxFloat32) {
		return fmt.Errorf("kernels: attention scale is %g, want a positive number", scale)
	}
	rows, err := checkTables(l, mem, seqs)
	if err != nil || rows == 0 {
		return err
	}
	need("q", len(q), rows*heads*l.HeadDim)
	need("out", len(out), rows*heads*l.HeadDim)
	c := &attnCall{Runner: r, l: l, out: out, heads: heads, group: heads / l.KVHeads,
		scale: scale, mem: mem, seqs: seqs, queries: rows * heads / l.KVHeads}
	c.gather(q, rows)
	split := c.plan()
	for i := range r.workers {
		c.prepare(&r.workers[i])
	}
	r.pool.run(len(r.attn.units), func(worker, i int) {
		c.unit(&r.workers[worker], &r.attn.units[i])
	})
	if split {
		r.pool.run(len(r.attn.groups), func(worker, i int) {
			c.mergeSplit(&r.workers[worker], &r.attn.units[r.attn.groups[i]])
		})
	}
	return nil
}

// checkTables validates the sequences and returns their rows.
func checkTables(l KVLayout, mem []byte, seqs []AttnSeq) (rows int, err error) {
	for i, s := range seqs {
		if s.Rows < 0 || s.Start < 0 || s.Rows > 1<<30 || s.Start > 1<<30 {
			return 0, fmt.Errorf("kernels: sequence %d has Rows %d and Start %d, want 0 to 2^30", i, s.Rows, s.Start)
		}
		if s.Rows == 0 {
			continue
		}
		n := (s.Start + s.Rows + l.BlockTokens - 1) / l.BlockTokens
		if len(s.Table) < n {
			return 0, fmt.Errorf("kernels: sequence %d has a table of %d blocks, want %d for %d tokens",
				i, len(s.Table), n, s.Start+s.Rows)
		}
		for j, off := range s.Table[:n] {
			if err := l.checkBlock(mem, off); err != nil {
				return 0, fmt.Errorf("sequence %d, table entry %d: %w", i, j, err)
			}
		}
		rows += s.Rows
	}
	return rows, nil
}

// gather puts the queries of a KV head next to each other:
// [KVHeads][row][group][D], rounded for BF16.
func (c *attnCall) gather(q []float32, rows int) {
	d, n := c.l.HeadDim, rows*c.heads*c.l.HeadDim
	a := &c.attn
	var dst operand
	if c.l.DType == BF16 {
		dst = c.operand(&a.q, n)
	} else {
		a.q.full = grow(a.q.full, n)
		dst.full = a.q.full
	}
	c.q = dst
	w := c.group * d
	c.eachRow(rows, c.heads*d, func(_, first, last int) {
		for i := first; i < last; i++ {
			for h := range c.l.KVHeads {
				src := q[i*c.heads*d+h*w:][:w]
				to := dst.from((h*rows + i) * w)
				if c.l.DType == BF16 {
					c.ops.round(to, src)
				} else {
					copy(to.full, src)
				}
			}
		}
	})
}

// plan cuts the call into units and says whether queries are split over
// segments.
func (c *attnCall) plan() (split bool) {
	a := &c.attn
	a.units, a.groups = a.units[:0], a.groups[:0]
	tiles, floats := 0, 0
	for _, s := range c.seqs {
		tiles += (s.Rows*c.group + tileQueries - 1) / tileQueries * c.l.KVHeads
		floats += s.Rows * c.heads * c.l.HeadDim * ((s.Start+s.Rows)/segmentTokens + 1)
	}
	split = tiles < 4*c.threads && c.threads > 1 && floats <= maxSplitFloats
	base, parts := 0, 0
	for i, s := range c.seqs {
		n := s.Rows * c.group
		for h := range c.l.KVHeads {
			for f := 0; f < n; f += tileQueries {
				u := attnUnit{seq: i, head: h, base: base, first: f, last: min(n, f+tileQueries), parts: -1}
				segs := c.segments(&u)
				if split {
					a.groups = append(a.groups, len(a.units))
					for j := range segs {
						u.seg, u.segEnd, u.parts = j, j+1, parts+j*(u.last-u.first)
						a.units = append(a.units, u)
					}
					parts += segs * (u.last - u.first)
					continue
				}
				u.segEnd = segs
				a.units = append(a.units, u)
			}
		}
		base += n
	}
	if split {
		a.stats = grow(a.stats, parts)
		a.outs = grow(a.outs, parts*c.l.HeadDim)
	}
	return split
}

// segments is how many segments the last query of u sees.
func (c *attnCall) segments(u *attnUnit) int {
	return (c.visible(u, u.last-1) + segmentTokens - 1) / segmentTokens
}

// visible is how many positions query i sees.
func (c *attnCall) visible(u *attnUnit, i int) int {
	return c.seqs[u.seq].Start + i/c.group + 1
}

func (c *attnCall) prepare(w *scratch) {
	d := c.l.HeadDim
	w.out = grow(w.out, maxRows*d)
	w.sums = grow(w.sums, tileQueries*d)
	w.state = grow(w.state, tileQueries)
	w.pair = grow(w.pair, int(c.l.tileBytes()))
	if c.ops.halfInputs() && c.l.DType == BF16 {
		w.probs = operand{half: grow(w.probs.half, maxRows*segmentTokens)}
	} else {
		w.probs = operand{full: grow(w.probs.full, maxRows*segmentTokens)}
	}
}

// unit runs over the segments of u, then over its queries, so that a segment
// of K and V stays in cache for all of them.
func (c *attnCall) unit(w *scratch, u *attnUnit) {
	for s := u.seg; s < u.segEnd; s++ {
		c.tiles(w, u, s)
		for f := u.first; f < u.last; f += maxRows {
			first, last := f, min(f+maxRows, u.last)
			// Earlier rows may end before this segment.
			for first < last && c.visible(u, first) <= s*segmentTokens {
				first++
			}
			if first < last {
				c.segment(w, u, s, first, last)
			}
		}
	}
	if u.parts < 0 {
		for i := u.first; i < u.last; i++ {
			j := i - u.first
			c.finish(u, i, w.sums[j*c.l.HeadDim:][:c.l.HeadDim], w.state[j])
		}
	}
}

// tiles lists where the tiles of segment s lie.
func (c *attnCall) tiles(w *scratch, u *attnUnit, s int) {
	seq := &c.seqs[u.seq]
	end := min(c.visible(u, u.last-1), (s+1)*segmentTokens)
	half := c.l.halfBytes()
	last := int64(0)
	for i := range segmentTiles {
		if pos := s*segmentTokens + i*tileTokens; pos < end {
			last = seq.Table[pos/c.l.BlockTokens] + c.l.keyTile(u.head, pos%c.l.BlockTokens)
		}
		w.tiles[i], w.tiles[segmentTiles+i] = last, last+half
	}
	end = c.visible(u, u.last-1)
	for i := range tilesAhead {
		if pos := (s+1)*segmentTokens + i*tileTokens; pos < end {
			last = seq.Table[pos/c.l.BlockTokens] + c.l.keyTile(u.head, pos%c.l.BlockTokens)
		}
		w.tiles[2*segmentTiles+i] = last
	}
}

// segment computes queries [first, last) of u, at most maxRows, over segment
// s, and merges the result into the unit's state or stores it.
func (c *attnCall) segment(w *scratch, u *attnUnit, s, first, last int) {
	d, dt := c.l.HeadDim, c.l.DType
	rows := last - first
	counts := [maxRows]int{}
	for i := range rows {
		counts[i] = min(segmentTokens, c.visible(u, first+i)-s*segmentTokens)
	}
	q := c.q.from((u.head*c.queries + u.base + first) * d)
	tiles := (counts[rows-1] + tileTokens - 1) / tileTokens
	c.ops.scores(dt, rows, w.scores[:], segmentTokens, q, c.mem, w.tiles[:tiles], d)
	var stats [maxRows]partial
	for i := range rows {
		p := w.probs.from(i * segmentTokens)
		stats[i].m, stats[i].l = c.ops.softmax(p, w.scores[i*segmentTokens:], counts[i], c.scale, dt == BF16)
	}
	o, direct := c.target(w, u, s, first, rows)
	clear(o)
	common := counts[0] &^ 1
	c.ops.values(dt, rows, o, w.probs, segmentTokens, c.mem, w.values(), 0, common, d)
	for i := 0; i < rows; {
		j := i + 1
		for j < rows && counts[j] == counts[i] {
			j++
		}
		c.valuesTail(w, i, j, o, common, counts[i])
		i = j
	}
	c.store(w, u, s, first, stats[:rows], direct)
}

// valuesTail adds tokens [from, n) to rows [i, j), which see n tokens of the
// segment. The token after an odd n has not been written, or not for these
// rows: it is replaced by zero.
func (c *attnCall) valuesTail(w *scratch, i, j int, o []float32, from, n int) {
	d, dt := c.l.HeadDim, c.l.DType
	o = o[i*d : j*d]
	p := w.probs.from(i * segmentTokens)
	if even := n &^ 1; even > from {
		c.ops.values(dt, j-i, o, p, segmentTokens, c.mem, w.values(), from, even, d)
	}
	if n&1 == 0 {
		return
	}
	t := n - 1
	copyEvenToken(dt, w.pair, c.mem[w.values()[t/tileTokens]:], t%tileTokens, d)
	in := t % tileTokens
	w.oneTile[0] = 0
	c.ops.values(dt, j-i, o, p.from(t-in), segmentTokens, w.pair, w.oneTile[:], in, in+2, d)
}

// copyEvenToken copies token t of a V tile and puts zeros in place of token t+1.
func copyEvenToken(dt DType, dst, tile []byte, t, d int) {
	for c := 0; c < d; c += chunkDims {
		o, width := valueOffset(dt, d, c, t), min(chunkDims, d-c)
		if dt == F32 {
			copy(dst[o:], tile[o:o+4*width])
			clear(dst[o+4*width : o+8*width])
			continue
		}
		from, to := tile[o:o+4*width], dst[o:o+4*width]
		for i := 0; i+4 <= len(from); i += 4 {
			binary.LittleEndian.PutUint32(to[i:], binary.LittleEndian.Uint32(from[i:])&0xffff)
		}
	}
}

// target is where the outputs of a segment are summed: the unit's state for
// the first segment, the split storage, or scratch to be merged.
func (c *attnCall) target(w *scratch, u *attnUnit, s, first, rows int) (o []float32, direct bool) {
	d, i := c.l.HeadDim, first-u.first
	switch {
	case u.parts >= 0:
		return c.attn.outs[(u.parts+i)*d:][:rows*d], true
	case s == u.seg:
		return w.sums[i*d:][:rows*d], true
	}
	return w.out[:rows*d], false
}

func (c *attnCall) store(w *scratch, u *attnUnit, s, first int, stats []partial, direct bool) {
	d, i := c.l.HeadDim, first-u.first
	if direct {
		to := w.state[i:]
		if u.parts >= 0 {
			to = c.attn.stats[u.parts+i:]
		}
		copy(to, stats)
		return
	}
	c.merge(&w.exps, w.state[i:][:len(stats)], w.sums[i*d:], stats, w.out)
}

// merge folds a later segment of at most maxRows queries into their state.
func (c *attnCall) merge(e *[16]float32, to []partial, o []float32, stats []partial, op []float32) {
	d := c.l.HeadDim
	for i, p := range stats {
		m := to[i].m
		if p.m > m || p.m != p.m {
			m = p.m
		}
		e[i], e[8+i] = to[i].m-m, p.m-m
		to[i].m = m
	}
	c.ops.exp(e[:])
	for i, p := range stats {
		a, b := e[i], e[8+i]
		to[i].l = float32(to[i].l*a) + float32(p.l*b)
		c.ops.merge(o[i*d:][:d], op[i*d:][:d], a, b)
	}
}

// finish writes the output of query i of u.
func (c *attnCall) finish(u *attnUnit, i int, o []float32, p partial) {
	c.ops.scale(o, 1/p.l)
	row := u.base/c.group + i/c.group
	head := u.head*c.group + i%c.group
	copy(c.out[(row*c.heads+head)*c.l.HeadDim:], o)
}

// mergeSplit merges the segments of a split tile of queries in order. u is the
// tile's first unit.
func (c *attnCall) mergeSplit(w *scratch, u *attnUnit) {
	d, a := c.l.HeadDim, &c.attn
	n, segs := u.last-u.first, c.segments(u)
	for i := range n {
		at := u.parts + i
		state, o := a.stats[at:at+1], a.outs[at*d:][:d]
		for s := 1; s < segs && c.visible(u, u.first+i) > s*segmentTokens; s++ {
			p := at + s*n
			c.merge(&w.exps, state, o, a.stats[p:p+1], a.outs[p*d:])
		}
		c.finish(u, u.first+i, o, state[0])
	}
}

// StoreKV writes k and v [rows][KVHeads][D] of the sequences' new tokens, in
// batch order, to their slots. It checks tables as Attention does.
func (r *Runner) StoreKV(l KVLayout, mem []byte, seqs []AttnSeq, k, v []float32) error {
	if err := l.Validate(); err != nil {
		return err
	}
	rows, err := checkTables(l, mem, seqs)
	if err != nil {
		return err
	}
	n := l.KVHeads * l.HeadDim
	need("k", len(k), rows*n)
	need("v", len(v), rows*n)
	base := 0
	for _, s := range seqs {
		r.eachRow(s.Rows, n, func(_, first, last int) {
			for i := first; i < last; {
				pos, o, tokens := s.Start+i, (base+i)*n, 1
				if l.DType == BF16 && pos%2 == 0 && i+1 < last {
					tokens = 2
				}
				end := o + tokens*n
				l.write(r.ops, mem[s.Table[pos/l.BlockTokens]:], pos%l.BlockTokens, k[o:end], v[o:end])
				i += tokens
			}
		})
		base += s.Rows
	}
	return nil
}
