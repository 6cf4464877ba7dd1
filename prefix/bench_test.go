package prefix

import (
	"container/list"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
)

// Baselines: the usual way to do the same in Go. Keys are FNV-64a over the
// canonical CBOR of (parent, tokens, nothing), the index is an LRU of a map and a
// list with a lock, taken per key. It keeps no tokens and compares none. That is
// what routers for vLLM do, but lean: the encoder is made once, no logging, no
// set of holders per key.

type usualHash struct{ mode cbor.EncMode }

func newUsualHash(tb testing.TB) usualHash {
	mode, err := cbor.CanonicalEncOptions().EncMode()
	if err != nil {
		tb.Fatal(err)
	}
	return usualHash{mode}
}

func (h usualHash) next(parent uint64, tokens []int32) uint64 {
	b, err := h.mode.Marshal([]any{parent, tokens, nil})
	if err != nil {
		panic(err)
	}
	f := fnv.New64a()
	f.Write(b)
	return f.Sum64()
}

func (h usualHash) keys(tokens []int32) []uint64 {
	var keys []uint64
	k := uint64(0)
	for ; len(tokens) >= benchBlock; tokens = tokens[benchBlock:] {
		k = h.next(k, tokens[:benchBlock])
		keys = append(keys, k)
	}
	return keys
}

type usualIndex struct {
	mu    sync.Mutex
	limit int
	nodes map[uint64]*list.Element
	lru   *list.List
}

type usualEntry struct {
	key   uint64
	value int
}

func newUsualIndex(limit int) *usualIndex {
	return &usualIndex{limit: limit, nodes: map[uint64]*list.Element{}, lru: list.New()}
}

func (x *usualIndex) get(key uint64) (int, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, ok := x.nodes[key]
	if !ok {
		return 0, false
	}
	x.lru.MoveToFront(e)
	return e.Value.(*usualEntry).value, true
}

func (x *usualIndex) add(key uint64, value int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e, ok := x.nodes[key]; ok {
		x.lru.MoveToFront(e)
		return
	}
	x.nodes[key] = x.lru.PushFront(&usualEntry{key, value})
	if x.lru.Len() > x.limit {
		last := x.lru.Back()
		delete(x.nodes, x.lru.Remove(last).(*usualEntry).key)
	}
}

const benchBlock = 16

// compare runs both in turn and reports the medians, per key, and their ratio.
func compare(b *testing.B, keys int, ours, usual func()) {
	b.Helper()
	var took [2][]time.Duration
	for b.Loop() {
		for i, f := range []func(){ours, usual} {
			start := time.Now()
			f()
			took[i] = append(took[i], time.Since(start))
		}
	}
	var ns [2]float64
	for i := range took {
		slices.Sort(took[i])
		ns[i] = float64(took[i][len(took[i])/2].Nanoseconds()) / float64(keys)
	}
	b.ReportMetric(ns[0], "ns/key")
	b.ReportMetric(ns[1], "usual-ns/key")
	b.ReportMetric(ns[1]/ns[0], "usual/ours")
	b.ReportMetric(testing.AllocsPerRun(5, ours)/float64(keys), "allocs/key")
	b.ReportMetric(testing.AllocsPerRun(5, usual)/float64(keys), "usual-allocs/key")
	b.ReportMetric(0, "ns/op") // both together: says nothing
}

var sink Key

func hashAll(tokens []int32) {
	k := Root([]byte("model"))
	for ; len(tokens) >= benchBlock; tokens = tokens[benchBlock:] {
		k = k.Next(tokens[:benchBlock])
	}
	sink = k
}

func benchTokens(n int, seed uint64) []int32 {
	r := rand.New(rand.NewPCG(seed, 1))
	t := make([]int32, n)
	for i := range t {
		t[i] = r.Int32N(151936)
	}
	return t
}

// BenchmarkKey hashes a prompt of 64 blocks.
func BenchmarkKey(b *testing.B) {
	tokens := benchTokens(64*benchBlock, 1)
	h := newUsualHash(b)
	compare(b, 64, func() { hashAll(tokens) }, func() { h.keys(tokens) })
}

// BenchmarkHash128K hashes a prompt of 131,072 tokens, 8192 blocks.
func BenchmarkHash128K(b *testing.B) {
	tokens := benchTokens(128<<10, 1)
	h := newUsualHash(b)
	keys := len(tokens) / benchBlock
	compare(b, keys, func() { hashAll(tokens) }, func() { h.keys(tokens) })
}

// benchIndex is an index of chains of 64 blocks, of which the first half is one
// of eight system prompts.
type benchIndex struct {
	x       *Index[int]
	usual   *usualIndex
	hash    usualHash
	root    Key
	prompts [][]int32
	keys    [][]uint64 // the usual keys of the prompts
}

const (
	benchChain  = 64
	benchShared = 32
)

func newBenchIndex(b *testing.B, prompts int) *benchIndex {
	x, err := New[int](Options{BlockTokens: benchBlock, Classes: 2, Cost: func(class, depth int) float64 {
		return float64(class) + 0.01*float64(depth)
	}})
	if err != nil {
		b.Fatal(err)
	}
	f := &benchIndex{x: x, usual: newUsualIndex(1 << 30), root: Root([]byte("model"))}
	f.hash = newUsualHash(b)
	for i := range prompts {
		p := slices.Concat(
			benchTokens(benchShared*benchBlock, uint64(i%8)),
			benchTokens((benchChain-benchShared)*benchBlock, uint64(100+i)))
		f.prompts = append(f.prompts, p)
		f.keys = append(f.keys, f.hash.keys(p))
	}
	return f
}

func (f *benchIndex) usualKeys(prompt int, fromTokens bool) []uint64 {
	if fromTokens {
		return f.hash.keys(f.prompts[prompt])
	}
	return f.keys[prompt]
}

// admit puts a prompt into our index and lets go of it again.
func (f *benchIndex) admit(p []int32, chain []*Node[int]) []*Node[int] {
	chain = f.x.Match(f.root, p, chain[:0])
	f.x.Ref(chain...)
	for at := len(chain) * benchBlock; at < len(p); at += benchBlock {
		var parent *Node[int]
		if at > 0 {
			parent = chain[len(chain)-1]
		}
		n, _ := f.x.Insert(parent, f.root, p[at:at+benchBlock], 0, at)
		chain = append(chain, n)
	}
	f.x.Unref(chain...)
	return chain
}

// BenchmarkLookup looks up prompts that are there, 64 blocks each. Ours begins
// with tokens and compares them; the usual way begins with tokens too, or is
// given its keys.
func BenchmarkLookup(b *testing.B) {
	for _, prompts := range []int{100, 3000} {
		f := newBenchIndex(b, prompts)
		var chain []*Node[int]
		for i, p := range f.prompts {
			chain = f.admit(p, chain)
			for _, k := range f.keys[i] {
				f.usual.add(k, i)
			}
		}
		for _, from := range []string{"tokens", "keys"} {
			b.Run(fmt.Sprintf("blocks=%d/usual-from=%s", f.x.Len(), from), func(b *testing.B) {
				f.lookup(b, from == "tokens")
			})
		}
	}
}

func (f *benchIndex) lookup(b *testing.B, fromTokens bool) {
	const batch = 16 // prompts between looks at the clock
	var chain []*Node[int]
	ours, usual := 0, 0
	next := func(i int) int { return (i + 1237) % len(f.prompts) }
	compare(b, batch*benchChain, func() {
		for range batch {
			ours = next(ours)
			chain = f.x.Match(f.root, f.prompts[ours], chain[:0])
			if len(chain) != benchChain {
				b.Fatal("a prompt is not there")
			}
		}
	}, func() {
		for range batch {
			usual = next(usual)
			for _, k := range f.usualKeys(usual, fromTokens) {
				if _, ok := f.usual.get(k); !ok {
					b.Fatal("a prompt is not there")
				}
			}
		}
	})
}

// BenchmarkInsert is the life of a prompt's 32 blocks that are not shared, in a
// full index: matched (the shared half is found), hashed, inserted, let go, and
// each an eviction of another. The usual way looks up or adds all 64 keys. Both
// are counted per added key.
func BenchmarkInsert(b *testing.B) {
	for _, from := range []string{"tokens", "keys"} {
		b.Run("usual-from="+from, func(b *testing.B) {
			f := newBenchIndex(b, 1000)
			f.usual.limit = 10_000
			var chain, gone []*Node[int]
			ours, usual := 0, 0
			compare(b, benchChain-benchShared, func() {
				ours = (ours + 1) % len(f.prompts)
				chain = f.admit(f.prompts[ours], chain)
				for f.x.Len() > f.usual.limit {
					gone = f.x.Remove(f.x.Victim(0), gone[:0])
				}
			}, func() {
				usual = (usual + 1) % len(f.prompts)
				for _, k := range f.usualKeys(usual, from == "tokens") {
					f.usual.add(k, usual)
				}
			})
		})
	}
}
