package overflow

import (
	"encoding/json"
	"fmt"
	"math"
	"os"

	"github.com/kvlend/kvlend/overflow/device"
)

// state is what is remembered of a device beside its data.
type state struct {
	UUID    string         `json:"store"`
	Profile device.Profile `json:"profile"`
	Budget  []byte         `json:"budget,omitempty"`
}

func uuidText(uuid [16]byte) string { return fmt.Sprintf("%x", uuid) }

// statePath is the file beside a device's file where its profile is kept. What is
// not a file has none: it is measured at each start. The budget's state is on the
// device itself (store.Store.SetNote); files of earlier versions have it here.
func (o *DeviceOptions) statePath() string {
	if info, err := os.Stat(o.Path); err != nil || !info.Mode().IsRegular() || o.Path == MemoryPath {
		return ""
	}
	return o.Path + ".state"
}

// load is the state that belongs to a store.
func (o *DeviceOptions) load(uuid string) (s state, ok bool) {
	raw, err := os.ReadFile(o.statePath())
	if err != nil || json.Unmarshal(raw, &s) != nil || s.UUID != uuid {
		return state{}, false
	}
	return s, true
}

func (o *DeviceOptions) save(s state) error {
	path := o.statePath()
	if path == "" {
		return nil
	}
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	next := path + ".new"
	if err := os.WriteFile(next, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// driftFactor is how far reads may be from the profile before it is no longer
// believed. Where blocks go follows what loads achieve at once; the profile is
// what a start begins with, so that is when measuring anew pays.
const driftFactor = 2

// Drifted compares what reads achieve lately with the profile, at the sizes and
// depths with which the device is used. ratio is 0 while too little is known, or
// the sizes are not those that were measured.
func (d *Device) Drifted() (ratio float64, drifted bool) {
	m := d.Meter()
	if m == nil {
		return 0, false
	}
	least, most := math.Inf(1), 0.0
	for _, p := range d.Profile.Read {
		least, most = min(least, float64(p.Size)), max(most, float64(p.Size))
	}
	if size := m.Stats().Read.Size; size < least/2 || size > most*2 {
		return 0, false
	}
	// Writes are left out: the meter does not see what their syncs cost.
	ratio, _ = m.Drifted(device.Profile{Read: d.Profile.Read})
	return ratio, ratio != 0 && (ratio > driftFactor || ratio < 1.0/driftFactor)
}
