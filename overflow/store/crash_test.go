package store

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvlend/kvlend/overflow/store/simdev"
	"github.com/kvlend/kvlend/prefix"
)

var (
	crashSeeds = flag.Int("crash.seeds", 2000/less, "how many random histories TestCrashHistories runs")
	crashSeed  = flag.Int64("crash.seed", -1, "run only this history")
)

const arenaBytes = 16 << 20

// history is a store's life through crashes, and what is known of it.
type history struct {
	opt Options
	dev *simdev.Device
	s   *Store
	rng *rand.Rand

	n        uint64              // of the newest block
	ever     map[uint64]Entry    // all that were committed
	live     map[uint64]Slot     // in this life
	promised map[uint64]struct{} // acknowledged as durable and not freed since
	gone     map[uint64]struct{} // acknowledged as freed
	reserved []Slot
	ready    []Entry // whose data is written
	flushing bool
	meddled  int // changes in the midst of a flush
	misses   int
	notes    int
	maybe    []string // what the note may be

	arena []byte // of the open store's buffers: far cheaper than the heap
	used  int
}

// memory is Options.Memory. What an earlier store had is given out again: its
// I/O has ended.
func (h *history) memory(n int) []byte {
	b := h.arena[h.used:][:n:n]
	h.used += n
	return b
}

func newHistory(seed uint64, arena []byte) (*history, error) {
	rng := rand.New(rand.NewPCG(seed, 1))
	o := Options{
		Layers: 1 + rng.IntN(3), LayerBytes: 1 + rng.IntN(6000), BlockTokens: 1 + rng.IntN(5),
		Run: rng.IntN(9), Slots: 4 + rng.IntN(40), UUID: [16]byte{1, byte(seed)}, Sum: sumOf,
	}
	if rng.IntN(4) == 0 { // a few entries fill a page
		o.Layers, o.LayerBytes, o.BlockTokens = 1+rng.IntN(2), 100, 200
	}
	h := &history{
		opt: o, rng: rng, ever: map[uint64]Entry{}, live: map[uint64]Slot{}, promised: map[uint64]struct{}{}, gone: map[uint64]struct{}{},
		dev: simdev.New(simdev.Options{Name: "sim", Size: sizeOf(o), MaxIO: 256 << 10}), arena: arena,
	}
	h.opt.Memory = h.memory
	return h, Format(context.Background(), h.dev, o)
}

// key is the key of block n: blocks share few keys, so that keys come back.
func (h *history) key(n uint64) prefix.Key { return prefix.Key{Hi: n % 29, Lo: 5} }

func (h *history) block(slot Slot, n uint64) (Entry, []byte) {
	e, data := block(h.s.Geometry(), slot, n)
	e.Key, e.Parent = h.key(n), h.key(n/2)
	return e, data
}

// open opens the store and judges what came back.
func (h *history) open() error {
	if h.s != nil {
		h.s.Close(context.Background())
	}
	h.used = 0
	s, _, err := Open(context.Background(), h.dev, h.opt)
	if err != nil {
		if h.dev.Off() {
			return nil // the next crash
		}
		return fmt.Errorf("open: %w", err)
	}
	h.s, h.reserved, h.ready = s, nil, nil
	h.dev.Fault(h.meddle)
	if note := string(s.Note()); h.notes > 0 && !slices.Contains(append(h.maybe, h.first()), note) {
		return fmt.Errorf("the note is %q, want one of %q", note, h.maybe)
	}
	return h.judge()
}

// judge compares what the store has with what it may and must have.
func (h *history) judge() error {
	found := map[uint64]Slot{}
	seen := map[prefix.Key]bool{}
	good := map[uint64]bool{}
	for e := range h.s.Entries() {
		want, ok := h.ever[e.Tag]
		if !ok || want.Slot != e.Slot || want.Key != e.Key || want.Parent != e.Parent || want.Root != e.Root ||
			!slices.Equal(want.Tokens, e.Tokens) || !slices.Equal(want.Sums, e.Sums) {
			return fmt.Errorf("recovered %+v, which was never committed; block %d was %+v", e, e.Tag, want)
		}
		if seen[e.Key] {
			return fmt.Errorf("key %v was recovered twice", e.Key)
		}
		if _, live := h.s.Lookup(e.Parent); live && !e.Root && !seen[e.Parent] && h.acyclic(e.Key) {
			return fmt.Errorf("key %v came before its parent %v", e.Key, e.Parent)
		}
		if _, gone := h.gone[e.Tag]; gone {
			return fmt.Errorf("block %d in slot %d was acknowledged as freed and is back", e.Tag, e.Slot)
		}
		seen[e.Key] = true
		found[e.Tag] = e.Slot
		right, err := h.verify(&e)
		if err != nil {
			return err
		}
		good[e.Tag] = right
		if _, kept := h.live[e.Tag]; kept && !right {
			return fmt.Errorf("block %d in slot %d was never freed; the log names it before its data is there", e.Tag, e.Slot)
		}
	}
	for n := range h.promised {
		e := h.ever[n]
		got, ok := h.s.Lookup(e.Key)
		if !ok || got.Tag != n || got.Slot != e.Slot {
			return fmt.Errorf("block %d in slot %d was acknowledged and is lost (found %v: %+v)", n, e.Slot, ok, got)
		}
		if !good[n] {
			return fmt.Errorf("block %d in slot %d was acknowledged and its data is wrong", n, e.Slot)
		}
	}
	h.live = map[uint64]Slot{}
	h.promised = map[uint64]struct{}{}
	for n, slot := range found {
		if !good[n] {
			h.misses++
			h.s.Free([]Slot{slot})
			continue
		}
		// What is found stays.
		h.live[n], h.promised[n] = slot, struct{}{}
	}
	return h.check()
}

// acyclic says whether the chain from k ends.
func (h *history) acyclic(k prefix.Key) bool {
	seen := map[prefix.Key]bool{}
	for !seen[k] {
		seen[k] = true
		e, ok := h.s.Lookup(k)
		if !ok || e.Root {
			return true
		}
		k = e.Parent
	}
	return false
}

// verify says whether a block's data has its checksums. If so it must be the
// data.
func (h *history) verify(e *Entry) (bool, error) {
	g := h.s.Geometry()
	got := heapMemory(g.Layers * int(g.Stride))
	if err := transfer(h.dev, h.s, false, e.Slot, got); err != nil {
		return false, err
	}
	_, want := h.block(e.Slot, e.Tag)
	for l := range g.Layers {
		b := got[l*int(g.Stride):][:g.LayerBytes]
		if sumOf(e, l, b) != e.Sums[l] {
			return false, nil
		}
		if !bytes.Equal(b, want[l*int(g.Stride):][:g.LayerBytes]) {
			return false, fmt.Errorf("block %d has the right checksum and wrong data", e.Tag)
		}
	}
	return true, nil
}

func (h *history) check() error {
	r, err := h.s.Check(context.Background(), true)
	if err != nil {
		if h.dev.Off() {
			return nil
		}
		return err
	}
	if len(r.Problems) > 0 || len(r.Bad) > 0 && !h.dev.Off() {
		return fmt.Errorf("check: %v %v", r.Problems, r.Bad)
	}
	return nil
}

// write allocates, writes and commits some blocks.
func (h *history) write() error {
	for _, slot := range h.s.Alloc(nil, 1+h.rng.IntN(6)) {
		h.n++
		e, data := h.block(slot, h.n)
		if transfer(h.dev, h.s, true, slot, data) != nil || h.rng.IntN(10) == 0 {
			h.reserved = append(h.reserved, slot)
			continue
		}
		if h.rng.IntN(8) == 0 {
			h.ready = append(h.ready, e)
		} else if err := h.commit(&e); err != nil && !h.dev.Off() {
			return fmt.Errorf("commit: %w", err)
		}
	}
	return nil
}

func (h *history) commit(e *Entry) error {
	_, err := h.s.Commit(e)
	var dup *DuplicateError
	if errors.As(err, &dup) {
		h.s.Free([]Slot{e.Slot})
		return nil
	}
	if err == nil {
		h.ever[e.Tag], h.live[e.Tag] = *e, e.Slot
	}
	return err
}

// meddle commits and frees while the store writes its log.
func (h *history) meddle(op simdev.Op) error {
	if !h.flushing || op.Kind == "read" || h.rng.IntN(3) > 0 {
		return nil
	}
	h.meddled++
	if len(h.ready) > 0 && h.rng.IntN(3) > 0 {
		e := h.ready[0]
		h.ready = h.ready[1:]
		return h.commit(&e)
	}
	h.free()
	return nil
}

// flush flushes or closes, and notes what that acknowledges: what was so
// before it began.
func (h *history) flush(f func(context.Context) error) error {
	before, known := maps.Clone(h.live), maps.Clone(h.ever)
	h.flushing = true
	err := f(context.Background())
	h.flushing = false
	if err != nil {
		if h.dev.Off() {
			return nil
		}
		return err
	}
	for n := range known {
		if _, live := before[n]; !live {
			h.gone[n] = struct{}{}
		} else if _, live := h.live[n]; live {
			h.promised[n] = struct{}{}
		}
	}
	return nil
}

// free frees some blocks.
func (h *history) free() {
	ns := slices.Sorted(maps.Keys(h.live))
	for range 1 + h.rng.IntN(5) {
		if len(ns) == 0 {
			break
		}
		i := h.rng.IntN(len(ns))
		h.s.Free([]Slot{h.live[ns[i]]})
		delete(h.live, ns[i])
		delete(h.promised, ns[i])
		ns = slices.Delete(ns, i, i+1)
	}
}

// step does one random thing.
func (h *history) step() error {
	switch k := h.rng.IntN(21); {
	case k == 20:
		h.note()
	case k < 7:
		return h.write()
	case k < 11:
		h.free()
	case k < 12:
		h.s.Free(h.reserved)
		h.reserved = nil
	case k < 19:
		return h.flush(h.s.Flush)
	default:
		if err := h.flush(h.s.Close); err != nil {
			return err
		}
		return h.open()
	}
	return nil
}

// note leaves a note; after a crash it is the last one that was acknowledged, or one
// that was not.
func (h *history) note() {
	h.notes++
	text := fmt.Sprint(h.notes)
	h.maybe = append(h.maybe, text)
	if h.s.SetNote([]byte(text)) == nil {
		h.maybe = []string{text}
	}
}

// first is the note before any was acknowledged.
func (h *history) first() string {
	if len(h.maybe) == h.notes {
		return ""
	}
	return h.maybe[0]
}

// run lives until the power fails or n steps are done.
func (h *history) run(n int) error {
	for range n {
		if h.dev.Off() {
			break
		}
		if err := h.step(); err != nil {
			return err
		}
	}
	return nil
}

// crash ends a life: with the power, or that of the process alone.
func (h *history) crash(fate simdev.Fate, kill bool) {
	if h.s != nil {
		h.dev.CrashAt(0) // nothing more is written
		h.s.Close(context.Background())
	}
	if kill {
		h.dev.Restart()
		return
	}
	h.dev = h.dev.Crash(fate, h.rng)
}

// lives runs a history of several lives.
func lives(seed uint64, arena []byte) (misses, meddled int, err error) {
	h, err := newHistory(seed, arena)
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		if h.s != nil {
			h.s.Close(context.Background())
		}
	}()
	for life := range 2 + h.rng.IntN(3) {
		if err := h.open(); err != nil {
			return 0, 0, fmt.Errorf("life %d: %w", life, err)
		}
		soon := 150
		if h.rng.IntN(3) == 0 {
			soon = 12 // before or in the first flush
		}
		h.dev.CrashAt(h.rng.IntN(soon))
		if err := h.run(60); err != nil {
			return 0, 0, fmt.Errorf("life %d: %w", life, err)
		}
		h.crash(simdev.Fate(h.rng.IntN(int(simdev.Fates))), h.rng.IntN(3) == 0)
	}
	err = h.open()
	return h.misses, h.meddled, err
}

func TestCrashHistories(t *testing.T) {
	arena := heapMemory(arenaBytes)
	if *crashSeed >= 0 {
		if _, _, err := lives(uint64(*crashSeed), arena); err != nil {
			t.Errorf("seed %d: %v", *crashSeed, err)
		}
		return
	}
	misses, meddled := 0, 0
	for seed := range uint64(*crashSeeds) {
		n, m, err := lives(seed, arena)
		misses += n
		meddled += m
		if err != nil {
			t.Errorf("seed %d (repeat with -crash.seed=%d): %v", seed, seed, err)
		}
		if t.Failed() && seed > 100 {
			break
		}
	}
	if misses == 0 && *crashSeeds >= 500 {
		t.Error("no history overwrote a block that the log still names: the test does not test that")
	}
	t.Logf("%d histories, %d changes in the midst of a flush, %d blocks that the log named were misses", *crashSeeds, meddled, misses)
}

// TestCrashEverywhere runs histories with a crash before each single write and
// sync, with every fate, and then lives on.
func TestCrashEverywhere(t *testing.T) {
	arena := heapMemory(arenaBytes)
	points := 0
	for script := range uint64(2) {
		for at := 0; ; at += less {
			over := false
			for fate := range simdev.Fates + 2 {
				h, err := newHistory(1000+script, arena)
				if err != nil {
					t.Fatal(err)
				}
				if err := h.open(); err != nil {
					t.Fatal(err)
				}
				h.dev.CrashAt(at)
				err = h.run(30)
				over = !h.dev.Off()
				h.rng = rand.New(rand.NewPCG(uint64(fate), uint64(at)))
				h.crash(max(simdev.Random, min(fate, simdev.Fates+1)%simdev.Fates), false)
				for range 2 {
					if err == nil {
						err = h.open()
					}
					if err == nil {
						h.dev.CrashAt(h.rng.IntN(12))
						err = h.run(10)
						h.crash(simdev.Random, false)
					}
				}
				if err == nil {
					err = h.open()
				}
				h.s.Close(context.Background())
				if err != nil {
					t.Fatalf("script %d, crash before step %d, fate %d: %v", script, at, fate, err)
				}
				points++
			}
			if over {
				break
			}
		}
	}
	t.Logf("%d crashes", points)
}
