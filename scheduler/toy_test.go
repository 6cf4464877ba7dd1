package scheduler

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/prefix"
)

const (
	toyLayers = 2
	toyVocab  = 48
	toyElem   = 8 // bytes of KV of a token in a layer
)

func mix(h, v uint64) uint64 {
	h ^= v + 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// toyModel is a language model whose logits depend on every token so far, and
// only through KV memory: a lost, stale or misplaced block changes them.
type toyModel struct {
	maxContext int
	block      int
	layerTime  time.Duration                       // slept before each layer
	before     func(batch []engine.Sequence) error // called by Forward first
	batches    [][]engine.Sequence                 // all that were computed, if record
	record     bool
	out        engine.Output
}

func (m *toyModel) Config() *engine.Config {
	return &engine.Config{Name: "toy", Layers: toyLayers, Vocab: toyVocab, MaxContext: m.maxContext}
}

func (m *toyModel) KVLayout() kernels.KVLayout { return kernels.KVLayout{BlockTokens: m.block} }

func (m *toyModel) Forward(ctx context.Context, batch []engine.Sequence, kv engine.KV) (*engine.Output, error) {
	if m.record {
		m.batches = append(m.batches, append([]engine.Sequence(nil), batch...))
	}
	if m.before != nil {
		if err := m.before(batch); err != nil {
			return nil, err
		}
	}
	mem := kv.Memory()
	var last []uint64
	for l := range toyLayers {
		if m.layerTime > 0 {
			time.Sleep(m.layerTime) // inside a synctest bubble
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		tables, err := kv.Layer(l)
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", l, err)
		}
		last = last[:0]
		for i, s := range batch {
			last = append(last, m.layer(l, mem, tables[i], s))
		}
		kv.Written(l)
		kv.Done(l)
	}
	m.out = engine.Output{Vocab: toyVocab}
	for i, s := range batch {
		if s.Logits == engine.LastLogits {
			m.out.Logits = append(m.out.Logits, toyLogits(last[i]))
		}
	}
	return &m.out, nil
}

// layer writes the new tokens' KV of layer l and returns a digest of the
// layer's whole KV. Layer 0 stores the tokens, layer 1 a digest of layer 0 up
// to each position, kept beside it as a running value.
func (m *toyModel) layer(l int, mem []byte, table []int64, s engine.Sequence) uint64 {
	at := func(pos int) []byte { return mem[table[pos/m.block]+int64(pos%m.block*toyElem):] }
	var digest uint64
	for pos := range s.Start {
		digest = mix(digest, binary.LittleEndian.Uint64(at(pos)))
	}
	for i, tok := range s.Tokens {
		pos := s.Start + i
		v := mix(uint64(tok)<<8|uint64(l), digest)
		binary.LittleEndian.PutUint64(at(pos), v)
		digest = mix(digest, v)
	}
	return digest
}

func toyLogits(digest uint64) []float32 {
	row := make([]float32, toyVocab)
	for i := range row {
		row[i] = float32(int32(mix(digest, uint64(i))>>40))/float32(1<<21) - 4
	}
	return row
}

// answer is what a request should produce.
type answer struct {
	tokens []int32
	hash   uint64
	finish string
}

// flatKV is one sequence's KV in contiguous memory.
type flatKV struct {
	mem    []byte
	blocks int
	block  int
}

func (k *flatKV) Memory() []byte { return k.mem }
func (k *flatKV) Written(int)    {}
func (k *flatKV) Done(int)       {}
func (k *flatKV) Layer(l int) ([][]int64, error) {
	t := make([]int64, k.blocks)
	for i := range t {
		t[i] = int64((l*k.blocks + i) * k.block * toyElem)
	}
	return [][]int64{t}, nil
}

// reference computes a request alone: for each token all of the sequence from
// nothing, without chunks, batches or a cache that outlives the token.
func reference(r Request) answer {
	const block = 8
	m := &toyModel{block: block}
	seq := append([]int32(nil), r.Tokens...)
	a := answer{finish: FinishLength}
	var scratch sampling.Scratch
	for i := range r.MaxTokens {
		n := (len(seq) + block - 1) / block
		kv := &flatKV{mem: make([]byte, toyLayers*n*block*toyElem), blocks: n, block: block}
		out, err := m.Forward(context.Background(), []engine.Sequence{{Tokens: seq, Logits: engine.LastLogits}}, kv)
		if err != nil {
			panic(err)
		}
		a.hash = HashRow(a.hash, out.Logits[0])
		tok, err := sampling.Sample(out.Logits[0], r.Tokens, a.tokens, i, r.Sampling, &scratch)
		if err != nil {
			panic(err)
		}
		a.tokens = append(a.tokens, tok.ID)
		seq = append(seq, tok.ID)
		for _, id := range r.StopIDs {
			if id == tok.ID && !r.IgnoreEOS {
				a.finish = FinishStop
				return a
			}
		}
	}
	return a
}

// toyFaults are the misfortunes of a toyCache: probabilities per call, and how
// many may happen in all.
type toyFaults struct {
	refuse, evict, lose, fail float64
	budget                    int
	reclaim                   bool // lent blocks are taken back now and then
}

// toyCache is a Cache over scattered blocks. It checks the scheduler's side of
// the contract and overwrites whatever KV is not valid any more.
type toyCache struct {
	block, total int // total: blocks that could ever be had
	changed      chan struct{}
	mem          []byte
	lendDelay    time.Duration // until asked-for blocks come; 0: they never do

	mu       sync.Mutex
	rng      *rand.Rand
	faults   toyFaults
	limit    int // blocks to be had now
	asked    bool
	free     []int
	held     map[uint64]*toyHeld
	zombies  []int // evicted in a step that still uses them
	evicted  []uint64
	open     *toyStep
	refs     map[int]int // sequences per block
	keep     *toyKeep    // of a toyPrefix
	watch    *watcher
	streams  time.Duration // of every second sequence, a step
	reserves int           // calls of Reserve and Admit
	firsts   []uint64      // ids in order of their first admission
	seen     map[uint64]bool
	errs     []error
}

type toyHeld struct {
	blocks  []int
	tokens  int // reserved
	written int
	admission
}

// admission is what a toyPrefix knows of a sequence.
type admission struct {
	root   prefix.Key
	text   []int32 // the tokens that are known
	cached int
}

func newToyCache(seed uint64, block, limit, total int) *toyCache {
	c := &toyCache{
		block: block, total: total, limit: limit,
		changed: make(chan struct{}, 1),
		mem:     make([]byte, total*toyLayers*block*toyElem),
		rng:     rand.New(rand.NewPCG(seed, 1)),
		held:    map[uint64]*toyHeld{},
		refs:    map[int]int{},
		seen:    map[uint64]bool{},
	}
	c.free = c.rng.Perm(total)
	return c
}

func (c *toyCache) BlockTokens() int         { return c.block }
func (c *toyCache) MaxTokens() int           { return c.total * c.block }
func (c *toyCache) Changed() <-chan struct{} { return c.changed }

func (c *toyCache) StepCost(id uint64) (int64, time.Duration) {
	if id%2 == 0 {
		return int64(c.streams), c.streams
	}
	return 0, 0
}

func (c *toyCache) signal() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *toyCache) broken(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

// luck draws a fault. The caller holds mu.
func (c *toyCache) luck(p float64) bool {
	if p == 0 || c.faults.budget == 0 || c.rng.Float64() >= p {
		return false
	}
	c.faults.budget--
	return true
}

func (c *toyCache) used() int { return c.total - len(c.free) }

func (c *toyCache) Reserve(id uint64, tokens int) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.luck(c.faults.evict) {
		c.evictOne()
	}
	if c.held[id] == nil && !c.watch.running(id) { // else it was evicted, and the scheduler does not know
		if c.keep != nil {
			c.broken("the first Reserve of %d was no Admit", id)
		}
		c.watch.asks(c, id)
		defer func() { c.watch.answered(c, id, tokens, err) }()
	}
	return c.reserve(id, tokens, nil)
}

// reserve makes room for a sequence; found are blocks that its first tokens
// lie in. The caller holds mu.
func (c *toyCache) reserve(id uint64, tokens int, found []int) error {
	c.reserves++
	if tokens > c.MaxTokens() {
		c.broken("Reserve(%d, %d): more than MaxTokens", id, tokens)
		return ErrNever
	}
	if c.luck(c.faults.refuse) {
		time.AfterFunc(time.Duration(c.rng.IntN(50))*time.Millisecond, c.signal)
		return ErrWait
	}
	h := c.held[id]
	if h == nil {
		h = &toyHeld{}
	}
	for _, b := range found {
		c.refs[b]++
		h.blocks = append(h.blocks, b)
	}
	need := (tokens+c.block-1)/c.block - len(h.blocks)
	if need > 0 {
		c.forget(c.used() + need - c.limit)
	}
	if need > 0 && c.used()+need > c.limit {
		for _, b := range found {
			c.refs[b]--
		}
		return c.short()
	}
	for range need {
		b := c.free[0]
		c.free = c.free[1:]
		c.refs[b]++
		h.blocks = append(h.blocks, b)
	}
	h.tokens = max(h.tokens, tokens)
	c.held[id] = h
	if !c.seen[id] {
		c.seen[id] = true
		c.firsts = append(c.firsts, id)
	}
	return nil
}

// short asks for lent blocks where there are any. The caller holds mu.
func (c *toyCache) short() error {
	if c.limit == c.total || c.lendDelay == 0 {
		return ErrWait
	}
	if !c.asked {
		c.asked = true
		time.AfterFunc(c.lendDelay, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.asked, c.limit = false, c.total
			c.signal()
			if c.faults.reclaim && c.faults.budget > 0 {
				c.faults.budget--
				time.AfterFunc(time.Duration(c.rng.IntN(80))*time.Millisecond, c.takeBack)
			}
		})
	}
	return ErrComing
}

// takeBack is an owner that reclaims half of the blocks.
func (c *toyCache) takeBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = c.total / 2
	c.forget(c.used() - len(c.zombies) - c.limit)
	for c.used()-len(c.zombies) > c.limit && len(c.held) > 0 {
		c.evictOne()
	}
}

// evictOne takes all blocks from a sequence. The caller holds mu.
func (c *toyCache) evictOne() {
	if len(c.held) == 0 {
		return
	}
	pick := c.rng.IntN(len(c.held))
	for _, id := range c.firsts {
		if c.held[id] == nil {
			continue
		}
		if pick--; pick < 0 {
			c.evict(id)
			break
		}
	}
}

func (c *toyCache) evict(id uint64) {
	h := c.held[id]
	delete(c.held, id)
	c.evicted = append(c.evicted, id)
	c.giveUp(h, true)
	c.signal()
}

// giveUp takes a sequence's blocks: what nobody else uses and is not kept, or
// is lost, is garbage. The caller holds mu.
func (c *toyCache) giveUp(h *toyHeld, lost bool) {
	for _, b := range h.blocks {
		if c.refs[b]--; c.refs[b] > 0 {
			continue
		}
		if lost {
			c.keep.drop(b)
		}
		if !c.keep.has(b) {
			c.zombies = append(c.zombies, b)
		}
	}
	c.bury()
}

// forget drops up to n blocks that are only kept. The caller holds mu.
func (c *toyCache) forget(n int) {
	for _, b := range c.keep.idle(c.refs) {
		if n--; n < 0 {
			break
		}
		c.keep.drop(b)
		c.zombies = append(c.zombies, b)
	}
	c.bury()
}

// bury makes evicted blocks usable again once no step reads them.
func (c *toyCache) bury() {
	if c.open != nil {
		return
	}
	for _, b := range c.zombies {
		c.scribble(b, 0, c.block)
	}
	c.free = append(c.free, c.zombies...)
	c.zombies = nil
}

func (c *toyCache) scribble(block, from, to int) {
	for l := range toyLayers {
		off := c.offset(block, l)
		for i := off + int64(from*toyElem); i < off+int64(to*toyElem); i++ {
			c.mem[i] = byte(c.rng.Uint32())
		}
	}
}

func (c *toyCache) offset(block, layer int) int64 {
	return int64((block*toyLayers + layer) * c.block * toyElem)
}

func (c *toyCache) Release(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != nil {
		c.broken("Release(%d) inside a step", id)
	}
	if h := c.held[id]; h != nil {
		delete(c.held, id)
		c.giveUp(h, false)
	}
}

func (c *toyCache) Evicted() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.evicted
	c.evicted = nil
	return e
}

func (c *toyCache) Begin(_ context.Context, steps []StepSeq) (Step, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != nil {
		c.broken("Begin inside a step")
	}
	if len(steps) == 0 {
		c.broken("Begin of nothing")
	}
	st := &toyStep{c: c}
	var lost []uint64
	for _, s := range steps {
		h := c.held[s.ID]
		if h == nil {
			lost = append(lost, s.ID)
			continue
		}
		if s.Start != h.written || s.New < 1 || s.Start+s.New > h.tokens {
			c.broken("sequence %d runs [%d, +%d) with %d written and %d reserved", s.ID, s.Start, s.New, h.written, h.tokens)
		}
		if len(s.Tokens) != s.New {
			c.broken("sequence %d runs %d tokens and names %d", s.ID, s.New, len(s.Tokens))
		}
		c.keep.check(c, s, h)
		if s.New > 1 && s.Start%c.block != 0 {
			c.broken("sequence %d has a chunk of %d at %d, inside a block", s.ID, s.New, s.Start)
		}
		st.parts = append(st.parts, toyPart{s, h})
	}
	if len(lost) > 0 {
		return nil, &LostError{IDs: lost, Err: errors.New("evicted before the step")}
	}
	if c.luck(c.faults.fail) {
		return nil, errors.New("injected: Begin")
	}
	c.open = st
	return st, nil
}

type toyPart struct {
	StepSeq
	held *toyHeld
}

type toyStep struct {
	c     *toyCache
	parts []toyPart
}

func (s *toyStep) Memory() []byte { return s.c.mem }

func (s *toyStep) Layer(l int) ([][]int64, error) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.luck(c.faults.fail) {
		return nil, errors.New("injected: Layer")
	}
	if c.luck(c.faults.lose) {
		c.evictOne()
	}
	if c.rng.IntN(2) == 0 { // else Commit notices
		if err := s.lost(); err != nil {
			return nil, err
		}
	}
	var tables [][]int64
	for _, p := range s.parts {
		n := (p.Start + p.New + c.block - 1) / c.block
		var t []int64
		for _, b := range p.held.blocks[:n] {
			t = append(t, c.offset(b, l))
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// lost names the step's sequences that were evicted since Begin.
func (s *toyStep) lost() error {
	var ids []uint64
	for _, p := range s.parts {
		if s.c.held[p.ID] != p.held {
			ids = append(ids, p.ID)
		}
	}
	if ids == nil {
		return nil
	}
	return &LostError{IDs: ids, Err: errors.New("evicted in the step")}
}

func (s *toyStep) Written(int) {}
func (s *toyStep) Done(int)    {}

func (s *toyStep) Commit() error {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	err := s.lost()
	if err == nil && c.luck(c.faults.fail) {
		err = errors.New("injected: Commit")
	}
	if err != nil {
		s.undo()
		return err
	}
	s.close()
	for _, p := range s.parts {
		p.held.written = p.Start + p.New
		c.keep.written(c, p)
	}
	return nil
}

func (s *toyStep) Abort() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.undo()
}

// undo overwrites what the step has written.
func (s *toyStep) undo() {
	for _, p := range s.parts {
		for pos := p.Start; pos < p.Start+p.New; pos++ {
			i := pos % s.c.block
			s.c.scribble(p.held.blocks[pos/s.c.block], i, i+1)
		}
	}
	s.close()
}

func (s *toyStep) close() {
	if s.c.open != s {
		s.c.broken("a step ends twice")
	}
	s.c.open = nil
	s.c.bury()
}

// check reports broken contracts and leaks, after the scheduler is done.
func (c *toyCache) check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != nil {
		c.broken("a step is open")
	}
	for id, h := range c.held {
		c.broken("sequence %d still holds %d blocks", id, len(h.blocks))
	}
	c.forget(c.total)
	if len(c.free) != c.total {
		c.broken("%d of %d blocks are free", len(c.free), c.total)
	}
	return errors.Join(c.errs...)
}
