package route_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/fabrictest"
	"github.com/kvlend/kvlend/nvlink/route"
	"github.com/kvlend/kvlend/nvlink/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// split is a fabric of which every stream is three, which batches take in turns.
type split struct{ nvlink.Fabric }

type turns struct {
	*route.Stream
	mu sync.Mutex
	k  int
}

func (s *turns) CopyBatch(pieces []nvlink.Copy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.k++
	return s.Stream.CopyBatch(pieces)
}

func (f split) NewStream(dev, name string) (nvlink.Stream, error) {
	s := &turns{}
	var err error
	s.Stream, err = three(f.Fabric, dev, name, func(nvlink.Copy) int { return s.k % 3 })
	return s, err
}

func three(f nvlink.Fabric, dev, name string, pick func(nvlink.Copy) int) (*route.Stream, error) {
	var subs []nvlink.Stream
	for range 3 {
		s, err := f.NewStream(dev, name)
		if err != nil {
			return nil, err
		}
		subs = append(subs, s)
	}
	return route.New(pick, subs...), nil
}

// What several streams do together is what one does.
func TestFabric(t *testing.T) {
	fabrictest.Run(t, fabrictest.Harness{
		Devices: [2]string{"gpu0", "gpu1"},
		New: func(t testing.TB) nvlink.Fabric {
			f, err := shm.New(shm.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return split{f}
		},
		NewArena: func(t testing.TB, _ nvlink.Fabric, name, device string, size int64) nvlink.Arena {
			a, err := shm.Create(name, device, size)
			if err != nil {
				t.Fatal(err)
			}
			return a
		},
	})
}

// The pieces of one batch go different ways, what comes after sees all of them,
// and an error of any is the next event's.
func TestPiecesOfABatch(t *testing.T) {
	f, err := shm.New(shm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := three(f, "gpu0", "s", func(c nvlink.Copy) int { return int(c.Src.Off) % 3 })
	if err != nil {
		t.Fatal(err)
	}
	var arenas [3]*shm.Arena
	for i := range arenas {
		if arenas[i], err = shm.Create("a", "gpu0", 64); err != nil {
			t.Fatal(err)
		}
		defer arenas[i].Close()
	}
	for i := range arenas[0].Bytes() {
		arenas[0].Bytes()[i] = byte(i)
	}
	broken := errors.New("broken")
	for i := range 2 {
		var pieces []nvlink.Copy
		for off := range int64(64) {
			pieces = append(pieces, nvlink.Copy{Dst: nvlink.Span{Arena: arenas[i+1], Off: off, Len: 1}, Src: nvlink.Span{Arena: arenas[i], Off: off, Len: 1}})
		}
		if err := s.CopyBatch(pieces); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := s.Call(func() error { return broken }); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, want := range []error{broken, nil} {
		ev, err := s.Record()
		if err != nil {
			t.Fatal(err)
		}
		if err := ev.Wait(context.Background()); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if !bytes.Equal(arenas[2].Bytes(), arenas[0].Bytes()) {
		t.Errorf("%v", arenas[2].Bytes())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestNobodyCarriesIt(t *testing.T) {
	f, err := shm.New(shm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sub, err := f.NewStream("gpu0", "s")
	if err != nil {
		t.Fatal(err)
	}
	s := route.New(func(nvlink.Copy) int { return 1 }, sub)
	defer s.Close()
	if err := s.CopyBatch([]nvlink.Copy{{}}); !errors.Is(err, nvlink.ErrBadSpan) {
		t.Errorf("%v", err)
	}
	ev, err := s.Record()
	if err != nil {
		t.Fatal(err)
	}
	if err := ev.Wait(context.Background()); err != nil {
		t.Error(err)
	}
}
