package store

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/zeebo/xxh3"
)

// A superblock's copy is 4096 bytes:
//
//	  0  8B   magic
//	  8  u32  version
//	 16  u64  checksum: XXH3-64 of all 4096 bytes with this field 0
//	 24  u64  generation
//	 32  16B  UUID
//	 48  32B  digest of the identity: BLAKE3
//	 80  64B  label, zeros behind
//	144  u64  bytes of the device in use
//	152  u32  layers, bytes of a layer block, tokens of a block, slots of a
//	          segment, bytes of a log page, how many regions
//	176  u64  slots
//	184  u32  active log area: 0 or 1
//	192  u64  epoch of the active area's first page
//	200  u64  pages of the active area that earlier epochs have written; from
//	          there on only pages of the epoch that is the generation count
//	256       regions, 32 bytes each: kind u32, 0 u32, offset u64, bytes u64, 0 u64
//	2304 u32  bytes of a note, which is the caller's and follows; at most MaxNote
//
// What is not named is zero.
const (
	superBytes   = device.Align
	superVersion = 1
	maxRegions   = 64
	regionTable  = 256
	regionBytes  = 32
	noteAt       = regionTable + maxRegions*regionBytes
)

var superMagic = [8]byte{'K', 'V', 'L', 'E', 'N', 'D', 'O', 'P'}

// Kinds of regions.
const (
	regionLog0   = 1
	regionLog1   = 2
	regionBlocks = 3
)

// superblock is the root of a store. What is in layout never changes.
type superblock struct {
	layout
	uuid     [16]byte
	identity [32]byte
	label    string
	note     string

	generation uint64
	active     int    // area
	base       uint64 // epoch of the active area's first page
	head       int    // pages of earlier epochs in the active area
}

type region struct {
	kind       uint32
	off, bytes int64
}

func (s *superblock) regions() []region {
	area := int64(s.areaPages) * int64(s.page)
	return []region{
		{regionLog0, s.area[0], area},
		{regionLog1, s.area[1], area},
		{regionBlocks, s.Base, s.end() - s.Base},
	}
}

// encode fills superBytes of b.
func (s *superblock) encode(b []byte) {
	le := binary.LittleEndian
	b = b[:superBytes]
	clear(b)
	copy(b, superMagic[:])
	le.PutUint32(b[8:], superVersion)
	le.PutUint64(b[24:], s.generation)
	copy(b[32:], s.uuid[:])
	copy(b[48:], s.identity[:])
	copy(b[80:80+MaxLabel], s.label)
	le.PutUint64(b[144:], uint64(s.end()))
	regions := s.regions()
	for i, v := range []int{s.Layers, s.LayerBytes, s.BlockTokens, s.Run, s.page, len(regions)} {
		le.PutUint32(b[152+4*i:], uint32(v))
	}
	le.PutUint64(b[176:], uint64(s.Slots))
	le.PutUint32(b[184:], uint32(s.active))
	le.PutUint64(b[192:], s.base)
	le.PutUint64(b[200:], uint64(s.head))
	for i, r := range regions {
		at := b[regionTable+i*regionBytes:]
		le.PutUint32(at, r.kind)
		le.PutUint64(at[8:], uint64(r.off))
		le.PutUint64(at[16:], uint64(r.bytes))
	}
	le.PutUint32(b[noteAt:], uint32(len(s.note)))
	copy(b[noteAt+4:noteAt+4+MaxNote], s.note)
	le.PutUint64(b[16:], superSum(b))
}

// superSum is the checksum of a copy.
func superSum(b []byte) uint64 {
	var c [superBytes]byte
	copy(c[:], b)
	clear(c[16:24])
	return xxh3.Hash(c[:])
}

// parseSuper reads one copy. Found is Blank where the magic is missing, Ours
// where the copy is good.
func parseSuper(b []byte) (superblock, Found, string) {
	var s superblock
	le := binary.LittleEndian
	b = b[:superBytes]
	if !bytes.Equal(b[:8], superMagic[:]) {
		return s, Blank, ""
	}
	if v := le.Uint32(b[8:]); v != superVersion {
		return s, OtherVersion, fmt.Sprintf("version %d, this program knows %d", v, superVersion)
	}
	if le.Uint64(b[16:]) != superSum(b) {
		return s, Damaged, "the superblock's checksum differs"
	}
	s.generation = le.Uint64(b[24:])
	copy(s.uuid[:], b[32:])
	copy(s.identity[:], b[48:])
	s.label = string(bytes.TrimRight(b[80:80+MaxLabel], "\x00"))
	if n := le.Uint32(b[noteAt:]); n > 0 && n <= MaxNote {
		s.note = string(b[noteAt+4:][:n])
	}
	s.active = int(le.Uint32(b[184:]))
	s.base = le.Uint64(b[192:])
	head := le.Uint64(b[200:])
	if found, detail := s.parseLayout(b); found != Ours {
		return s, found, detail
	}
	if s.active > 1 || head > uint64(s.areaPages) || s.base > s.generation || s.generation == 0 {
		return s, Damaged, "the superblock names pages outside the log"
	}
	s.head = int(head)
	return s, Ours, ""
}

// parseLayout reads the shape and demands that it is laid out as place does.
func (s *superblock) parseLayout(b []byte) (Found, string) {
	le := binary.LittleEndian
	var v [6]int
	for i := range v {
		v[i] = int(le.Uint32(b[152+4*i:]))
	}
	slots := le.Uint64(b[176:])
	o := Options{Layers: v[0], LayerBytes: v[1], BlockTokens: v[2], Run: v[3]}
	if err := o.validateShape(); err != nil || o.Run == 0 {
		return Damaged, fmt.Sprintf("the superblock's shape cannot be: %d layers of %d bytes, %d tokens, runs of %d", v[0], v[1], v[2], v[3])
	}
	if slots == 0 || slots > maxSlots || slots%uint64(o.Run) != 0 {
		return Damaged, fmt.Sprintf("the superblock has %d slots", slots)
	}
	s.Geometry = Geometry{
		Layers: o.Layers, LayerBytes: o.LayerBytes, BlockTokens: o.BlockTokens, Run: o.Run,
		Stride: roundUp(int64(o.LayerBytes), device.Align),
	}
	if int64(slots)/int64(o.Run) > (1<<61)/s.segmentBytes() {
		return Damaged, fmt.Sprintf("the superblock has %d slots of %d layers of %d bytes", slots, o.Layers, o.LayerBytes)
	}
	s.page = pageBytes(s.Layers, s.BlockTokens)
	s.place(int(slots) / s.Run)
	if v[5] > maxRegions {
		return Damaged, fmt.Sprintf("the superblock has %d regions", v[5])
	}
	want := s.regions()
	ok := v[4] == s.page && v[5] == len(want) && le.Uint64(b[144:]) == uint64(s.end())
	for i := range min(v[5], maxRegions) {
		at := b[regionTable+i*regionBytes:]
		r := region{le.Uint32(at), int64(le.Uint64(at[8:])), int64(le.Uint64(at[16:]))}
		ok = ok && r == want[i]
	}
	if !ok {
		return OtherVersion, "its regions are laid out in a way this program does not know"
	}
	return Ours, ""
}
