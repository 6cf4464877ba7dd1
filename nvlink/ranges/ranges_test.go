package ranges_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/ranges"
	"github.com/kvlend/kvlend/nvlink/shm"
)

// far is an arena that the host cannot address, ranger a stream that can.
type far struct{ nvlink.Arena }

func (far) Bytes() []byte { return nil }

type ranger struct {
	nvlink.Stream
	hashed, wiped int
}

func (r *ranger) HashBatch(spans []nvlink.Span, _, _ []uint64) error {
	r.hashed += len(spans)
	return nil
}

func (r *ranger) WipeBatch(spans []nvlink.Span) error {
	r.wiped += len(spans)
	return nil
}

func setup(t *testing.T) (nvlink.Stream, *shm.Arena) {
	t.Helper()
	fab, err := shm.New(shm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fab.Close() })
	s, err := fab.NewStream("gpu0", "test")
	if err != nil {
		t.Fatal(err)
	}
	a, err := shm.Create("a", "gpu0", 4096)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); a.Close() })
	for i := range a.Bytes() {
		a.Bytes()[i] = byte(i * 31)
	}
	return s, a
}

func wait(t *testing.T, s nvlink.Stream) {
	t.Helper()
	ev, err := s.Record()
	if err == nil {
		err = ev.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestHostMemory(t *testing.T) {
	s, a := setup(t)
	spans := []nvlink.Span{{Arena: a, Off: 0, Len: 300}, {Arena: a, Off: 300, Len: 1}, {Arena: a, Off: 4000, Len: 96}}
	seeds, sums := []uint64{1, 2, 3}, make([]uint64, 3)
	before := bytes.Clone(a.Bytes())
	if err := ranges.Hash(s, spans, seeds, sums); err != nil {
		t.Fatal(err)
	}
	if err := ranges.Wipe(s, spans[:2]); err != nil { // after the checksums
		t.Fatal(err)
	}
	wait(t, s)
	for i, sp := range spans {
		if want := xxh3.HashSeed(before[sp.Off:][:sp.Len], seeds[i]); sums[i] != want {
			t.Errorf("sum %d: %x, want %x", i, sums[i], want)
		}
	}
	clear(before[:301])
	if !bytes.Equal(a.Bytes(), before) {
		t.Error("something else was wiped, or not all of it")
	}
}

func TestDeviceMemory(t *testing.T) {
	s, a := setup(t)
	spans := []nvlink.Span{{Arena: far{a}, Len: 1}, {Arena: a, Len: 1}}
	r := &ranger{Stream: s}
	if err := errors.Join(ranges.Hash(r, spans, make([]uint64, 2), make([]uint64, 2)), ranges.Wipe(r, spans)); err != nil || r.hashed != 2 || r.wiped != 2 {
		t.Errorf("%v, %d hashed, %d wiped; want the stream to do it", err, r.hashed, r.wiped)
	}
	if !ranges.Can(r, far{a}) || ranges.Can(s, far{a}) || !ranges.Can(s, a) {
		t.Error("Can is wrong")
	}
}

func TestRefusals(t *testing.T) {
	s, a := setup(t)
	one := make([]uint64, 1)
	for name, sp := range map[string]nvlink.Span{
		"no arena": {Len: 1}, "negative": {Arena: a, Off: -1, Len: 1}, "empty": {Arena: a},
		"beyond": {Arena: a, Off: 4096, Len: 1}, "too long": {Arena: a, Off: 1, Len: 4096}, "out of reach": {Arena: far{a}, Len: 1},
	} {
		if err := ranges.Hash(s, []nvlink.Span{sp}, one, one); !errors.Is(err, nvlink.ErrBadSpan) {
			t.Errorf("%s: Hash says %v", name, err)
		}
		if err := ranges.Wipe(s, []nvlink.Span{sp}); !errors.Is(err, nvlink.ErrBadSpan) {
			t.Errorf("%s: Wipe says %v", name, err)
		}
	}
	if err := ranges.Hash(s, []nvlink.Span{{Arena: a, Len: 1}}, nil, one); err == nil {
		t.Error("lists of different lengths are accepted")
	}
}
