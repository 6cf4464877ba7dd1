// Package elastic divides a worker's arena into elastic units, the pieces
// that change hands between a worker and the masters that borrow from it, and
// keeps the books on blocks inside units. Sources: SwiftCache Eq. 1-9 and
// Algorithm 1.
package elastic

import (
	"strconv"
	"time"
)

// Geometry is the KV geometry of one model (SwiftCache Eq. 1, 6).
type Geometry struct {
	Name        string
	Layers      int // L
	BlockTokens int // B
	KVHeads     int // H_kv
	HeadDim     int // D
	ElemBytes   int // sizeof(dtype)
}

// LayerBlockBytes is M_block: K and V of B tokens of one layer (Eq. 1).
func (g Geometry) LayerBlockBytes() int64 {
	return 2 * int64(g.BlockTokens) * int64(g.KVHeads) * int64(g.HeadDim) * int64(g.ElemBytes)
}

// FullBlockBytes is L layer blocks.
func (g Geometry) FullBlockBytes() int64 { return int64(g.Layers) * g.LayerBlockBytes() }

// Policy names how the size of a unit is chosen.
type Policy string

// The unit policies (DESIGN section 2).
const (
	PolicyLCM      Policy = "lcm"
	PolicyLayerLCM Policy = "layer-lcm"
	PolicyPadded   Policy = "padded"
)

// UnitSpec is the shape of one worker's units, agreed by the worker and every
// master that may borrow from it.
type UnitSpec struct {
	Policy Policy
	Bytes  int64 // size of a unit
	// PerUnit is how many blocks of a model one unit holds: full blocks
	// (MEU) under lcm and padded, layer blocks under layer-lcm. Key: model name.
	PerUnit map[string]int
	// Waste is the largest share of a unit that padding loses, over the models.
	Waste float64
}

// State of a unit (DESIGN section 4).
type State uint32

// The unit states.
const (
	Local State = iota
	Lent
	Reclaiming
	Fenced
	numStates
)

// String returns the state's name as in logs and tables.
func (s State) String() string {
	if s < numStates {
		return [...]string{"LOCAL", "LENT", "RECLAIMING", "FENCED"}[s]
	}
	return "State(" + strconv.Itoa(int(s)) + ")"
}

// Extent is a run of bytes in an arena: where one layer block lies.
type Extent struct {
	Off int64
	Len int64
}

// MaxUnits bounds the units of one arena; 64 bytes of table each, and one entry in
// messages that list them all. UnitSpec.Within makes units large enough.
const MaxUnits = 1 << 16

// MaxOwner bounds the index of a model (config order) in the unit table.
const MaxOwner = 1<<14 - 1

// UnitEpoch names a unit under one ownership: a grant, and the proof of it.
type UnitEpoch struct {
	Unit  uint32
	Epoch uint64
}

// BlockID identifies a full block handed out by a BlockSpace. IDs are dense
// and reused.
type BlockID int32

// UnitRow is one unit's row in the shared unit table.
type UnitRow struct {
	State  State
	Owner  uint32        // index of the model that may use the unit (config order)
	Epoch  uint64        // raised at every change of owner
	Expiry time.Duration // of the lease, on CLOCK_BOOTTIME; 0: none
}
