package master

// space keeps the books on the master's own arena: which chunks hold blocks of
// the regular cache, which are free to serve as slots, and which tails are
// taken. It holds no locks; the cache's mutex guards it.
type space struct {
	layers     int
	layerBytes int64
	buffers    int
	chunks     int
	rest       int     // layer blocks behind the last chunk
	free       []int32 // chunks without a regular-cache block
	tailBase   int64
	freeTails  []int32
	tails      int
}

func newSpace(c Config) *space {
	m := c.Geometry.LayerBlockBytes()
	k := int(c.ArenaBytes / m)
	s := &space{
		layers: c.Geometry.Layers, layerBytes: m, buffers: c.Buffers,
		chunks: k / c.Geometry.Layers, rest: k % c.Geometry.Layers,
		tailBase: c.ArenaBytes, tails: c.Tails,
	}
	for i := s.chunks - 1; i >= 0; i-- {
		s.free = append(s.free, int32(i))
	}
	for i := c.Tails - 1; i >= 0; i-- {
		s.freeTails = append(s.freeTails, int32(i))
	}
	return s
}

// used is the number of regular-cache blocks.
func (s *space) used() int { return s.chunks - len(s.free) }

// slots is how many LSC slots there would be with rc regular-cache blocks.
func (s *space) slots(rc int) int { return (s.chunks-rc)*s.layers + s.rest }

// fits reports whether rc regular-cache blocks leave room for lent borrowed ones.
func (s *space) fits(rc, lent int) bool {
	return rc >= 0 && rc <= s.chunks && s.slots(rc) >= s.buffers*lent
}

// most is how many regular-cache blocks leave room for lent borrowed ones.
func (s *space) most(lent int) int {
	short := s.buffers*lent - s.rest
	if short <= 0 {
		return s.chunks
	}
	return s.chunks - (short+s.layers-1)/s.layers
}

// split says how many of the blocks needed have to be borrowed, if rc
// regular-cache blocks and lent borrowed blocks are there already: the least y
// such that y more borrowed and needed-y more local blocks fit. When y exceeds
// needed, y-needed blocks of the regular cache must move out as well.
//
// Each block that goes to borrowed memory instead frees a chunk of L layer
// blocks and takes a slot per buffer, so y follows from one division.
func (s *space) split(rc, needed, lent int) int {
	short := s.buffers*lent - s.slots(rc+needed)
	if short <= 0 {
		return 0
	}
	gain := s.layers - s.buffers
	return (short + gain - 1) / gain
}

func (s *space) takeChunk() (int32, bool) {
	if len(s.free) == 0 {
		return 0, false
	}
	c := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return c, true
}

func (s *space) putChunk(c int32) { s.free = append(s.free, c) }

func (s *space) takeTail() (int32, bool) {
	if len(s.freeTails) == 0 {
		return 0, false
	}
	t := s.freeTails[len(s.freeTails)-1]
	s.freeTails = s.freeTails[:len(s.freeTails)-1]
	return t, true
}

func (s *space) putTail(t int32) { s.freeTails = append(s.freeTails, t) }

// chunkOff and tailOff are the offsets of a full block's first layer block.
func (s *space) chunkOff(c int32) int64 { return int64(c) * int64(s.layers) * s.layerBytes }
func (s *space) tailOff(t int32) int64 {
	return s.tailBase + int64(t)*int64(s.layers)*s.layerBytes
}

// slotOffsets calls yield with the offsets of the slots that are available
// now, until it returns false. Slots hold nothing between steps, so they need
// no books of their own.
func (s *space) slotOffsets(yield func(off int64) bool) {
	base := int64(s.chunks) * int64(s.layers) * s.layerBytes
	for i := range s.rest {
		if !yield(base + int64(i)*s.layerBytes) {
			return
		}
	}
	for i := len(s.free) - 1; i >= 0; i-- {
		for l := range s.layers {
			if !yield(s.chunkOff(s.free[i]) + int64(l)*s.layerBytes) {
				return
			}
		}
	}
}
