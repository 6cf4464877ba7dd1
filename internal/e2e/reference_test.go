package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/scheduler"
)

// Request is one generation by token ids.
type Request struct {
	Model     string
	Prompt    []int32
	MaxTokens int
	// Temperature 0 is greedy; anything else samples with Seed.
	Temperature float64
	Seed        int64
}

// Answer is what must be equal wherever a request was computed.
type Answer struct {
	Tokens []int32
	Hash   string
}

func (a Answer) equal(b Answer) bool { return a.Hash == b.Hash && slices.Equal(a.Tokens, b.Tokens) }

// reference computes answers in this process: one engine, one plain cache, one
// request at a time. It remembers what it computed.
type reference struct {
	mu     sync.Mutex
	models map[string]*engine.Model
	known  map[string]Answer
}

// references are shared by the tests, which ask for the same answers again and
// again. Engines live as long as the test process.
var references = &reference{models: map[string]*engine.Model{}, known: map[string]Answer{}}

// engine returns the random twin of a built-in model with a type of KV.
func (r *reference) engine(name string, dtype kernels.DType) (*engine.Model, error) {
	key := fmt.Sprint(name, dtype)
	if m := r.models[key]; m != nil {
		return m, nil
	}
	m, err := engine.Builtin("random-"+name, engine.Options{KVDType: dtype})
	r.models[key] = m
	return m, err
}

// want is the reference's answer to a request. It may be called from any
// goroutine.
func want(t testing.TB, q Request, dtype kernels.DType) Answer {
	t.Helper()
	r := references
	r.mu.Lock()
	defer r.mu.Unlock()
	key := fmt.Sprint(dtype, q)
	if a, ok := r.known[key]; ok {
		return a
	}
	m, err := r.engine(q.Model, dtype)
	if err != nil {
		t.Errorf("reference: %v", err)
		return Answer{}
	}
	a, err := compute(m, q)
	if err != nil {
		t.Errorf("reference: %v", err)
	}
	r.known[key] = a
	return a
}

// compute is generation at its plainest.
func compute(m *engine.Model, q Request) (Answer, error) {
	const chunk = 512 // any would give the same bits
	kv := engine.NewSimpleKV(m, len(q.Prompt)+q.MaxTokens)
	p := sampling.Default()
	p.Temperature, p.Seed = float32(q.Temperature), uint64(q.Seed)
	tokens := slices.Clone(q.Prompt)
	var hash uint64
	var scratch sampling.Scratch
	for done := 0; ; {
		end := min(len(tokens), done+chunk)
		seq := engine.Sequence{Tokens: tokens[done:end], Start: done}
		if end == len(tokens) {
			seq.Logits = engine.LastLogits
		}
		out, err := m.Forward(context.Background(), []engine.Sequence{seq}, kv)
		if err != nil {
			return Answer{}, err
		}
		if done = end; done < len(tokens) {
			continue
		}
		hash = scheduler.HashRow(hash, out.Logits[0])
		output := tokens[len(q.Prompt):]
		tok, err := sampling.Sample(out.Logits[0], q.Prompt, output, len(output), p, &scratch)
		if err != nil {
			return Answer{}, err
		}
		tokens = append(tokens, tok.ID)
		if len(tokens) == len(q.Prompt)+q.MaxTokens {
			return Answer{tokens[len(q.Prompt):], fmt.Sprintf("%016x", hash)}, nil
		}
	}
}

// text makes a prompt of n tokens that no other seed shares.
func text(seed uint64, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		seed += 0x9e3779b97f4a7c15
		z := (seed ^ seed>>30) * 0xbf58476d1ce4e5b9
		out[i] = int32(z >> 32 % 256)
	}
	return out
}
