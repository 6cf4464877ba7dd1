package store

// builder puts records into pages, those of a kind together. Pages are opened
// as they are needed and sealed at the end.
type builder struct {
	l     *layout
	buf   []byte // whole pages
	pages []openPage
	open  [kindTombstones + 1]int // by kind: index into pages, plus one
}

type openPage struct {
	kind  uint16
	count int
}

// reset makes the builder empty; it may use pages of buf.
func (b *builder) reset(l *layout, buf []byte) {
	b.l, b.buf = l, buf
	b.pages = b.pages[:0]
	b.open = [kindTombstones + 1]int{}
}

// record is room for the next record; nil: there is none.
func (b *builder) record(kind uint16) []byte {
	size := b.l.recordBytes(kind)
	per := b.l.entriesPerPage()
	if kind == kindTombstones {
		per = b.l.tombstonesPerPage()
	}
	p := b.open[kind]
	if p == 0 || b.pages[p-1].count == per {
		if (len(b.pages)+1)*b.l.page > len(b.buf) {
			return nil
		}
		b.pages = append(b.pages, openPage{kind: kind})
		p = len(b.pages)
		b.open[kind] = p
	}
	page := &b.pages[p-1]
	at := (p-1)*b.l.page + pageHeader + page.count*size
	page.count++
	return b.buf[at : at+size : at+size]
}

// seal completes the pages, the first of which is to lie at id.index, and
// answers their bytes.
func (b *builder) seal(id pageID) []byte {
	for i, p := range b.pages {
		b.l.sealPage(b.buf[i*b.l.page:(i+1)*b.l.page], id, p.kind, p.count)
		id.index++
	}
	return b.buf[:len(b.pages)*b.l.page]
}
