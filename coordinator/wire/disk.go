package wire

import (
	"fmt"
	"time"
)

// MaxDisks bounds Status.Disks.
const MaxDisks = 256

// DiskStatus is one device of a master's part of the overflow pool.
type DiskStatus struct {
	Name     string `cbor:"1,keyasint" json:"name"`
	Kind     string `cbor:"2,keyasint,omitempty" json:"kind"` // file, block, nvme
	Path     string `cbor:"3,keyasint,omitempty" json:"path"`
	Degraded string `cbor:"4,keyasint,omitempty" json:"degraded"` // why a slower path than intended is in use
	// Fenced says why the device is out of use; empty: it is in use.
	Fenced   string `cbor:"5,keyasint,omitempty" json:"fenced"`
	Draining bool   `cbor:"6,keyasint,omitempty" json:"draining"`
	// Blocks that fit, that would survive a restart, and that are free.
	Slots int `cbor:"7,keyasint,omitempty" json:"slots"`
	Live  int `cbor:"8,keyasint,omitempty" json:"live"`
	Free  int `cbor:"9,keyasint,omitempty" json:"free"`
	Lag   int `cbor:"10,keyasint,omitempty" json:"lag"` // changes that are not durable yet
	// Rate is the bandwidth of reads that was measured, Seen that of loads lately,
	// in bytes per second. Loads begin before they are waited for, so Seen may be
	// above what the device achieves (Read.Rate).
	Rate       int64     `cbor:"11,keyasint,omitempty" json:"rate"`
	Seen       int64     `cbor:"12,keyasint,omitempty" json:"seen"`
	Read       DiskUsage `cbor:"13,keyasint,omitempty" json:"read"`
	Write      DiskUsage `cbor:"14,keyasint,omitempty" json:"write"`
	InFlight   int       `cbor:"15,keyasint,omitempty" json:"in_flight"`
	Errors     int64     `cbor:"16,keyasint,omitempty" json:"errors"`
	Corrupt    uint64    `cbor:"17,keyasint,omitempty" json:"corrupt"`     // blocks that were not what had been stored
	BudgetLeft int64     `cbor:"18,keyasint,omitempty" json:"budget_left"` // bytes that may be written now
	// LifeDays is how long the device lasts at the rate of writes so far; 0: not
	// known.
	LifeDays int64 `cbor:"19,keyasint,omitempty" json:"life_days"`
	Budget   int64 `cbor:"20,keyasint,omitempty" json:"budget"` // bytes that may be written in a day; 0: no limit
	// Late counts answers that were not waited for. Slow: the last one was so lately
	// that what the device holds is computed.
	Late uint64 `cbor:"21,keyasint,omitempty" json:"late"`
	Slow bool   `cbor:"22,keyasint,omitempty" json:"slow"`
	// Reused counts blocks whose places had been used again before a crash. It is no
	// fault of the device.
	Reused uint64 `cbor:"23,keyasint,omitempty" json:"reused"`
}

// DiskUsage is what was read from or written to a device since the start.
type DiskUsage struct {
	IOs   int64         `cbor:"1,keyasint,omitempty" json:"ios"`
	Bytes int64         `cbor:"2,keyasint,omitempty" json:"bytes"`
	P50   time.Duration `cbor:"3,keyasint,omitempty" json:"p50_ns"`
	P99   time.Duration `cbor:"4,keyasint,omitempty" json:"p99_ns"`
	// Rate is the bandwidth lately, while any were under way, in bytes per second.
	Rate int64 `cbor:"5,keyasint,omitempty" json:"rate"`
}

// UnloadAsk starts or undoes the drain of a device of a model's overflow pool, and
// asks how far it is. It may be repeated.
type UnloadAsk struct {
	ID     uint64 `cbor:"1,keyasint"`
	Device string `cbor:"2,keyasint"`
	Undo   bool   `cbor:"3,keyasint,omitempty"`
}

// UnloadState answers UnloadAsk.
type UnloadState struct {
	ID       uint64 `cbor:"1,keyasint"`
	Draining bool   `cbor:"2,keyasint,omitempty"`
	Blocks   int    `cbor:"3,keyasint,omitempty"` // that are still there
	// Fenced says why the device is out of use: nothing of what is there will be
	// used, draining or not.
	Fenced string `cbor:"4,keyasint,omitempty"`
	// Unknown says that there is no such device, and which there are. The other
	// fields are empty then.
	Unknown string `cbor:"5,keyasint,omitempty"`
}

// Unloaded reports whether nothing is left to wait for.
func (m *UnloadState) Unloaded() bool { return m.Fenced != "" || m.Draining && m.Blocks == 0 }

// Type implements Message.
func (*UnloadAsk) Type() Type { return TypeUnloadAsk }

// Type implements Message.
func (*UnloadState) Type() Type { return TypeUnloadState }

// Validate implements Message.
func (m *UnloadAsk) Validate() error {
	var c check
	c.id("ID", m.ID)
	c.name("Device", m.Device)
	return c.err
}

// Validate implements Message.
func (m *UnloadState) Validate() error {
	var c check
	c.id("ID", m.ID)
	c.count("Blocks", int64(m.Blocks), 0, maxCount)
	c.text("Fenced", m.Fenced, MaxText)
	c.text("Unknown", m.Unknown, MaxText)
	return c.err
}

func (c *check) disks(disks []DiskStatus) {
	c.length("Disks", len(disks), MaxDisks)
	for i := range disks {
		d := &disks[i]
		at := func(field string) string { return fmt.Sprintf("Disks[%d].%s", i, field) }
		for field, text := range map[string]string{"Name": d.Name, "Kind": d.Kind, "Path": d.Path, "Degraded": d.Degraded, "Fenced": d.Fenced} {
			c.text(at(field), text, MaxText)
		}
		for field, n := range map[string]int64{
			"Slots": int64(d.Slots), "Live": int64(d.Live), "Free": int64(d.Free), "Lag": int64(d.Lag), "Rate": d.Rate, "Seen": d.Seen,
			"InFlight": int64(d.InFlight), "Errors": d.Errors, "BudgetLeft": d.BudgetLeft, "LifeDays": d.LifeDays, "Budget": d.Budget,
			"Read.IOs": d.Read.IOs, "Read.Bytes": d.Read.Bytes, "Read.P50": int64(d.Read.P50), "Read.P99": int64(d.Read.P99), "Read.Rate": d.Read.Rate,
			"Write.IOs": d.Write.IOs, "Write.Bytes": d.Write.Bytes, "Write.P50": int64(d.Write.P50), "Write.P99": int64(d.Write.P99), "Write.Rate": d.Write.Rate,
		} {
			c.count(at(field), n, 0, maxCount)
		}
	}
}
