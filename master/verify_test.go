package master

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/prefix"
	"github.com/kvlend/kvlend/scheduler"
)

// spoiler writes into lent memory what a faulty or malicious peer would.
type spoiler struct {
	w   *world
	r   *rand.Rand
	old map[lentBlock][]byte
	hit map[*block]uint64 // spoiled blocks, and whose they are
}

func newSpoiler(w *world, r *rand.Rand) *spoiler {
	return &spoiler{w: w, r: r, old: map[lentBlock][]byte{}, hit: map[*block]uint64{}}
}

// target is a block with bytes in borrowed memory.
type target struct {
	seq uint64
	b   *block
}

// targets lists them in a fixed order, without those that are spoiled already.
func (s *spoiler) targets() []target {
	var out []target
	for id := range uint64(5) {
		seq := s.w.cache.seqs[id]
		if seq == nil {
			continue
		}
		for _, b := range seq.blocks {
			if _, spoiled := s.hit[b]; !spoiled && b.place == borrowed && b.far() && b.written == s.w.geo.BlockTokens {
				out = append(out, target{id, b})
			}
		}
	}
	return out
}

// layer is one layer block in its lender's arena.
func (s *spoiler) layer(b *block, l int) []byte {
	span := b.pool.span(b.id, l)
	return span.Arena.Bytes()[span.Off:][:span.Len]
}

// remember keeps the bytes of all places, to be put back later.
func (s *spoiler) remember() {
	for _, t := range s.targets() {
		var image []byte
		for l := range s.w.geo.Layers {
			image = append(image, s.layer(t.b, l)...)
		}
		s.old[lentBlock{t.b.pool, t.b.id}] = image
	}
}

// spoil changes a block or two, and notes what must now be caught.
func (s *spoiler) spoil() {
	all := s.targets()
	if len(all) == 0 {
		return
	}
	t := all[s.r.IntN(len(all))]
	l := s.r.IntN(s.w.geo.Layers)
	mem := s.layer(t.b, l)
	before := bytes.Clone(mem)
	switch s.r.IntN(4) {
	case 0: // a bit flips
		mem[s.r.IntN(len(mem))] ^= 1 << s.r.IntN(8)
	case 1: // two blocks change places
		u := all[s.r.IntN(len(all))]
		other := s.layer(u.b, l)
		if bytes.Equal(mem, other) {
			return
		}
		copy(mem, other)
		copy(other, before)
		s.hit[u.b] = u.seq
	case 2: // an older copy is back
		image := s.old[lentBlock{t.b.pool, t.b.id}]
		if image == nil {
			return
		}
		copy(mem, image[l*len(mem):])
	case 3: // the end is missing
		clear(mem[s.r.IntN(len(mem)):])
	}
	if !bytes.Equal(before, mem) {
		s.hit[t.b] = t.seq
	}
}

// forget drops what has no bytes in borrowed memory any more: given up with its
// sequence. A block that moved keeps its identity here and must not have done so.
func (s *spoiler) forget() {
	for b, id := range s.hit {
		seq := s.w.cache.seqs[id]
		if seq == nil || !slices.Contains(seq.blocks, b) {
			delete(s.hit, b)
		} else if b.place != borrowed {
			s.w.t.Fatalf("a spoiled block of sequence %d was moved to the regular cache", id)
		}
	}
}

// TestCorruptionIsCaught spoils lent memory in random histories: no wrong stamp
// may reach a step, no step that loads a spoiled block may succeed.
func TestCorruptionIsCaught(t *testing.T) {
	caught, warned := uint64(0), 0
	for i, wc := range worlds {
		wc.verify = VerifyAll
		for seed := range uint64(30) {
			t.Run(fmt.Sprintf("%d/%d", i, seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, uint64(100+i)))
				w := newWorld(t, wc)
				s := newSpoiler(w, r)
				for n := range 150 {
					if n%7 == 0 {
						s.remember()
					}
					if r.IntN(3) == 0 {
						s.spoil()
					}
					s.randomStep()
					w.randomOp(r)
					w.settle()
					s.forget()
					w.check()
				}
				st := w.cache.Stats()
				caught += st.CorruptBlocks
				warned += len(w.log)
				for line, n := range w.log {
					if n != 1 {
						t.Errorf("logged %d times: %s", n, line)
					}
				}
				for id := range w.seqs {
					w.cache.Release(id)
				}
			})
		}
	}
	if caught < 250 || warned < 200 {
		t.Errorf("%d blocks were caught and %d units logged: the test spoils too little", caught, warned)
	}
	t.Logf("%d blocks caught, %d units logged", caught, warned)
}

// randomStep runs one more token of a sequence: if any of its blocks is
// spoiled, the step must lose that sequence.
func (s *spoiler) randomStep() {
	w := s.w
	id := uint64(1 + s.r.IntN(4))
	at := w.seqs[id]
	if w.cache.seqs[id] == nil || at == 0 || at+1 > w.cache.MaxTokens() || w.reserve(id, at+1) != nil {
		return
	}
	w.settle()
	s.forget()
	if w.cache.seqs[id] == nil {
		return // evicted to make room
	}
	spoiled := slices.Contains(slices.Collect(maps.Values(s.hit)), id)
	before := w.cache.Stats().CorruptBlocks
	err := w.run([]scheduler.StepSeq{{ID: id, Start: at, New: 1}}, nil)
	var corrupt *lsc.CorruptError
	switch {
	case !spoiled && err != nil:
		w.t.Fatalf("step of sequence %d, which is whole: %v", id, err)
	case !spoiled:
		return
	case !errors.As(err, &corrupt):
		w.t.Fatalf("step of sequence %d, which is spoiled: %v", id, err)
	case w.cache.Stats().CorruptBlocks == before:
		w.t.Fatal("a corrupt block was not counted")
	}
	var lost *scheduler.LostError
	if !errors.As(err, &lost) || !slices.Equal(lost.IDs, []uint64{id}) {
		w.t.Fatalf("step of sequence %d: %v", id, err)
	}
	w.restart(id)
}

// filled is a world with one sequence of n tokens, most of them borrowed.
func filled(t *testing.T, v Verify) (*world, []target) {
	t.Helper()
	wc := worlds[4]
	wc.verify = v
	w := newWorld(t, wc)
	n := w.cache.MaxTokens() - 2*w.geo.BlockTokens
	if err := w.reserve(1, n); err != nil {
		t.Fatal(err)
	}
	for w.seqs[1] < n {
		k := min(48, n-w.seqs[1])
		if err := w.run([]scheduler.StepSeq{{ID: 1, Start: w.seqs[1], New: k}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	return w, newSpoiler(w, nil).targets()
}

func (w *world) decode() error {
	at := w.seqs[1]
	if err := w.reserve(1, at+1); err != nil {
		w.t.Fatal(err)
	}
	return w.run([]scheduler.StepSeq{{ID: 1, Start: at, New: 1}}, nil)
}

// TestOffCatchesNothing documents what `off` gives up: the bytes are taken as
// they are.
func TestOffCatchesNothing(t *testing.T) {
	w, all := filled(t, VerifyOff)
	mem := newSpoiler(w, nil).layer(all[0].b, 1)
	mem[0] ^= 1
	w.tolerant = true
	if err := w.decode(); err != nil {
		t.Fatal(err)
	}
	if w.wrong != 1 || w.cache.Stats().CorruptBlocks != 0 {
		t.Fatalf("%d wrong stamps, %d corrupt blocks; want one that nobody noticed", w.wrong, w.cache.Stats().CorruptBlocks)
	}
	w.cache.Release(1)
}

// TestSampleChecksEveryBlock: whichever block is spoiled, 16 steps find it, and
// each costs a sixteenth.
func TestSampleChecksEveryBlock(t *testing.T) {
	w, all := filled(t, VerifySample)
	w.tolerant = true
	before := w.cache.Stats().VerifiedBlocks
	for range sampleEvery {
		if err := w.decode(); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.cache.Stats().VerifiedBlocks - before; n != uint64(len(all)*w.geo.Layers) {
		t.Fatalf("%d layer blocks verified in %d steps, want each of %d once", n, sampleEvery, len(all)*w.geo.Layers)
	}
	for i := range all {
		w, all := filled(t, VerifySample)
		w.tolerant = true
		newSpoiler(w, nil).layer(all[i].b, 0)[9] ^= 4
		var err error
		for n := 0; n < sampleEvery && err == nil; n++ {
			err = w.decode()
		}
		var corrupt *lsc.CorruptError
		if !errors.As(err, &corrupt) {
			t.Fatalf("block %d: %v after %d steps", i, err, sampleEvery)
		}
		w.restart(1)
	}
	w.cache.Release(1)
}

// TestIdentityIsVerified: bytes that are whole do not verify as another block,
// sequence or model, nor after their unit has changed hands.
func TestIdentityIsVerified(t *testing.T) {
	w, all := filled(t, VerifyAll)
	c, b := w.cache, all[0].b
	at := lentBlock{b.pool, b.id}
	unit := uint32(b.pool.space.UnitsOf(b.id)[0])
	seeds := map[uint64]string{}
	note := func(what string) func(seed uint64) {
		return func(seed uint64) {
			if other, taken := seeds[seed]; taken {
				t.Errorf("%s has the seed of %s", what, other)
			}
			seeds[seed] = what
		}
	}
	root := prefix.Root([]byte("model"), []byte("tenant"))
	tokens := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	key := root.Next(tokens)
	note("the block")(c.seed(key, at))
	note("the next with the same tokens")(c.seed(key.Next(tokens), at))
	note("another sequence without tokens")(c.seed(prefix.Key{Hi: 2}, at))
	note("another place")(c.seed(key, lentBlock{b.pool, all[1].b.id}))
	note("another model")(c.seed(prefix.Root([]byte("Model"), []byte("tenant")).Next(tokens), at))
	note("another tenant")(c.seed(prefix.Root([]byte("model"), []byte("tenanT")).Next(tokens), at))
	b.pool.epochs[unit]++
	note("another epoch")(c.seed(key, at))
	b.pool.epochs[unit]--
	was := b.ident
	b.ident = key
	var corrupt *lsc.CorruptError
	if err := w.decode(); !errors.As(err, &corrupt) {
		t.Fatalf("a block of another prefix: %v", err)
	}
	b.ident = was
	w.cache.Release(1)
}

// TestMovesVerify: a spoiled block is found when its unit is vacated, without a
// step, and its sequence computed again; the others move and stay whole.
func TestMovesVerify(t *testing.T) {
	for i, wc := range worlds {
		for _, v := range []Verify{VerifyAll, VerifySample} {
			wc.verify = v
			w := newWorld(t, wc)
			first := w.cache.MaxTokens()/w.geo.BlockTokens - 5
			for id, blocks := range []int{1: first, 2: 3} {
				n := blocks * w.geo.BlockTokens
				if err := w.reserve(uint64(id), n); err != nil {
					t.Fatalf("world %d: %v", i, err)
				}
				for at := 0; at < n; at += w.geo.BlockTokens {
					if err := w.run([]scheduler.StepSeq{{ID: uint64(id), Start: at, New: w.geo.BlockTokens}}, nil); err != nil {
						t.Fatalf("world %d: %v", i, err)
					}
				}
			}
			for _, f := range w.lend {
				f.wanted = 10
				f.answer() // room to move to
			}
			all := newSpoiler(w, nil).targets()
			if len(all) == 0 {
				t.Fatalf("world %d: nothing is borrowed", i)
			}
			victim := all[0]
			l := w.geo.Layers - 1
			newSpoiler(w, nil).layer(victim.b, l)[3] ^= 0x80
			p := victim.b.pool
			w.cache.vacate(p, []int{p.space.LayerUnit(victim.b.id, l)})
			if !slices.Contains(w.cache.Evicted(), victim.seq) || w.cache.Stats().CorruptBlocks != 1 || len(w.log) != 1 {
				t.Fatalf("world %d: %+v after a spoiled block was moved, log %v", i, w.cache.Stats(), w.log)
			}
			w.restart(victim.seq)
			w.check()
			other := 3 - victim.seq
			if at := w.seqs[other]; w.cache.seqs[other] != nil {
				if err := w.reserve(other, at+1); err != nil {
					t.Fatal(err)
				}
				if err := w.run([]scheduler.StepSeq{{ID: other, Start: at, New: 1}}, nil); err != nil {
					t.Fatalf("world %d: the other sequence: %v", i, err)
				}
			}
			w.cache.Release(1)
			w.cache.Release(2)
		}
	}
}

// TestBadUnitGoesHome: nothing new is put beside a corrupt block, and its unit
// goes home with the last of its blocks, without waiting to be idle.
func TestBadUnitGoesHome(t *testing.T) {
	w, all := filled(t, VerifyAll)
	b := all[3].b
	p, unit := b.pool, b.pool.space.LayerUnit(b.id, 0)
	epoch := p.epochs[uint32(unit)]
	newSpoiler(w, nil).layer(b, 0)[100]++
	var corrupt *lsc.CorruptError
	if err := w.decode(); !errors.As(err, &corrupt) || corrupt.Layer != 0 || len(corrupt.Keys) != 1 {
		t.Fatalf("step over a spoiled block: %v", err)
	}
	if len(w.log) != 1 {
		t.Fatalf("the operator reads %v, want one line on the unit", w.log)
	}
	w.restart(1)
	if _, held := p.epochs[uint32(unit)]; held || len(p.bad) != 0 {
		t.Fatal("the unit is empty and has not gone home")
	}
	if row, err := w.lend[0].units.Unit(unit); err != nil || row.Epoch == epoch {
		t.Fatalf("the unit's row is %+v (%v), it had epoch %d", row, err, epoch)
	}
	// It may be borrowed again, and everything fits as before.
	if err := w.reserve(1, w.cache.MaxTokens()); err != nil {
		t.Fatal(err)
	}
	w.cache.Release(1)
}

// TestBadUnitIsReclaimedFirst: what is set aside is the first to go.
func TestBadUnitIsReclaimedFirst(t *testing.T) {
	w, all := filled(t, VerifyAll)
	b := all[3].b
	p, unit := b.pool, b.pool.space.LayerUnit(b.id, 0)
	w.cache.corrupt(lentBlock{p, b.id}, 0)
	if free := p.space.FreeBlocks(); free > 0 && slices.Contains(p.space.Victims(p.space.Units()), unit) {
		t.Fatal("the unit still takes blocks")
	}
	w.cache.Reclaim(0, 1, func(int) {})
	if _, held := p.epochs[uint32(unit)]; held {
		t.Fatal("another unit was given up")
	}
	w.cache.Evicted()
	w.cache.Release(1)
}

func TestConfigNamesVerify(t *testing.T) {
	w := newWorld(t, worlds[0])
	cfg := w.cache.cfg
	cfg.Verify = "some"
	if _, err := New(cfg); err == nil || err.Error() != `lending.verify: "some", must be off, sample or all` {
		t.Errorf("error %v", err)
	}
}
