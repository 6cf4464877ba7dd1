package device

import (
	"bytes"
	"encoding/binary"
)

// Untouched knows what a device holds that nobody has used: zeros, and what
// prewriting leaves.
type Untouched struct {
	zeros []byte
	pages map[uint64][]byte // of the noise, by their second word
	noise *noise
}

// NewUntouched prepares the comparison; Close ends it.
func NewUntouched() (*Untouched, error) {
	z, err := newNoise()
	if err != nil {
		return nil, err
	}
	u := &Untouched{zeros: make([]byte, Align), pages: map[uint64][]byte{}, noise: z}
	for at := 0; at < fillStep; at += Align {
		page := z.buf[at : at+Align]
		u.pages[binary.LittleEndian.Uint64(page[8:])] = page
	}
	return u, nil
}

// Is reports that nobody has written the page at offset off but Prewrite, or the making
// of a file. A page may be shorter than Align: a crash can end a file there.
func (u *Untouched) Is(off int64, page []byte) bool {
	if bytes.Equal(page, u.zeros[:len(page)]) {
		return true
	}
	if len(page) < 16 || binary.LittleEndian.Uint64(page) != uint64(off) {
		return false
	}
	want, ok := u.pages[binary.LittleEndian.Uint64(page[8:])]
	return ok && bytes.Equal(page[8:], want[8:len(page)])
}

// Close gives its memory back.
func (u *Untouched) Close() error { return u.noise.close() }
