package wire

import "fmt"

// The messages for operators: the check of invariants and the drain, from the
// gateway to a model process and back.

// Bounds of the operators' messages.
const (
	MaxFindings   = 256     // findings in one report
	MaxCheckUnits = 1 << 18 // units in one list of a report
)

// CheckAsk asks a model process to check itself.
type CheckAsk struct {
	ID uint64 `cbor:"1,keyasint"`
}

// CheckReport answers CheckAsk: what the process found wrong within itself,
// and its part of what only several processes together can show.
type CheckReport struct {
	ID    uint64 `cbor:"1,keyasint"`
	Model string `cbor:"2,keyasint"`
	Role  string `cbor:"3,keyasint"`
	PID   int    `cbor:"4,keyasint"`
	Index uint32 `cbor:"5,keyasint"` // the model's owner index in unit tables

	Findings []Finding `cbor:"6,keyasint"`
	// Clipped says that findings or units did not fit: the report is not the
	// whole truth.
	Clipped bool `cbor:"7,keyasint"`

	// A worker's units.
	Total    int            `cbor:"8,keyasint"`  // all of them
	Local    int            `cbor:"9,keyasint"`  // at home
	Away     []UnitGroup    `cbor:"10,keyasint"` // the others
	Versions []OwnerVersion `cbor:"11,keyasint"` // of each borrower's units

	// A master's view of each worker's units.
	Holds []Holding `cbor:"12,keyasint"`
}

// Finding is one violation of an invariant.
type Finding struct {
	Invariant string `cbor:"1,keyasint"`
	Text      string `cbor:"2,keyasint"`
}

// UnitGroup is the units of a worker that one borrower has in one state.
type UnitGroup struct {
	Owner uint32      `cbor:"1,keyasint"`
	State string      `cbor:"2,keyasint"` // LENT, RECLAIMING, FENCED
	Units []UnitEpoch `cbor:"3,keyasint"` // at the epochs of the worker's book
}

// OwnerVersion is the version of a borrower's units at the worker.
type OwnerVersion struct {
	Owner   uint32 `cbor:"1,keyasint"`
	Version uint64 `cbor:"2,keyasint"`
}

// Holding is what a master has of one worker.
type Holding struct {
	Worker  string      `cbor:"1,keyasint"`
	Version uint64      `cbor:"2,keyasint"` // that its replica shows; 0: none yet
	Used    []UnitEpoch `cbor:"3,keyasint"` // the cache's
	Known   []UnitEpoch `cbor:"4,keyasint"` // the protocol's: in use, or lost and not yet released
	Parting []UnitEpoch `cbor:"5,keyasint"` // given up, which the worker has not acknowledged
}

// DrainAsk starts or undoes a drain, and asks how far it is. It may be
// repeated.
type DrainAsk struct {
	ID   uint64 `cbor:"1,keyasint"`
	Undo bool   `cbor:"2,keyasint"`
}

// DrainState answers DrainAsk.
type DrainState struct {
	ID       uint64 `cbor:"1,keyasint"`
	Draining bool   `cbor:"2,keyasint"`
	Requests int    `cbor:"3,keyasint"` // not yet ended
	// Units is how many units are still lent (a worker) or borrowed (a master).
	Units int `cbor:"4,keyasint"`
}

// Drained reports whether nothing is left to wait for.
func (m *DrainState) Drained() bool { return m.Draining && m.Requests == 0 && m.Units == 0 }

// Type implements Message.
func (*CheckAsk) Type() Type { return TypeCheckAsk }

// Type implements Message.
func (*CheckReport) Type() Type { return TypeCheckReport }

// Type implements Message.
func (*DrainAsk) Type() Type { return TypeDrainAsk }

// Type implements Message.
func (*DrainState) Type() Type { return TypeDrainState }

// Validate implements Message.
func (m *CheckAsk) Validate() error {
	var c check
	c.id("ID", m.ID)
	return c.err
}

// Validate implements Message.
func (m *CheckReport) Validate() error {
	var c check
	c.id("ID", m.ID)
	c.text("Model", m.Model, MaxName)
	c.text("Role", m.Role, MaxName)
	c.count("PID", int64(m.PID), 0, 1<<31-1)
	c.length("Findings", len(m.Findings), MaxFindings)
	for i := range m.Findings {
		c.text(fmt.Sprintf("Findings[%d].Invariant", i), m.Findings[i].Invariant, MaxName)
		c.text(fmt.Sprintf("Findings[%d].Text", i), m.Findings[i].Text, MaxText)
	}
	c.count("Total", int64(m.Total), 0, MaxUnits)
	c.count("Local", int64(m.Local), 0, MaxUnits)
	c.length("Away", len(m.Away), 3*MaxPeers)
	for i := range m.Away {
		c.text(fmt.Sprintf("Away[%d].State", i), m.Away[i].State, MaxName)
		c.checkUnits(fmt.Sprintf("Away[%d].Units", i), m.Away[i].Units)
	}
	c.length("Versions", len(m.Versions), MaxPeers)
	c.length("Holds", len(m.Holds), MaxPeers)
	for i := range m.Holds {
		c.text(fmt.Sprintf("Holds[%d].Worker", i), m.Holds[i].Worker, MaxName)
		c.checkUnits(fmt.Sprintf("Holds[%d].Used", i), m.Holds[i].Used)
		c.checkUnits(fmt.Sprintf("Holds[%d].Known", i), m.Holds[i].Known)
		c.checkUnits(fmt.Sprintf("Holds[%d].Parting", i), m.Holds[i].Parting)
	}
	return c.err
}

func (c *check) checkUnits(field string, us []UnitEpoch) {
	c.length(field, len(us), MaxCheckUnits)
	c.units(field, us)
}

// Validate implements Message.
func (m *DrainAsk) Validate() error {
	var c check
	c.id("ID", m.ID)
	return c.err
}

// Validate implements Message.
func (m *DrainState) Validate() error {
	var c check
	c.id("ID", m.ID)
	c.count("Requests", int64(m.Requests), 0, maxCount)
	c.count("Units", int64(m.Units), 0, MaxUnits)
	return c.err
}
