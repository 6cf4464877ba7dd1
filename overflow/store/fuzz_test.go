package store

import (
	"encoding/binary"
	"testing"

	"github.com/zeebo/xxh3"
)

// FuzzSuperblock reads any header. What is taken for ours must be laid out
// soundly, whoever made the checksum.
func FuzzSuperblock(f *testing.F) {
	o := small()
	l, err := newLayout(&o, sizeOf(o))
	if err != nil {
		f.Fatal(err)
	}
	s := superblock{layout: l, generation: 3, base: 2, head: 4, label: "x"}
	b := make([]byte, superBytes)
	s.encode(b)
	f.Add(b, true)
	f.Add(b[:600], true)
	f.Add([]byte{}, false)
	b[8] = 7
	f.Add(b, true)
	f.Fuzz(func(t *testing.T, in []byte, fix bool) {
		head := make([]byte, headerBytes)
		copy(head[:superBytes], in)
		if fix {
			binary.LittleEndian.PutUint64(head[16:], superSum(head[:superBytes]))
		}
		original := string(head[:superBytes])
		const size = 1 << 40
		got := classify(head, size)
		if got.found != Ours {
			if got.found == Blank && original != string(make([]byte, superBytes)) {
				t.Fatal("a header that is not zeros is called blank")
			}
			return
		}
		s := got.super
		if s.end() > size || s.Slots < 1 || s.Slots%s.Run != 0 || s.head > s.areaPages || s.active > 1 ||
			s.area[0] < headerBytes || s.area[1]+int64(s.areaPages)*int64(s.page) > s.Base || s.entriesPerPage() < 4 {
			t.Fatalf("taken for ours: %+v", s)
		}
		again := make([]byte, superBytes)
		s.encode(again)
		back, found, _ := parseSuper(again)
		if found != Ours || back != s {
			t.Fatalf("%+v became %+v (%s)", s, back, found)
		}
	})
}

// FuzzPage verifies any page, also with right checksums, and replays what is
// found in it into a store.
func FuzzPage(f *testing.F) {
	o := small()
	l, err := newLayout(&o, sizeOf(o))
	if err != nil {
		f.Fatal(err)
	}
	fnd := finding{super: superblock{layout: l, uuid: o.UUID, generation: 1, base: 1}}
	page := make([]byte, l.page)
	var b builder
	b.reset(&l, page)
	e, _ := block(l.Geometry, 5, 9)
	putEntry(b.record(kindEntries), &e, 3)
	b.seal(pageID{o.UUID, 1, 0})
	f.Add(page, false)
	b.reset(&l, page)
	putTombstone(b.record(kindTombstones), 39, 4)
	putTombstone(b.record(kindTombstones), 1<<31, 5)
	b.seal(pageID{o.UUID, 1, 0})
	f.Add(page, true)
	f.Add([]byte("x"), true)
	f.Fuzz(func(t *testing.T, in []byte, fix bool) {
		page := make([]byte, l.page)
		copy(page, in)
		if fix {
			fixPage(&l, page, o.UUID)
		}
		s := newStore(disk{}, &o, &fnd)
		sc := scanner{nil, &fnd.super, 1}
		st := &stretch{buf: page, state: make([]uint8, 1), torn: make([]int32, 1)}
		sc.verify(st, 0)
		var r Recovery
		for _, ref := range st.recs {
			s.replay(page[ref.at:ref.at+ref.size], &r)
		}
		for slot := range Slot(l.Slots) {
			if s.mem.has(slot, flagLive) {
				s.adopt(slot, &r)
			}
		}
		var rep Report
		s.checkMemory(&rep)
		if len(rep.Problems) > 0 {
			t.Fatal(rep.Problems)
		}
		if fix && st.state[0] == pageValid && st.torn[0] > 0 {
			t.Fatal("records with right checksums are called torn")
		}
	})
}

// fixPage makes a page's checksums right.
func fixPage(l *layout, page []byte, uuid [16]byte) {
	le := binary.LittleEndian
	le.PutUint32(page[8:], pageMagic)
	copy(page[16:], uuid[:])
	le.PutUint64(page[32:], 1)
	le.PutUint64(page[40:], 0)
	seed := xxh3.Hash(page[8:pageHeader])
	le.PutUint64(page, seed)
	size := l.recordBytes(le.Uint16(page[12:]))
	for at := pageHeader; at+size <= len(page); at += size {
		le.PutUint64(page[at:], xxh3.HashSeed(page[at+8:at+size], seed))
	}
}
