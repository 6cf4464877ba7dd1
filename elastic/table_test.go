package elastic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"
	"time"
)

func TestTableFresh(t *testing.T) {
	spec := mustSpec(t, PolicyLCM, birch, atlas)
	table := mustTable(t, spec, 3*spec.Bytes+1)
	if table.Units() != 3 || table.UnitBytes() != spec.Bytes || table.Arena() != 3*spec.Bytes+1 || table.Worker() != self {
		t.Errorf("%+v", table)
	}
	for i := range 3 {
		if row := table.Row(i); row != (UnitRow{State: Local, Owner: self, Epoch: 1}) {
			t.Errorf("unit %d: %+v", i, row)
		}
		if !table.MayUse(i, self, 1) || table.MayUse(i, 0, 1) || table.MayUse(i, self, 2) {
			t.Errorf("unit %d: wrong owner", i)
		}
	}
	for _, i := range []int{-1, 3, math.MaxInt} {
		if table.MayUse(i, self, 1) || table.Remaining(i, 0) != 0 || table.Row(i).State != Fenced {
			t.Errorf("unit %d exists", i)
		}
	}
	if table.MayUse(0, MaxOwner+1, 1) || table.MayUse(0, self, 1<<50+1) {
		t.Error("owner or epoch out of range")
	}
	again, err := OpenUnitTable(table.words.mem)
	if err != nil || *again.header() != *table.header() {
		t.Errorf("%+v, %v", again, err)
	}
}

// header is what two views of one table have in common.
func (t *UnitTable) header() *[4]int64 {
	return &[4]int64{int64(t.units), t.unitSize, t.arena, int64(t.worker)}
}

func TestExpiryLimits(t *testing.T) {
	spec := mustSpec(t, PolicyLCM, birch, atlas)
	u := mustUnits(t, mustTable(t, spec, spec.Bytes), spec, 0)
	checked(t, u.Check)
	for _, c := range []struct{ expiry, shown time.Duration }{
		{0, 0}, {-time.Hour, 0}, {1999 * time.Microsecond, time.Millisecond},
		{time.Second, time.Second}, {math.MaxInt64, maxExpiry * time.Millisecond},
	} {
		g, err := u.Grant(0, 1, 1, c.expiry)
		expectErr(t, err, nil)
		if row := u.table.Row(0); row.Expiry != c.shown {
			t.Errorf("expiry %v shows as %v, want %v", c.expiry, row.Expiry, c.shown)
		}
		if left := u.table.Remaining(0, c.shown); left != 0 {
			t.Errorf("%v left at the end", left)
		}
		expectErr(t, u.Return(0, g[0]), nil)
		if row := u.table.Row(0); row.Expiry != 0 {
			t.Errorf("a LOCAL unit has a lease until %v", row.Expiry)
		}
	}
}

// TestStaleTag: a second word of another epoch counts as no lease.
func TestStaleTag(t *testing.T) {
	spec := mustSpec(t, PolicyLCM, birch, atlas)
	table := mustTable(t, spec, spec.Bytes)
	table.setExpiry(0, 7, time.Hour)
	table.setOwner(0, Lent, 0, 8)
	if left := table.Remaining(0, 0); left != 0 {
		t.Errorf("a lease of another epoch has %v left", left)
	}
	table.setExpiry(0, 8, time.Hour)
	if left := table.Remaining(0, 0); left != time.Hour {
		t.Errorf("%v left, want an hour", left)
	}
}

func TestFormatRefusals(t *testing.T) {
	spec := mustSpec(t, PolicyLCM, birch, atlas)
	mem := make([]byte, UnitTableBytes(4)+8)
	for name, f := range map[string]func() (*UnitTable, error){
		"short": func() (*UnitTable, error) {
			return FormatUnitTable(mem[:UnitTableBytes(4)-1], spec, 4*spec.Bytes, self)
		},
		"unaligned": func() (*UnitTable, error) { return FormatUnitTable(mem[1:], spec, 4*spec.Bytes, self) },
		"no unit":   func() (*UnitTable, error) { return FormatUnitTable(mem, UnitSpec{}, 4*spec.Bytes, self) },
		"no arena":  func() (*UnitTable, error) { return FormatUnitTable(mem, spec, 0, self) },
		"owner":     func() (*UnitTable, error) { return FormatUnitTable(mem, spec, 4*spec.Bytes, MaxOwner+1) },
	} {
		if _, err := f(); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestOpenRefusals(t *testing.T) {
	spec := mustSpec(t, PolicyLCM, birch, atlas)
	good := mustTable(t, spec, 4*spec.Bytes).words.mem
	for name, damage := range map[string]func(b []byte) []byte{
		"empty":      func([]byte) []byte { return nil },
		"header cut": func(b []byte) []byte { return b[:headerBytes-1] },
		"row cut":    func(b []byte) []byte { return b[:len(b)-1] },
		"magic":      func(b []byte) []byte { b[0]++; return b },
		"version":    func(b []byte) []byte { b[8]++; return b },
		"row size":   func(b []byte) []byte { b[12]++; return b },
		"units":      func(b []byte) []byte { b[16]++; return b },
		"owner":      func(b []byte) []byte { b[23] = 0xff; return b },
		"unit size":  func(b []byte) []byte { binary.NativeEndian.PutUint64(b[24:], 0); return b },
		"unit sign":  func(b []byte) []byte { binary.NativeEndian.PutUint64(b[24:], 1<<63); return b },
		"arena":      func(b []byte) []byte { binary.NativeEndian.PutUint64(b[32:], 0); return b },
		"unaligned":  func(b []byte) []byte { return append(make([]byte, 1, len(b)+1), b...)[1:] },
	} {
		if _, err := OpenUnitTable(damage(bytes.Clone(good))); !errors.Is(err, ErrBadTable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzOpenUnitTable opens arbitrary bytes and uses what opens.
func FuzzOpenUnitTable(f *testing.F) {
	spec := mustSpec(f, PolicyLCM, birch, atlas)
	for _, n := range []int64{1, 4} {
		f.Add(bytes.Clone(mustTable(f, spec, n*spec.Bytes).words.mem))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		mem := make([]byte, (len(data)+7)&^7)
		copy(mem, data)
		table, err := OpenUnitTable(mem)
		if err != nil {
			if !errors.Is(err, ErrBadTable) {
				t.Fatal(err)
			}
			return
		}
		for i := -1; i <= table.Units(); i++ {
			row := table.Row(i)
			if row.State >= numStates || row.Epoch > maxEpoch || row.Expiry < 0 || row.Owner > MaxOwner+1 {
				t.Fatalf("unit %d: %+v", i, row)
			}
			if table.Remaining(i, 0) < 0 {
				t.Fatal("negative lease")
			}
			inside := i >= 0 && i < table.Units()
			if table.MayUse(i, row.Owner, row.Epoch) != (inside && row.State != Fenced) {
				t.Fatalf("unit %d: %+v", i, row)
			}
		}
		CheckTable(table, 0)
		per := int(min(table.UnitBytes()/birch.FullBlockBytes(), 1<<20))
		u, err := NewUnits(UnitsOptions{
			Geometry: birch, Table: table,
			Spec: UnitSpec{Policy: PolicyLCM, Bytes: table.UnitBytes(), PerUnit: map[string]int{"birch": per}},
		})
		if err != nil {
			return
		}
		for _, err := range u.Check() {
			t.Fatal(err)
		}
	})
}
