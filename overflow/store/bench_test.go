package store

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store/simdev"
	"github.com/kvlend/kvlend/prefix"
)

// million is the shape of Qwen3-8B's blocks of 16 tokens, one million of them.
func million() Options {
	return Options{Layers: 36, LayerBytes: 64 << 10, BlockTokens: 16, Slots: 1 << 20, UUID: [16]byte{1}}
}

// benchKey is a key as good as a hash.
func benchKey(n uint64) prefix.Key {
	return prefix.Key{Hi: n * 0x9e3779b97f4a7c15, Lo: n*0xd1342543de82ef95 + 1}
}

// full is a store of the million on a simulated device, all slots live.
func full(b *testing.B) (*simdev.Device, *Store) {
	b.Helper()
	dev := formatted(b, million())
	return dev, filled(b, dev)
}

// filled opens a store of the million and commits to all its slots.
func filled(b *testing.B, dev device.Device) *Store {
	b.Helper()
	o := million()
	s, _ := open(b, dev, o)
	e := benchEntry(&o)
	slots := s.Alloc(nil, o.Slots)
	for i, slot := range slots {
		e.fill(slot, uint64(i))
		if _, err := s.Commit(&e.Entry); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Flush(context.Background()); err != nil {
		b.Fatal(err)
	}
	return s
}

type benchmarked struct{ Entry }

func benchEntry(o *Options) *benchmarked {
	return &benchmarked{Entry{Tokens: make([]int32, o.BlockTokens), Sums: make([]uint64, o.Layers)}}
}

func (e *benchmarked) fill(slot Slot, n uint64) {
	e.Slot, e.Key, e.Parent, e.Tag = slot, benchKey(n), benchKey(n-1), n
	e.Sums[0] = n
}

// BenchmarkMillion times single operations on a store of a million blocks, in
// random order where there is one.
func BenchmarkMillion(b *testing.B) {
	_, s := full(b)
	o := million()
	b.Run("lookup", func(b *testing.B) {
		b.ReportAllocs()
		rng := rand.New(rand.NewPCG(1, 1))
		for b.Loop() {
			if _, ok := s.Lookup(benchKey(rng.Uint64N(uint64(o.Slots)))); !ok {
				b.Fatal("not found")
			}
		}
	})
	// Frees single slots all over the store, so that the free ones lie in
	// short runs, and takes them again.
	var scattered []Slot
	rng := rand.New(rand.NewPCG(2, 2))
	for _, i := range rng.Perm(o.Slots)[:1<<17] {
		scattered = append(scattered, Slot(i))
	}
	s.Free(scattered)
	slots := s.Alloc(nil, len(scattered))
	b.Run("free", func(b *testing.B) {
		b.ReportAllocs()
		at := 0
		for b.Loop() {
			if at == len(slots) {
				b.StopTimer()
				slots, at = s.Alloc(slots[:0], len(slots)), 0
				b.StartTimer()
			}
			s.Free(slots[at : at+1])
			at++
		}
		slots = s.Alloc(slots[at:], at)
	})
	b.Run("alloc", func(b *testing.B) {
		b.ReportAllocs()
		s.Free(slots)
		got := make([]Slot, 0, len(slots))
		for b.Loop() {
			if len(got) == cap(got) {
				b.StopTimer()
				s.Free(got)
				got = got[:0]
				b.StartTimer()
			}
			got = s.Alloc(got, 1)
		}
		s.Free(got)
		slots = s.Alloc(slots[:0], cap(got))
	})
	b.Run("commit", func(b *testing.B) {
		b.ReportAllocs()
		e := benchEntry(&o)
		at, n := 0, uint64(1<<40)
		for b.Loop() {
			if at == len(slots) {
				b.StopTimer()
				s.Free(slots)
				slots, at = s.Alloc(slots[:0], len(slots)), 0
				b.StartTimer()
			}
			n++
			e.fill(slots[at], n)
			if _, err := s.Commit(&e.Entry); err != nil {
				b.Fatal(err)
			}
			at++
		}
	})
}

// BenchmarkRecovery opens a store of a million blocks.
func BenchmarkRecovery(b *testing.B) {
	dev, s := full(b)
	s.Close(context.Background())
	reopen(b, dev)
}

// BenchmarkRecoveryFromFile does so on a file, whose log was really written
// and is read past the page cache.
func BenchmarkRecoveryFromFile(b *testing.B) {
	dev := file(b)
	filled(b, dev).Close(context.Background())
	reopen(b, dev)
}

// file is a formatted file for the million. The blocks themselves are holes:
// 2.4 TB that nothing reads.
func file(b *testing.B) device.Device {
	b.Helper()
	ctx := context.Background()
	e, err := device.NewEngine(device.EngineOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { e.Close() })
	path := filepath.Join(b.TempDir(), "million")
	f, err := os.Create(path)
	if err == nil {
		err = errors.Join(f.Truncate(sizeOf(million())), f.Close())
	}
	if err != nil {
		b.Fatal(err)
	}
	dev, err := device.Open(ctx, e, device.Options{Name: "million", Path: path})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { dev.Close() })
	b.Logf("%+v", dev.Info())
	if err := Format(ctx, dev, million()); err != nil {
		b.Fatal(err)
	}
	return dev
}

func reopen(b *testing.B, dev device.Device) {
	for b.Loop() {
		s, r, err := Open(context.Background(), dev, million())
		if err != nil || r.Entries != million().Slots {
			b.Fatal(err, r)
		}
		b.StopTimer()
		s.Close(context.Background())
		b.StartTimer()
		b.ReportMetric(float64(r.Pages*4096)/1e6, "log-MB")
	}
}

// BenchmarkCheckpoint writes a million live blocks to the other area of a file.
func BenchmarkCheckpoint(b *testing.B) {
	s := filled(b, file(b))
	for b.Loop() {
		s.logMu.Lock()
		_, err := s.checkpoint(context.Background(), nil)
		s.logMu.Unlock()
		if err != nil {
			b.Fatal(err)
		}
	}
}
