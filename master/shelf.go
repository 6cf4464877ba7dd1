package master

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/placement"
	"github.com/kvlend/kvlend/overflow/store"
	diskio "github.com/kvlend/kvlend/overflow/stream"
	"github.com/kvlend/kvlend/prefix"
)

// StoreConfig describes one store of the overflow pool.
type StoreConfig struct {
	Name  string
	Store Store        // of the model's geometry; closed by its owner
	Arena nvlink.Arena // its device
	Load  nvlink.Stream
	// Rate is its measured bandwidth of reads in bytes per second; 0: not
	// known.
	Rate float64
	// Achieved is its bandwidth of reads lately; 0: not known. Reads run ahead of
	// the stream that asked for them, so that their batches say nothing. Nil:
	// Rate stands.
	Achieved func() float64
	// Volatile: what it holds ends with the process.
	Volatile bool
	// Budget bounds what is written to it; nil: nothing does.
	Budget Budget
	// Doubt is until when (Config.Wall, in Unix seconds) what was stored may have lost
	// its place to another block, which the book does not know: its process was
	// killed. 0: all that is in the book was durable when it was entered last.
	Doubt int64
	// Unchecked: there are no bytes, and so no checksums, as in a simulation.
	Unchecked bool
}

// Store is the book of the blocks on one device, of whose methods *store.Store,
// the one that keeps them, tells.
type Store interface {
	Geometry() store.Geometry
	Info() store.Info
	Stats() store.Stats
	Off(slot store.Slot, layer int) int64
	AllocNear(dst []store.Slot, n int, after store.Slot, known bool) []store.Slot
	Free(slots []store.Slot)
	Commit(e *store.Entry) (uint64, error)
	Entries() iter.Seq[store.Entry]
	Flush(ctx context.Context) error
}

// Budget says whether n more bytes may be written to a device
// (admission.Budget).
type Budget interface{ Take(n int64) bool }

// Door says, each time a block is used, whether it is worth a write
// (admission.Doorkeeper).
type Door interface{ Admit(k prefix.Key) bool }

// OverflowConfig describes the overflow pool. Its blocks outlive the process.
type OverflowConfig struct {
	Stores    []StoreConfig
	Placement placement.Policy
	// Move carries whole blocks between the stores and memory that the host can
	// address. It is theirs alone: nothing else waits for a disk.
	Move nvlink.Stream
	// Staging is memory of the host, for one block or several. Copies pass through
	// it on their way to a store: a disk never holds up a unit that its lender
	// wants back, nor room in the own arena.
	Staging nvlink.Arena
	// Missing: there are devices that cannot be used now, and that may come back.
	Missing bool
	// Door decides which kept blocks are worth a write; nil: all.
	Door Door
}

const (
	// maxFaults of a device within faultWindow put it out of use.
	maxFaults   = 3
	faultWindow = time.Minute
)

// shelf is a pool's store. The cache's mutex guards it except faults.
type shelf struct {
	StoreConfig
	salt     string // of checksums: the store's identity
	layer    int64  // bytes of a layer block
	left     int    // free slots; 0 once it is out of use
	taken    int
	faults   atomic.Uint32 // raised at each; loads and stores under way fail then
	recent   []time.Duration
	rated    time.Duration // when Achieved was asked last
	fenced   error         // why it is out of use
	fences   int
	draining bool // takes no more blocks, and gives up what it has
	// avoid is until when nothing is read from it without need, since it has
	// answered too late; avoidFor is for how long that is.
	avoid, avoidFor time.Duration
	late            uint64 // how often it has

	faultMu sync.Mutex
	unseen  []error // faults that the cache has not looked at
	// damaged are the times of blocks that were not what had been stored, lately;
	// misses counts all of them, and reused those whose places had been used again.
	damaged        []time.Duration
	misses, reused uint64
	slots          []store.Slot // scratch
	// near is the slot behind which the next ones are taken, if there is one:
	// behind what they continue, or behind the last one that was taken for a block
	// in use.
	near, inUse after
}

// after is a slot, or none.
type after struct {
	slot  store.Slot
	known bool
}

// newStored returns the pool of a store.
func newStored(s StoreConfig, c Config) (*pool, error) {
	g := s.Store.Geometry()
	want := c.Geometry
	if g.Layers != want.Layers || int64(g.LayerBytes) != want.LayerBlockBytes() || g.BlockTokens != want.BlockTokens {
		return nil, fmt.Errorf("store %s: %d layers of %d bytes and %d tokens, the model has %d of %d and %d",
			s.Name, g.Layers, g.LayerBytes, g.BlockTokens, want.Layers, want.LayerBlockBytes(), want.BlockTokens)
	}
	info, stats := s.Store.Info(), s.Store.Stats()
	p := &pool{
		cfg: LenderConfig{Name: s.Name, Arena: s.Arena, Load: s.Load}, at: stored,
		shelf:  &shelf{StoreConfig: s, salt: storeSalt(info.UUID), layer: want.LayerBlockBytes(), left: stats.Free, taken: stats.Slots - stats.Free},
		blocks: map[elastic.BlockID]*block{}, limit: c.StoreLimit, now: c.Now, link: link{rate: s.Rate},
	}
	return p, nil
}

const (
	// rateEvery is how often it is asked what a device achieves, and rateRange
	// how far that may be from what was measured: few or small reads achieve
	// less than the device can.
	rateEvery = time.Second
	rateRange = 4
)

// noteRate follows what a store's device achieves.
func (p *pool) noteRate() {
	s, now := p.shelf, p.now()
	if s.Achieved == nil || now-s.rated < rateEvery {
		return
	}
	s.rated = now
	rate := s.Achieved()
	if rate > 0 && s.Rate > 0 {
		rate = min(max(rate, s.Rate/rateRange), s.Rate*rateRange)
	}
	if rate > 0 {
		p.link.rate = rate
	}
}

func (s *shelf) span(a nvlink.Arena, id elastic.BlockID, l int) nvlink.Span {
	return nvlink.Span{Arena: a, Off: s.Store.Off(store.Slot(id), l), Len: s.layer}
}

// take takes up to n slots, adjacent ones if possible.
func (s *shelf) take(n int, why storing) []store.Slot {
	if s.fenced != nil {
		return nil
	}
	if why == inUse {
		s.near = s.inUse
	}
	s.slots = s.Store.AllocNear(s.slots[:0], n, s.near.slot, s.near.known)
	if why == inUse && len(s.slots) > 0 {
		s.inUse = after{s.slots[len(s.slots)-1], true}
	}
	s.left -= len(s.slots)
	s.taken += len(s.slots)
	return s.slots
}

func (s *shelf) put(id elastic.BlockID) {
	s.taken--
	if s.fenced != nil {
		return // its book stays as it is: the next start finds what can be read
	}
	s.Store.Free([]store.Slot{store.Slot(id)})
	if s.open() {
		s.left++
	}
}

// open reports that the store takes blocks.
func (s *shelf) open() bool { return s.fenced == nil && !s.draining }

// shelves calls yield for each store, with its index.
func (c *Cache) shelves(yield func(int, *pool) bool) {
	i := 0
	for _, p := range c.depots() {
		if p.shelf == nil {
			continue
		}
		if !yield(i, p) {
			return
		}
		i++
	}
}

// storeRoom is how many blocks the stores could take: free slots, and those
// whose blocks would make way.
func (c *Cache) storeRoom() int {
	if c.cfg.Overflow == nil {
		return 0
	}
	n, open := 0, false
	for _, p := range c.shelves {
		n += p.shelf.left
		open = open || p.shelf.open()
	}
	if open {
		n += c.index.Evictable(int(stored))
	}
	return n + len(c.orphans.byKey)
}

// storing is why blocks go to stores.
type storing uint8

const (
	leaving storing = iota // they are kept, and leave nearer memory
	copying                // they stay where they are, too
	inUse                  // there is no other place for them
)

// maxKin bounds the search for what a block continues on each store.
const maxKin = 64

// kin finds on each store the last block that comes before a node.
func (c *Cache) kin(n *node) {
	for _, p := range c.shelves {
		p.shelf.near = after{}
	}
	for range maxKin {
		if n == nil {
			return
		}
		if n = n.Parent(); n == nil {
			return
		}
		b := n.Value
		p, id := b.pool, b.id
		if b.copy != nil {
			p, id = b.copy.pool, b.copy.id
		} else if b.place != stored {
			continue
		}
		if !p.shelf.near.known {
			p.shelf.near = after{store.Slot(id), true}
		}
	}
}

// takeStored takes places for up to n blocks of a run that begins with first (nil: that
// is not known), in order, as the policy divides them among the stores. The coldest
// stored blocks make way. Blocks in
// use go there whatever the budget for writes says; copies go where they last.
func (c *Cache) takeStored(n int, why storing, first *node) []spot {
	if c.cfg.Overflow == nil || n == 0 {
		return nil
	}
	c.kin(first)
	left := 0
	for _, p := range c.shelves {
		left += p.shelf.left
	}
	left += c.dropOrphans(n - left)
	for left < n {
		v := c.victim(stored)
		if v == nil || v.Value.place != stored || v.Value.pool.shelf.fenced != nil || !c.anyOpen() {
			break
		}
		left += c.drop1(v)
	}
	c.weigh(why)
	c.parts = c.cfg.Overflow.Placement.Place(c.parts[:0], c.devices, n)
	var out []spot
	for _, part := range c.parts {
		p := c.shelfAt(part.Device)
		count := part.Count
		if why != inUse {
			count = p.shelf.affordable(count, c.cfg.Geometry.FullBlockBytes())
		}
		for _, slot := range p.shelf.take(count, why) {
			out = append(out, spot{place: stored, pool: p, id: elastic.BlockID(slot), tail: -1})
		}
	}
	return out
}

// drop1 drops a kept block and what continues it, and says how many slots of
// stores that freed.
func (c *Cache) drop1(v *node) int {
	before := 0
	for _, p := range c.shelves {
		before -= p.shelf.left
	}
	c.lose(v)
	for _, p := range c.shelves {
		before += p.shelf.left
	}
	return before
}

func (c *Cache) shelfAt(i int) *pool {
	for j, p := range c.shelves {
		if i == j {
			return p
		}
	}
	panic(fmt.Sprintf("BUG: store %d", i))
}

// weigh tells the policy about the stores.
func (c *Cache) weigh(why storing) {
	c.devices = c.devices[:0]
	for _, p := range c.shelves {
		s := p.shelf
		d := placement.Device{Rate: p.link.rate, Free: s.left, Slots: s.left + s.taken}
		switch d.Fences = s.fences; {
		case why == copying && s.Volatile:
			d.Free = 0
		case s.fenced != nil:
			d.State = placement.Fenced
		case s.draining:
			d.State = placement.Draining
		case c.cfg.Now() < s.avoid:
			d.State = placement.Slow
		}
		c.devices = append(c.devices, d)
	}
}

// affordable says how many of n blocks may be written today.
func (s *shelf) affordable(n int, size int64) int {
	for i := range n {
		if s.Budget != nil && !s.Budget.Take(size) {
			return i
		}
	}
	return n
}

// StoreFault says that a store's device has failed an operation. What is under
// way with it fails; it is put out of use when its error is final or one of
// several; what was only given up (stream.ErrLate) is none of these. It does not wait
// for the cache, so streams may call it.
func (c *Cache) StoreFault(index int, err error) {
	s := c.shelfAt(index).shelf
	s.faultMu.Lock()
	s.unseen = append(s.unseen, err)
	s.faultMu.Unlock()
	s.faults.Add(1)
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.noteFaults()
	}()
}

// noteFaults looks at what StoreFault was told.
func (c *Cache) noteFaults() {
	for _, p := range c.shelves {
		p.shelf.faultMu.Lock()
		unseen := p.shelf.unseen
		p.shelf.unseen = nil
		p.shelf.faultMu.Unlock()
		for _, err := range unseen {
			c.fault(p, err)
		}
	}
}

// final reports that a device will not work again by itself.
func final(err error) bool {
	var failed *store.FailedError
	return errors.Is(err, device.ErrGone) || errors.Is(err, device.ErrClosed) || errors.As(err, &failed)
}

func (c *Cache) fault(p *pool, err error) {
	s := p.shelf
	now := c.cfg.Now()
	if errors.Is(err, diskio.ErrLate) {
		c.tardyStore(p)
		return
	}
	s.recent = append(s.recent, now)
	for now-s.recent[0] > faultWindow {
		s.recent = s.recent[1:]
	}
	if s.fenced == nil && (final(err) || len(s.recent) >= maxFaults) {
		c.fence(p, err)
	}
}

// fence puts a store out of use.
func (c *Cache) fence(p *pool, err error) {
	s := p.shelf
	s.fenced = err
	s.fences++
	s.left = 0
	s.faults.Add(1)
	if err := c.resize(); err != nil {
		panic(fmt.Sprintf("BUG: fewer stores: %v", err)) // it was none with more
	}
	if c.cfg.Log != nil {
		c.cfg.Log.Warn("a store of the overflow pool is out of use: what it holds is computed again", "store", p.cfg.Name, "error", err)
	}
	c.betweenSteps(func() {
		// What is in the air is freed when it lands: the disk may be stuck.
		gone := map[*block]bool{}
		for _, b := range p.blocks {
			if b.copy != nil && b.copy.pool == p {
				c.dropCopy(b)
			} else {
				gone[b] = true
			}
		}
		c.leaveOrphans(p)
		c.strand(gone)
		c.signal()
	})
}

// StoreState is what the cache knows of a store.
type StoreState struct {
	Fenced   string // why it is out of use; empty: it is in use
	Draining bool
	Kept     int     // blocks that lie there, or have a copy there
	Rate     float64 // of loads lately, in bytes per second; 0: not known
	Corrupt  uint64  // blocks that were not what had been stored
	// Reused counts blocks whose places had been used again before their last user
	// was killed: they are not what the book says.
	Reused uint64
	// Late counts answers of its device that were not waited for; Slow: the last
	// one was so lately that what lies there is computed.
	Late uint64
	Slow bool
}

// Stores describes the stores, in the order of OverflowConfig.Stores.
func (c *Cache) Stores() []StoreState {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []StoreState
	for _, p := range c.shelves {
		s := StoreState{Draining: p.shelf.draining, Kept: p.shelf.taken, Rate: p.link.rate, Corrupt: p.shelf.misses, Reused: p.shelf.reused,
			Late: p.shelf.late, Slow: c.cfg.Now() < p.shelf.avoid}
		if p.shelf.fenced != nil {
			s.Fenced = p.shelf.fenced.Error()
		}
		out = append(out, s)
	}
	return out
}
