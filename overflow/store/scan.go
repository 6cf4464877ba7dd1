package store

import (
	"context"
	"errors"
	"sync"

	"github.com/kvlend/kvlend/overflow/device"
)

const (
	scanBytes = 1 << 20 // read at once
	scanLanes = 8       // in flight
)

// scanned is what a scan of the log found.
type scanned struct {
	next  int // behind the last valid page
	pages int // valid
	torn  int // records of valid pages that are not
	holes int // pages before next that are not valid, and unreadable ones
}

// State of a page.
const (
	pageInvalid = iota
	pageValid
	pageUnreadable
)

// stretch is some pages of the log, read and verified.
type stretch struct {
	buf   []byte
	first int       // index of its first page
	state []uint8   // by page
	recs  []scanRef // valid records in order
	torn  []int32   // by page: records that are not
	err   error
}

type scanRef struct {
	page int32 // of the stretch
	at   int32 // in buf
	size int32
}

// scanner reads the active area of a store's log. It reads ahead in lanes,
// which verify checksums in parallel, and applies records in order.
type scanner struct {
	disk  *disk
	super *superblock
	per   int // pages of a stretch
}

// accepts says whether a page that lies at index counts.
func (s *superblock) accepts(h *pageHead, index int) bool {
	if h.uuid != s.uuid || h.index != uint64(index) {
		return false
	}
	if index < s.head {
		return h.epoch >= s.base && h.epoch <= s.generation
	}
	return h.epoch == s.generation
}

// scan calls apply for each valid record of the active area in order. It ends
// where more pages in a row are missing than a batch has: no crash makes such a
// gap, so nothing lies behind it.
func (d *disk) scan(ctx context.Context, super *superblock, apply func(rec []byte)) (scanned, error) {
	sc := scanner{d, super, min(max(scanBytes/super.page, 1), super.areaPages)}
	ctx, cancel := context.WithCancel(ctx)
	var lanes sync.WaitGroup
	defer lanes.Wait()
	defer cancel()
	n := min(scanLanes, (super.areaPages+sc.per-1)/sc.per)
	ready := make([]chan *stretch, n)
	again := make([]chan *stretch, n)
	for i := range n {
		ready[i], again[i] = make(chan *stretch, 1), make(chan *stretch, 1)
		again[i] <- &stretch{buf: d.memory(sc.per * super.page), first: i * sc.per}
		lanes.Go(func() { sc.lane(ctx, again[i], ready[i]) })
	}
	var r scanned
	gap := 0
	for first, i := 0, 0; first < super.areaPages; first, i = first+sc.per, (i+1)%n {
		st := <-ready[i]
		if st.err != nil {
			return r, st.err
		}
		if sc.take(st, &r, &gap, apply) {
			break
		}
		st.first += n * sc.per
		again[i] <- st
	}
	if r.next < super.head {
		r.holes += super.head - r.next
		r.next = super.head
	}
	return r, nil
}

// take applies a stretch and says whether the log has ended.
func (sc *scanner) take(st *stretch, r *scanned, gap *int, apply func([]byte)) bool {
	recs := st.recs
	for p, state := range st.state {
		index := st.first + p
		switch state {
		case pageUnreadable:
			r.holes++
		case pageInvalid:
			*gap++
			if index >= sc.super.head && *gap > sc.super.batchPages() {
				return true
			}
			continue
		}
		if state == pageValid {
			r.pages++
			r.holes += *gap
			*gap = 0
			r.torn += int(st.torn[p])
		}
		r.next = index + 1
		for len(recs) > 0 && recs[0].page == int32(p) {
			apply(st.buf[recs[0].at : recs[0].at+recs[0].size])
			recs = recs[1:]
		}
	}
	return false
}

// lane reads and verifies the stretches that it is given until ctx ends.
func (sc *scanner) lane(ctx context.Context, in <-chan *stretch, out chan<- *stretch) {
	for {
		select {
		case <-ctx.Done():
			return
		case st := <-in:
			sc.fill(ctx, st)
			out <- st // has room: there is one stretch
		}
	}
}

// fill reads a stretch and verifies it.
func (sc *scanner) fill(ctx context.Context, st *stretch) {
	n := max(min(sc.per, sc.super.areaPages-st.first), 0)
	st.state = append(st.state[:0], make([]uint8, n)...)
	st.torn = append(st.torn[:0], make([]int32, n)...)
	st.recs = st.recs[:0]
	if n == 0 {
		return
	}
	page := sc.super.page
	off := sc.super.area[sc.super.active] + int64(st.first)*int64(page)
	st.err = sc.disk.read(ctx, off, st.buf[:n*page])
	if unreadable(st.err) {
		st.err = sc.fillSingly(ctx, st, off)
	}
	if st.err != nil {
		return
	}
	for p := range n {
		if st.state[p] != pageUnreadable {
			sc.verify(st, p)
		}
	}
}

// unreadable says whether an error is the medium's at one place, so that others
// may well be readable.
func unreadable(err error) bool {
	return errors.Is(err, device.ErrIO) || errors.Is(err, device.ErrShort)
}

// fillSingly reads each page by itself and marks those that cannot be read.
func (sc *scanner) fillSingly(ctx context.Context, st *stretch, off int64) error {
	page := sc.super.page
	for p := range st.state {
		err := sc.disk.read(ctx, off+int64(p*page), st.buf[p*page:(p+1)*page])
		if unreadable(err) {
			st.state[p] = pageUnreadable
		} else if err != nil {
			return err
		}
	}
	return nil
}

// verify finds the valid records of a page.
func (sc *scanner) verify(st *stretch, p int) {
	l := &sc.super.layout
	b := st.buf[p*l.page : (p+1)*l.page]
	h, ok := l.parseHead(b)
	if !ok || !sc.super.accepts(&h, st.first+p) {
		return
	}
	st.state[p] = pageValid
	size := l.recordBytes(h.kind)
	for i := range h.count {
		at := pageHeader + i*size
		if !recordOK(b[at:at+size], h.seed) {
			st.torn[p]++
			continue
		}
		st.recs = append(st.recs, scanRef{int32(p), int32(p*l.page + at), int32(size)})
	}
}
