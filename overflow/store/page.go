package store

import (
	"encoding/binary"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/prefix"
	"github.com/zeebo/xxh3"
)

// A page begins with a header:
//
//	 0  u64  checksum: XXH3-64 of the header's other bytes
//	 8  u32  magic
//	12  u16  kind of its records
//	14  u16  how many there are, at least 1
//	16  16B  the store's UUID
//	32  u64  epoch
//	40  u64  index in the area
//
// Records follow without gaps. Both kinds begin with
//
//	 0  u64  checksum: XXH3-64 of the record's other bytes, seeded with the
//	         page's checksum
//	 8  u64  number of the change
//	16  u32  slot
//	20  u32  flags
//
// where a tombstone ends. An entry goes on with
//
//	24  u64  tag
//	32  16B  key: high, low
//	48  16B  key of the parent: high, low
//	64       B tokens, i32 each, zeros up to a multiple of 8
//	         L checksums of layer blocks, u64 each
const (
	pageMagic      = 0x504c564b // "KVLP"
	pageHeader     = 48
	tombstoneBytes = 24
	entryHeader    = 64
	flagRoot       = 1
	maxPageRecords = 1<<16 - 1
)

const (
	kindEntries    = 1
	kindTombstones = 2
)

func tokenBytes(tokens int) int { return (4*tokens + 7) &^ 7 }

// entryBytes is the size of an entry's record.
func entryBytes(layers, tokens int) int { return entryHeader + tokenBytes(tokens) + 8*layers }

// pageBytes is the size of a page: the smallest that wastes little.
func pageBytes(layers, tokens int) int {
	n := device.Align
	for (n-pageHeader)/entryBytes(layers, tokens) < 4 {
		n *= 2
	}
	return n
}

func (l *layout) entryBytes() int     { return entryBytes(l.Layers, l.BlockTokens) }
func (l *layout) entriesPerPage() int { return (l.page - pageHeader) / l.entryBytes() }
func (l *layout) tombstonesPerPage() int {
	return min((l.page-pageHeader)/tombstoneBytes, maxPageRecords)
}

func (l *layout) recordBytes(kind uint16) int {
	if kind == kindTombstones {
		return tombstoneBytes
	}
	return l.entryBytes()
}

// pageID is what a page says of itself.
type pageID struct {
	uuid  [16]byte
	epoch uint64
	index uint64
}

// sealPage completes a page whose records have been put: header, checksums,
// zeros behind.
func (l *layout) sealPage(b []byte, id pageID, kind uint16, count int) {
	le := binary.LittleEndian
	le.PutUint32(b[8:], pageMagic)
	le.PutUint16(b[12:], kind)
	le.PutUint16(b[14:], uint16(count))
	copy(b[16:32], id.uuid[:])
	le.PutUint64(b[32:], id.epoch)
	le.PutUint64(b[40:], id.index)
	seed := xxh3.Hash(b[8:pageHeader])
	le.PutUint64(b, seed)
	size := l.recordBytes(kind)
	at := pageHeader
	for range count {
		le.PutUint64(b[at:], xxh3.HashSeed(b[at+8:at+size], seed))
		at += size
	}
	clear(b[at:l.page])
}

// pageHead is a valid header.
type pageHead struct {
	pageID
	kind  uint16
	count int
	seed  uint64
}

// parseHead reads a page's header. It says no to all that no store of this
// layout has written.
func (l *layout) parseHead(b []byte) (pageHead, bool) {
	le := binary.LittleEndian
	var h pageHead
	if le.Uint32(b[8:]) != pageMagic {
		return h, false
	}
	h.seed = le.Uint64(b)
	if xxh3.Hash(b[8:pageHeader]) != h.seed {
		return h, false
	}
	h.kind = le.Uint16(b[12:])
	h.count = int(le.Uint16(b[14:]))
	h.uuid = [16]byte(b[16:32])
	h.epoch = le.Uint64(b[32:])
	h.index = le.Uint64(b[40:])
	switch h.kind {
	case kindEntries:
		return h, h.count >= 1 && h.count <= l.entriesPerPage()
	case kindTombstones:
		return h, h.count >= 1 && h.count <= l.tombstonesPerPage()
	}
	return h, false
}

// recordOK verifies the checksum of a record.
func recordOK(rec []byte, seed uint64) bool {
	return xxh3.HashSeed(rec[8:], seed) == binary.LittleEndian.Uint64(rec)
}

func recordSlot(rec []byte) Slot     { return Slot(binary.LittleEndian.Uint32(rec[16:])) }
func recordNumber(rec []byte) uint64 { return binary.LittleEndian.Uint64(rec[8:]) }

func putTombstone(rec []byte, s Slot, number uint64) {
	le := binary.LittleEndian
	le.PutUint64(rec[8:], number)
	le.PutUint32(rec[16:], uint32(s))
	le.PutUint32(rec[20:], 0)
}

// putEntry encodes all of an entry's record but its checksum.
func putEntry(rec []byte, e *Entry, number uint64) {
	le := binary.LittleEndian
	le.PutUint64(rec[8:], number)
	le.PutUint32(rec[16:], uint32(e.Slot))
	var flags uint32
	if e.Root {
		flags = flagRoot
	}
	le.PutUint32(rec[20:], flags)
	le.PutUint64(rec[24:], e.Tag)
	le.PutUint64(rec[32:], e.Key.Hi)
	le.PutUint64(rec[40:], e.Key.Lo)
	le.PutUint64(rec[48:], e.Parent.Hi)
	le.PutUint64(rec[56:], e.Parent.Lo)
	b := rec[entryHeader:]
	for i, t := range e.Tokens {
		le.PutUint32(b[4*i:], uint32(t))
	}
	n := tokenBytes(len(e.Tokens))
	clear(b[4*len(e.Tokens) : n])
	b = b[n:]
	for i, s := range e.Sums {
		le.PutUint64(b[8*i:], s)
	}
}

// getEntry decodes a record into e, whose Tokens and Sums have their lengths.
func getEntry(rec []byte, e *Entry) {
	le := binary.LittleEndian
	e.Slot = recordSlot(rec)
	e.Root = le.Uint32(rec[20:])&flagRoot != 0
	e.Tag = le.Uint64(rec[24:])
	e.Key = prefix.Key{Hi: le.Uint64(rec[32:]), Lo: le.Uint64(rec[40:])}
	e.Parent = prefix.Key{Hi: le.Uint64(rec[48:]), Lo: le.Uint64(rec[56:])}
	b := rec[entryHeader:]
	for i := range e.Tokens {
		e.Tokens[i] = int32(le.Uint32(b[4*i:]))
	}
	b = b[tokenBytes(len(e.Tokens)):]
	for i := range e.Sums {
		e.Sums[i] = le.Uint64(b[8*i:])
	}
}
