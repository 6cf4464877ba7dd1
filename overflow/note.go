package overflow

import (
	"encoding/binary"
	"time"
)

// What is left on a device (store.Store.SetNote):
//
//	state of the budget | 1 byte: whether the last user ended in good order | 8 bytes: Device.Doubt
//
// Earlier versions left the first part alone.
const lifeBytes = 9

// loadNote takes over what the last user has left, and finds out how it ended.
func (d *Device) loadNote() {
	kept, orderly := d.Store.Note(), false
	if len(kept) == 0 {
		s, _ := d.opt.load(d.uuid())
		kept = s.Budget
	}
	// A state of the budget that does not fit is none.
	if n := len(kept) - lifeBytes; n > 0 && d.Budget.UnmarshalBinary(kept) != nil && d.Budget.UnmarshalBinary(kept[:n]) == nil {
		orderly, d.Doubt = kept[n] == 1, int64(binary.LittleEndian.Uint64(kept[n+1:]))
	}
	switch {
	case d.Recovery.Entries == 0:
		d.Doubt = 0
	case !orderly:
		d.Doubt = time.Now().Unix()
	}
}

// saveNote leaves the state of the budget, and whether all that was stored is durable
// and nobody goes on.
func (d *Device) saveNote() error {
	d.unsaved.Store(0)
	b, err := d.Budget.MarshalBinary()
	if err != nil {
		return err
	}
	b = append(b, 0)
	if d.ended {
		b[len(b)-1] = 1
	}
	return d.Store.SetNote(binary.LittleEndian.AppendUint64(b, uint64(d.Doubt)))
}
