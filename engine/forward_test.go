package engine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/engine"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func builtin(t testing.TB, name string, opt engine.Options) *engine.Model {
	t.Helper()
	m, err := engine.Builtin(name, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestForwardRefuses(t *testing.T) {
	m := builtin(t, "random-cedar", engine.Options{})
	for text, batch := range map[string][]engine.Sequence{
		"no sequences":                   nil,
		"sequence 1 has no tokens":       {{Tokens: []int32{1}}, {}},
		"token 1 is 320, want 0 to 319":  {{Tokens: []int32{1, 320}}},
		"token 0 is -1":                  {{Tokens: []int32{-1}}},
		"positions -1 to -1":             {{Tokens: []int32{1}, Start: -1}},
		"positions 16383 to 16384":       {{Tokens: []int32{1, 2}, Start: 16383}},
		"logits mode 3":                  {{Tokens: []int32{1}, Logits: 3}},
		"layer 0: 2 block tables for 1 ": {{Tokens: []int32{1}}},
	} {
		_, err := m.Forward(context.Background(), batch, engine.NewSimpleKVs(m, 2, 16))
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want one with %q", err, text)
		}
	}
}

// brokenKV returns bad tables or an error from some layer on.
type brokenKV struct {
	*engine.SimpleKV
	at    int
	err   error
	table []int64
	calls []string
}

func (kv *brokenKV) Layer(l int) ([][]int64, error) {
	kv.calls = append(kv.calls, fmt.Sprint("layer ", l))
	if l < kv.at {
		return kv.SimpleKV.Layer(l)
	}
	return [][]int64{kv.table}, kv.err
}

func (kv *brokenKV) Done(l int) { kv.calls = append(kv.calls, fmt.Sprint("done ", l)) }

func TestForwardStopsAtKVErrors(t *testing.T) {
	m := builtin(t, "random-cedar", engine.Options{})
	batch := []engine.Sequence{{Tokens: []int32{1, 2, 3}, Start: 20, Logits: engine.LastLogits}}
	simple := engine.NewSimpleKV(m, 40)
	lost := errors.New("lost")
	size := m.KVLayout().LayerBlockBytes()
	for name, kv := range map[string]*brokenKV{
		"error":         {at: 2, err: lost},
		"short table":   {at: 2, table: []int64{0}},
		"negative":      {at: 2, table: []int64{0, -1}},
		"past the end":  {at: 2, table: []int64{0, int64(len(simple.Memory())) - size + 1}},
		"absurd offset": {at: 2, table: []int64{1 << 62, 0}},
	} {
		kv.SimpleKV = simple
		_, err := m.Forward(context.Background(), batch, kv)
		if err == nil || (kv.err != nil && err != kv.err) {
			t.Errorf("%s: error %v", name, err)
		}
		if got := fmt.Sprint(kv.calls); got != "[layer 0 done 0 layer 1 done 1 layer 2]" {
			t.Errorf("%s: calls %s", name, got)
		}
	}
	if _, err := m.Forward(context.Background(), batch, simple); err != nil {
		t.Errorf("after failed passes: %v", err)
	}
}

// cancelKV cancels a context when a layer is done.
type cancelKV struct {
	*engine.SimpleKV
	cancel context.CancelCauseFunc
	layers int
}

func (kv *cancelKV) Done(l int) {
	kv.layers++
	if l == 1 {
		kv.cancel(errors.New("client gone"))
	}
}

func TestForwardStopsWhenCancelled(t *testing.T) {
	m := builtin(t, "random-cedar", engine.Options{})
	ctx, cancel := context.WithCancelCause(context.Background())
	kv := &cancelKV{SimpleKV: engine.NewSimpleKV(m, 16), cancel: cancel}
	_, err := m.Forward(ctx, []engine.Sequence{{Tokens: []int32{1}}}, kv)
	if err == nil || err.Error() != "client gone" || kv.layers != 2 {
		t.Errorf("error %v after %d layers, want the cause after 2", err, kv.layers)
	}
}

// TestForwardAllocates checks that passes of a size seen before allocate no
// activations: what remains is the operators' bookkeeping.
func TestForwardAllocates(t *testing.T) {
	m := builtin(t, "random-atlas", engine.Options{Threads: 1})
	kv := engine.NewSimpleKVs(m, 2, 300)
	long := randomTokens(1, 200, 320)
	prefill := []engine.Sequence{{Tokens: long, Logits: engine.LastLogits}, {Tokens: long[:100]}}
	decode := []engine.Sequence{{Tokens: long[:1], Start: 200, Logits: engine.LastLogits}, {Tokens: long[:1], Start: 100, Logits: engine.LastLogits}}
	run := func(batch []engine.Sequence) {
		if _, err := m.Forward(context.Background(), batch, kv); err != nil {
			t.Fatal(err)
		}
	}
	run(prefill)
	run(decode)
	for name, batch := range map[string][]engine.Sequence{"decode": decode, "prefill": prefill} {
		const passes, limit = 10, 48 << 10
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range passes {
			run(batch)
		}
		runtime.ReadMemStats(&after)
		bytes, objects := (after.TotalAlloc-before.TotalAlloc)/passes, (after.Mallocs-before.Mallocs)/passes
		t.Logf("%s: %d bytes in %d objects per pass", name, bytes, objects)
		if bytes > limit {
			t.Errorf("%s: %d bytes allocated per pass, want at most %d", name, bytes, limit)
		}
	}
}

func TestOutputs(t *testing.T) {
	m := builtin(t, "random-birch", engine.Options{})
	kv := engine.NewSimpleKVs(m, 3, 16)
	out, err := m.Forward(context.Background(), []engine.Sequence{
		{Tokens: []int32{1, 2, 3}, Logits: engine.AllLogits}, {Tokens: []int32{4}}, {Tokens: []int32{5, 6}, Logits: engine.LastLogits}}, kv)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Logits) != 4 || out.Vocab != 320 || len(out.Logits[3]) != 320 {
		t.Errorf("%d rows of %d, want 4 of 320", len(out.Logits), out.Vocab)
	}
	kv.Use(1)
	out, err = m.Forward(context.Background(), []engine.Sequence{{Tokens: []int32{7}, Start: 1}}, kv)
	if err != nil || len(out.Logits) != 0 {
		t.Errorf("%d rows, error %v, want none", len(out.Logits), err)
	}
}
