// Package store keeps blocks of KV on one device of the overflow pool so that
// they survive a crash: what was acknowledged as durable reads back exactly or
// is a counted miss. Each device is a failure domain of its own.
//
// # On the device
//
// All numbers are little-endian, all places multiples of 4096 bytes.
//
//	0        superblock, first copy      (zeros up to the second copy)
//	512 KiB  superblock, second copy     (zeros up to 1 MiB)
//	1 MiB    log area 0, log area 1, blocks: where the superblock's table of
//	         regions says. Kinds of regions that this version does not know
//	         make a store of another version, so that entries smaller than
//	         blocks can be given a region of their own later.
//
// Both copies of the superblock are written at each change, one after the
// other, each followed by a sync; the valid one of the higher generation counts.
//
// A block has L layer blocks of M bytes, each at a stride of M rounded up to
// 4096. The region of blocks consists of segments of R slots, layer-major
// inside: layer l of slot i of segment s lies at base + s*R*L*stride +
// (l*R+i)*stride. So blocks in consecutive slots of a segment are one read per
// layer.
//
// # The log
//
// The index is a log of pages in one of the two areas. A page holds records of
// one kind: entries (a slot holds this block) or tombstones (a slot holds
// nothing). Records say what is so, not what changed: the last one of a slot
// counts, and reading one twice does no harm. A page is written once and never
// again; each flush begins a new one.
//
// A page names the store, its place, and the epoch in which it was written. An
// epoch is the superblock's generation: who opens a store raises it before it
// writes the first page. So a page beyond the end that an earlier life left is
// never taken for a new one. A page's header and each of its records have
// checksums; a record's is seeded with its page's, so that what an earlier page
// left in the same place is not taken for part of a torn one.
//
// When the area is full, what is live goes to the other area as a checkpoint
// and the superblock switches. The areas are so large that a checkpoint always
// fits.
//
// # Order
//
// A flush encodes the records, syncs the device (so that the data of the blocks
// is durable before anything says so), writes the records, syncs again, and
// only then acknowledges. A slot that was freed may be used again before its
// tombstone is durable: after a crash the log may then name a block whose bytes
// have been overwritten. Its checksums differ, and it is a miss.
package store

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvlend/kvlend/prefix"
)

// Slot is the place of one block in a store, from 0.
type Slot uint32

// Limits of Options.
const (
	MaxLayers      = 4096
	MaxBlockTokens = 4096
	MaxLayerBytes  = 1 << 30
	MaxRun         = 64
	MaxLabel       = 64 // bytes
	MaxNote        = 1024
)

// Options describe a store to Format and Open.
type Options struct {
	// Layers is L, [1, MaxLayers]; LayerBytes is M, the bytes of one layer
	// block, [1, MaxLayerBytes]; BlockTokens is B, [1, MaxBlockTokens]. Open
	// compares those that are not 0 with what the device holds.
	Layers, LayerBytes, BlockTokens int
	// Identity is what the data depends on: weights, element type, layout,
	// adapter. The store keeps a digest. Open compares it unless it is nil.
	Identity []byte

	// Run is R, the slots of a segment, [1, MaxRun]. 0: such that one layer of
	// a segment is about 1 MiB. Format only, as are the next four.
	Run int
	// Slots is the most blocks to hold. 0: what fits.
	Slots int
	// Label is for people, up to MaxLabel bytes: whose the store is. Open names it
	// beside the label of a store of another identity.
	Label string
	// UUID tells stores apart. Zero: random.
	UUID [16]byte
	// Force formats whatever the device holds.
	Force bool

	// FlushEntries and FlushEvery start a flush by themselves once so many
	// changes wait, or one has waited so long. 0: never. Open only, as are the
	// next five.
	FlushEntries int
	FlushEvery   time.Duration
	// IOTimeout bounds each wait for the device while the log is written. 0:
	// 30 seconds.
	IOTimeout time.Duration
	// OnFail is called once, without any lock held, when the log can no longer
	// be written. The error is a *FailedError. It must not wait for Close.
	OnFail func(error)
	// Memory gives n bytes (a multiple of device.Align, at an address that is
	// one) for the log's pages. Nil: the Go heap.
	Memory func(n int) []byte
	// Sum is the checksum of a layer block for Check; nil: Check does not read
	// data. It may be called concurrently.
	Sum func(e *Entry, layer int, data []byte) uint64
}

// Entry is what a store knows of one block. The slices of an Entry that a
// store gave out are the store's: they must not be changed, and hold what they
// hold until the slot is freed.
type Entry struct {
	Slot   Slot
	Key    prefix.Key
	Parent prefix.Key // of the block before this one, or the root's
	Root   bool       // Parent is a root: no block comes before this one
	Tokens []int32    // BlockTokens of them
	Sums   []uint64   // a checksum for each layer block
	Tag    uint64     // the caller's
}

// Found is what is on a device.
type Found string

// What may be on a device.
const (
	Blank         Found = "blank"                         // zeros
	Ours          Found = "a kvlend store"                // that can be opened
	OtherGeometry Found = "a kvlend store of other shape" // layers, bytes or tokens differ
	OtherIdentity Found = "a kvlend store of other data"  // the identity differs
	OtherVersion  Found = "a kvlend store of another version"
	Damaged       Found = "a damaged kvlend store"
	Foreign       Found = "foreign data"
)

// RefusedError says that what is on a device is not what Open or Format need.
// Nothing was written.
type RefusedError struct {
	Device string
	Found  Found
	Detail string // e.g. "ext4 filesystem"
}

func (e *RefusedError) Error() string {
	s := fmt.Sprintf("store: device %s holds %s", e.Device, e.Found)
	if e.Found == Blank {
		s = fmt.Sprintf("store: device %s is blank", e.Device)
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// FailedError says that the log of a store cannot be written: nothing more can
// be committed. What was durable stays so.
type FailedError struct {
	Device string
	Err    error // usually a *device.Error
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("store: the log of device %s has failed: %v", e.Device, e.Err)
}

func (e *FailedError) Unwrap() error { return e.Err }

// DuplicateError says that a key is already live in another slot.
type DuplicateError struct {
	Key  prefix.Key
	Slot Slot // where it is
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("store: key %v is in slot %d already", e.Key, e.Slot)
}

// ErrClosed is what a closed store answers.
var ErrClosed = errors.New("store: closed")

// Recovery says what Open found.
type Recovery struct {
	Entries    int // live
	Superseded int // records that a later one of the same slot or key replaced
	Tombstones int
	Torn       int // records of valid pages whose checksums differ
	Dropped    int // records that cannot be: of no slot of the store
	// Holes are pages that should be there and are not, or could not be read:
	// the tail of a flush that never ended, or damage.
	Holes int
	Pages int // read and valid
	Took  time.Duration
}

// Stats are counters of a store since Open, and its gauges.
type Stats struct {
	Slots, Free, Reserved, Live int // Free + Reserved + Live = Slots
	Commits, Frees              uint64
	Flushes, Checkpoints        uint64
	LogBytes                    int64 // written: pages and superblocks
	Lag                         int   // changes that are not durable
	LogPages, LogUsed           int   // of the active area
	Failed                      error // a *FailedError, or nil
}
