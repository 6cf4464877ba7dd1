package store

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store/simdev"
	"github.com/kvlend/kvlend/prefix"
	"github.com/zeebo/xxh3"
)

// sumOf is the checksum that tests give to layer blocks.
func sumOf(e *Entry, layer int, data []byte) uint64 {
	return xxh3.HashSeed(data, e.Tag+uint64(layer))
}

// small is the shape that most tests use.
func small() Options {
	return Options{
		Layers: 2, LayerBytes: 5000, BlockTokens: 3, Run: 4, Slots: 40,
		Identity: []byte("weights"), UUID: [16]byte{1}, Label: "test", Sum: sumOf,
	}
}

// sizeOf is what a device needs for a store of these options.
func sizeOf(o Options) int64 {
	l, err := newLayout(&o, 1<<50)
	if err != nil {
		panic(err)
	}
	return l.end()
}

func formatted(t testing.TB, o Options) *simdev.Device {
	t.Helper()
	dev := simdev.New(simdev.Options{Name: "sim", Size: sizeOf(o)})
	if err := Format(context.Background(), dev, o); err != nil {
		t.Fatal(err)
	}
	return dev
}

// open opens a store that is closed and checked when the test ends.
func open(t testing.TB, dev device.Device, o Options) (*Store, Recovery) {
	t.Helper()
	s, r, err := Open(context.Background(), dev, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return s, r
}

func checked(t testing.TB, s *Store, deep bool) Report {
	t.Helper()
	r, err := s.Check(context.Background(), deep)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Problems {
		t.Error(p)
	}
	return r
}

// block is a block's entry and data, made from a number that its tag tells.
// Data is L layers of a stride each.
func block(g Geometry, slot Slot, n uint64) (Entry, []byte) {
	rng := rand.New(rand.NewPCG(n, 7))
	e := Entry{
		Slot: slot, Key: prefix.Key{Hi: n, Lo: n * 3}, Parent: prefix.Key{Hi: n - 1, Lo: (n - 1) * 3},
		Root: n == 1, Tag: n,
	}
	for range g.BlockTokens {
		e.Tokens = append(e.Tokens, int32(rng.Uint32()))
	}
	data := heapMemory(g.Layers * int(g.Stride))
	for l := range g.Layers {
		b := data[l*int(g.Stride):][:g.LayerBytes]
		for i := range b {
			b[i] = byte(n*31 + uint64(i)*uint64(l+1))
		}
		e.Sums = append(e.Sums, sumOf(&e, l, b))
	}
	return e, data
}

// transfer reads or writes the layers of a slot.
func transfer(dev device.Device, s *Store, write bool, slot Slot, data []byte) error {
	g := s.Geometry()
	done := make(chan *device.IO, g.Layers)
	var ios []*device.IO
	for l := range g.Layers {
		b := data[l*int(g.Stride):][:g.Stride]
		ios = append(ios, &device.IO{Write: write, Off: s.Off(slot, l), Buf: b, Done: func(io *device.IO) { done <- io }})
	}
	if err := dev.Submit(ios); err != nil {
		return err
	}
	var err error
	for range ios {
		if io := <-done; io.Err != nil {
			err = io.Err
		}
	}
	return err
}

// store writes and commits block n to a fresh slot.
func store(t testing.TB, dev device.Device, s *Store, n uint64) Slot {
	t.Helper()
	slots := s.Alloc(nil, 1)
	if len(slots) == 0 {
		t.Fatal("the store is full")
	}
	e, data := block(s.Geometry(), slots[0], n)
	if err := transfer(dev, s, true, slots[0], data); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(&e); err != nil {
		t.Fatal(err)
	}
	return slots[0]
}
