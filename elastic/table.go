package elastic

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Layout of a unit table, in 64-bit words of the host's byte order (the table
// never leaves the host):
//
//	header, 64 bytes
//	  0  magic
//	  1  version (low 32 bits), bytes of a row (high 32 bits)
//	  2  units (low 32 bits), the worker's owner index (high 32 bits)
//	  3  bytes of a unit
//	  4  bytes of the arena
//	rows, 64 bytes each, so that no two units share a cache line
//	  0  epoch (high 48 bits), owner (14 bits), state (2 bits)
//	  1  expiry in milliseconds (high 40 bits), low 24 bits of the epoch
//
// A row's first word says everything about ownership, so it cannot be torn.
// The second carries a tag of the epoch it was written for: a reader that
// catches it between two owners sees tags differ and treats the lease as over.
// The writer stores the second word first when a lease begins.
const (
	tableMagic   = 0x314e5544_4e454c4b // "KLENDUN1" in memory on little-endian hosts
	tableVersion = 1

	wordMagic    = 0
	wordVersion  = 1
	wordUnits    = 2
	wordUnitSize = 3
	wordArena    = 4
	wordRows     = 8
	rowBytes     = 64
	rowWords     = rowBytes / 8
	headerBytes  = wordRows * 8

	ownerBits  = 14
	stateBits  = 2
	epochShift = ownerBits + stateBits
	maxEpoch   = 1<<(64-epochShift) - 1
	tagBits    = 24
	tagMask    = 1<<tagBits - 1
	maxExpiry  = 1<<(64-tagBits) - 1 // milliseconds: 34 years
)

// ErrBadTable says that bytes are not a unit table.
var ErrBadTable = errors.New("not a usable unit table")

// UnitTableBytes is the size of the table of an arena with n units.
func UnitTableBytes(n int) int64 { return headerBytes + int64(n)*rowBytes }

// UnitTable is the view of one arena's unit table, which lies in host memory
// that several processes map. The worker's Units writes it; everyone else only
// reads. Reading is safe for concurrent use, in any number of processes,
// beside the writer. Every method treats the bytes as untrusted: whatever they
// hold, it returns a value in range.
type UnitTable struct {
	words    words
	units    int
	unitSize int64
	arena    int64
	worker   uint32
}

// FormatUnitTable writes an empty table (every unit LOCAL, owned by worker, at
// epoch 1) into mem, which must be 8-byte aligned and at least
// UnitTableBytes(units) long. Nobody else may use mem meanwhile.
func FormatUnitTable(mem []byte, spec UnitSpec, arena int64, worker uint32) (*UnitTable, error) {
	units, _ := spec.Divide(arena)
	if spec.Bytes <= 0 || arena <= 0 || worker > MaxOwner {
		return nil, fmt.Errorf("unit table of %d bytes in units of %d for owner %d: want positive sizes and an owner of at most %d", arena, spec.Bytes, worker, MaxOwner)
	}
	size := UnitTableBytes(units)
	if int64(len(mem)) < size {
		return nil, fmt.Errorf("unit table of %d units in %d bytes, want %d: %w", units, len(mem), size, ErrBadTable)
	}
	w, ok := newWords(mem[:size])
	if !ok {
		return nil, fmt.Errorf("memory is not aligned to 8 bytes: %w", ErrBadTable)
	}
	w.store(wordMagic, 0) // a reader that comes too early finds no table
	w.store(wordVersion, tableVersion|rowBytes<<32)
	w.store(wordUnits, uint64(units)|uint64(worker)<<32)
	w.store(wordUnitSize, uint64(spec.Bytes))
	w.store(wordArena, uint64(arena))
	t := &UnitTable{words: w, units: units, unitSize: spec.Bytes, arena: arena, worker: worker}
	for u := range units {
		w.store(wordRows+u*rowWords+1, 0)
		t.setOwner(u, Local, worker, 1)
	}
	w.store(wordMagic, tableMagic)
	return t, nil
}

// OpenUnitTable checks the header in mem and returns a view of the table.
func OpenUnitTable(mem []byte) (*UnitTable, error) {
	bad := func(format string, args ...any) (*UnitTable, error) {
		return nil, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrBadTable)
	}
	if len(mem) < headerBytes {
		return bad("%d bytes, want at least %d", len(mem), headerBytes)
	}
	w, ok := newWords(mem[:len(mem)&^7])
	if !ok {
		return bad("memory is not aligned to 8 bytes")
	}
	if m := w.load(wordMagic); m != tableMagic {
		return bad("magic is %#x, want %#x", m, uint64(tableMagic))
	}
	version := w.load(wordVersion)
	if uint32(version) != tableVersion || version>>32 != rowBytes {
		return bad("version %d with rows of %d bytes, want %d and %d", uint32(version), version>>32, tableVersion, rowBytes)
	}
	counts, unitSize, arena := w.load(wordUnits), w.load(wordUnitSize), w.load(wordArena)
	units, worker := int64(uint32(counts)), uint32(counts>>32)
	if unitSize == 0 || unitSize > math.MaxInt64 || arena == 0 || arena > math.MaxInt64 || worker > MaxOwner {
		return bad("arena of %d bytes in units of %d for owner %d", arena, unitSize, worker)
	}
	if n, _ := (UnitSpec{Bytes: int64(unitSize)}).Divide(int64(arena)); int64(n) != units {
		return bad("%d units, want %d", units, n)
	}
	if size := UnitTableBytes(int(units)); int64(len(mem)) < size {
		return bad("%d bytes for %d units, want %d", len(mem), units, size)
	}
	return &UnitTable{words: w, units: int(units), unitSize: int64(unitSize), arena: int64(arena), worker: worker}, nil
}

// Units is the number of units.
func (t *UnitTable) Units() int { return t.units }

// UnitBytes is the size of a unit.
func (t *UnitTable) UnitBytes() int64 { return t.unitSize }

// Arena is the size of the arena in bytes.
func (t *UnitTable) Arena() int64 { return t.arena }

// Worker is the owner index of the arena's own model.
func (t *UnitTable) Worker() uint32 { return t.worker }

// Row returns one unit's row. A unit out of range is Fenced, owned by nobody
// (an index above MaxOwner).
func (t *UnitTable) Row(unit int) UnitRow {
	if unit < 0 || unit >= t.units {
		return UnitRow{State: Fenced, Owner: MaxOwner + 1}
	}
	first := t.words.load(wordRows + unit*rowWords)
	second := t.words.load(wordRows + unit*rowWords + 1)
	row := UnitRow{
		State: State(first & (1<<stateBits - 1)),
		Owner: uint32(first>>stateBits) & MaxOwner,
		Epoch: first >> epochShift,
	}
	if leased(row.State) && second&tagMask == row.Epoch&tagMask {
		row.Expiry = time.Duration(second>>tagBits) * time.Millisecond
	}
	return row
}

func leased(s State) bool { return s == Lent || s == Reclaiming }

// MayUse reports whether owner holds the unit under exactly this epoch and is
// not fenced. It is one atomic load; the answer may be outdated when it
// returns, so a reader asks again after its copy has completed.
func (t *UnitTable) MayUse(unit int, owner uint32, epoch uint64) bool {
	if unit < 0 || unit >= t.units || owner > MaxOwner || epoch > maxEpoch {
		return false
	}
	first := t.words.load(wordRows + unit*rowWords)
	return first>>stateBits == epoch<<ownerBits|uint64(owner) && State(first&(1<<stateBits-1)) != Fenced
}

// Remaining is how long the unit's lease still lasts at now (CLOCK_BOOTTIME),
// whoever holds it; 0 when there is none or it is over. A caller checks MayUse
// after Remaining: the time then belongs to its own lease.
func (t *UnitTable) Remaining(unit int, now time.Duration) time.Duration {
	row := t.Row(unit)
	return max(0, row.Expiry-now)
}

// setOwner writes the first word of a row.
func (t *UnitTable) setOwner(unit int, s State, owner uint32, epoch uint64) {
	t.words.store(wordRows+unit*rowWords, epoch<<epochShift|uint64(owner)<<stateBits|uint64(s))
}

// setExpiry writes the second word of a row, rounded down so that a lease
// never looks longer than it is.
func (t *UnitTable) setExpiry(unit int, epoch uint64, expiry time.Duration) {
	ms := uint64(min(max(expiry, 0)/time.Millisecond, maxExpiry))
	t.words.store(wordRows+unit*rowWords+1, ms<<tagBits|epoch&tagMask)
}
