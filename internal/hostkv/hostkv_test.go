package hostkv

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/faultfabric"
	"github.com/kvlend/kvlend/nvlink/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scattered is KV in an arena, the blocks of all sequences in an odd order.
type scattered struct {
	arena  *shm.Arena
	layers int
	block  int64
	tables [][]int64 // numbers of blocks
	out    [][]int64
	calls  []string
	errAt  int // layer whose history is lost
}

var errLost = errors.New("lost")

func (s *scattered) Memory() []byte { return s.arena.Bytes() }

func (s *scattered) Layer(l int) ([][]int64, error) {
	s.calls = append(s.calls, "layer")
	if l == s.errAt {
		return nil, errLost
	}
	for i, t := range s.tables {
		for j, n := range t {
			s.out[i][j] = (n*int64(s.layers) + int64(l)) * s.block
		}
	}
	return s.out, nil
}

func (s *scattered) Written(int) { s.calls = append(s.calls, "written") }
func (s *scattered) Done(int)    { s.calls = append(s.calls, "done") }

type rig struct {
	model *engine.Model
	fab   nvlink.Fabric
	arena *shm.Arena
	kv    *scattered
}

const blocks = 24

func newRig(t *testing.T) *rig {
	t.Helper()
	m, err := engine.Builtin("random-cedar", engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	r := &rig{model: m}
	shmFab, err := shm.New(shm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r.fab = shmFab
	t.Cleanup(func() { r.fab.Close() })
	block := m.KVLayout().LayerBlockBytes()
	layers := m.Config().Layers
	if r.arena, err = shm.Create("kv", "gpu0", blocks*int64(layers)*block); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.arena.Close() })
	r.kv = &scattered{arena: r.arena, layers: layers, block: block, errAt: -1}
	r.kv.use([]int64{5, 3, 17, 0}, []int64{5, 9}) // the first block is shared
	return r
}

func (s *scattered) use(tables ...[]int64) {
	s.tables, s.out = tables, nil
	for _, t := range tables {
		s.out = append(s.out, make([]int64, len(t)))
	}
}

func (r *rig) runner(t *testing.T, fab nvlink.Fabric) *Runner {
	t.Helper()
	s, err := fab.NewStream("gpu0", "host")
	if err != nil {
		t.Fatal(err)
	}
	out, err := New(r.model, Options{Arena: r.arena, Stream: s, Host: func(n int64) (nvlink.Arena, error) { return shm.Create("host", "host", n) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), out.Close()); err != nil && !errors.Is(err, faultfabric.ErrInjected) {
			t.Error(err)
		}
	})
	return out
}

// passes are a prefill of two sequences, a chunk of one, and decoding of both.
func passes() [][]engine.Sequence {
	tokens := func(from, n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = int32((from+i)*37%250 + 1)
		}
		return out
	}
	return [][]engine.Sequence{
		{{Tokens: tokens(0, 20), Logits: engine.LastLogits}, {Tokens: tokens(0, 16), Logits: engine.AllLogits}},
		{{Tokens: tokens(20, 30), Start: 20, Logits: engine.LastLogits}, {Tokens: tokens(90, 1), Start: 16, Logits: engine.LastLogits}},
		{{Tokens: tokens(50, 1), Start: 50, Logits: engine.LastLogits}, {Tokens: tokens(91, 1), Start: 17, Logits: engine.LastLogits}},
	}
}

// run runs all passes and returns every row of logits, and the arena.
func (r *rig) run(t *testing.T, engine engine.Runner) (rows [][]float32, arena []byte) {
	t.Helper()
	clear(r.arena.Bytes())
	for i, batch := range passes() {
		out, err := engine.Forward(t.Context(), batch, r.kv)
		if err != nil {
			t.Fatalf("pass %d: %v", i, err)
		}
		for _, row := range out.Logits {
			rows = append(rows, slices.Clone(row))
		}
	}
	return rows, bytes.Clone(r.arena.Bytes())
}

// TestNoBitDiffers: logits and what is left in the arena are the same as without
// the copies.
func TestNoBitDiffers(t *testing.T) {
	r := newRig(t)
	wantRows, wantArena := r.run(t, r.model)
	calls := r.kv.calls
	r.kv.calls = nil
	rows, arena := r.run(t, r.runner(t, r.fab))
	if !slices.EqualFunc(rows, wantRows, slices.Equal) {
		t.Error("logits differ")
	}
	if !bytes.Equal(arena, wantArena) {
		t.Error("the KV in the arena differs")
	}
	if !slices.Equal(calls, r.kv.calls) {
		t.Errorf("calls %v, want %v", r.kv.calls, calls)
	}
}

// TestGrows: a longer batch gets more memory, and the arena's bytes survive it.
func TestGrows(t *testing.T) {
	r := newRig(t)
	run := r.runner(t, r.fab)
	if _, err := run.Forward(t.Context(), passes()[0], r.kv); err != nil {
		t.Fatal(err)
	}
	first := run.memory.Size()
	long := make([]int64, 0, 80)
	for i := range 80 {
		long = append(long, int64(i%blocks))
	}
	r.kv.use(long)
	if _, err := run.Forward(t.Context(), []engine.Sequence{{Tokens: []int32{1}, Start: 16*80 - 1}}, r.kv); err != nil {
		t.Fatal(err)
	}
	if run.memory.Size() <= first {
		t.Errorf("%d bytes for 80 blocks, %d for 6", run.memory.Size(), first)
	}
}

func TestErrors(t *testing.T) {
	r := newRig(t)
	run := r.runner(t, r.fab)
	r.kv.errAt = 1
	if _, err := run.Forward(t.Context(), passes()[0], r.kv); !errors.Is(err, errLost) {
		t.Errorf("lost history: %v", err)
	}
	r.kv.errAt = -1
	if _, err := run.Forward(t.Context(), nil, r.kv); err == nil {
		t.Error("an empty batch was computed")
	}
	if _, err := run.Forward(t.Context(), []engine.Sequence{{Tokens: []int32{1}, Start: -5}}, r.kv); err == nil {
		t.Error("a negative position was computed")
	}
	r.kv.use([]int64{1})
	if _, err := run.Forward(t.Context(), []engine.Sequence{{Tokens: []int32{1}, Start: 16}}, r.kv); err == nil || !strings.Contains(err.Error(), "has 1 blocks, want 2") {
		t.Errorf("a table that is too short: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := run.Forward(ctx, passes()[0], r.kv); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := New(r.model, Options{}); err == nil {
		t.Error("options without anything were accepted")
	}
}

// TestFailedCopies: whichever copy fails, the pass does, and nothing is said to be
// written that may not be.
func TestFailedCopies(t *testing.T) {
	r := newRig(t)
	copies := 2 * r.model.Config().Layers
	for n := 1; n <= copies; n++ {
		fab, err := shm.New(shm.Config{})
		if err != nil {
			t.Fatal(err)
		}
		bad := faultfabric.Wrap(fab, faultfabric.Config{FailCopy: n})
		run := r.runner(t, bad)
		r.kv.calls = nil
		if _, err := run.Forward(t.Context(), passes()[0], r.kv); !errors.Is(err, faultfabric.ErrInjected) {
			t.Errorf("copy %d of %d failed, and the pass says %v", n, copies, err)
		}
		written := 0
		for _, c := range r.kv.calls {
			if c == "written" {
				written++
			}
		}
		if written != (n-1)/2 {
			t.Errorf("copy %d failed: %d layers are said to be written, want %d", n, written, (n-1)/2)
		}
		bad.Close()
	}
}

func TestStaging(t *testing.T) {
	for n, want := range map[int]int64{0: 64, 64: 64, 65: 128, 200: 256, 256: 256} {
		if got := Staging(4096, n); got != want*4096 {
			t.Errorf("%d blocks: %d bytes, want %d blocks", n, got, want)
		}
	}
}
