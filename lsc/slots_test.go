package lsc

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestSlotsEquations checks SwiftCache Eq. 3-5 on the paper's example and on
// the edges.
func TestSlotsEquations(t *testing.T) {
	for _, c := range []struct{ kMaster, layers, slots, rc int }{
		{100, 10, 17, 8}, // the paper's example
		{100, 10, 0, 10},
		{100, 10, 100, 0},
		{107, 10, 7, 10}, // the remainder holds them all
		{107, 10, 8, 9},
		{9, 10, 9, 0}, // less than one full block
		{5, 1, 3, 2},
		{0, 4, 0, 0},
	} {
		s, err := NewSlots(c.kMaster, c.layers, 64, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.MaxRC(c.slots); got != c.rc {
			t.Errorf("%+v: MaxRC = %d", c, got)
		}
		if _, ok := s.AllocSlots(nil, c.slots); !ok {
			t.Fatalf("%+v: AllocSlots failed", c)
		}
		n := 0
		for {
			if _, ok := s.AllocRC(); !ok {
				break
			}
			n++
		}
		if n != c.rc {
			t.Errorf("%+v: %d full blocks fit beside the slots", c, n)
		}
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestSlotsOffsets(t *testing.T) {
	s, err := NewSlots(25, 4, 100, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.SlotOffset(24); got != 3400 {
		t.Errorf("SlotOffset(24) = %d", got)
	}
	if got := s.RCOffset(2, 3); got != 1000+(2*4+3)*100 {
		t.Errorf("RCOffset(2, 3) = %d", got)
	}
}

func TestSlotsRefusals(t *testing.T) {
	for _, c := range [][4]int64{{-1, 1, 1, 0}, {1, 0, 1, 0}, {1, 1, 0, 0}, {1, 1, 1, -1}, {1 << 40, 1, 1, 0}} {
		if _, err := NewSlots(int(c[0]), int(c[1]), c[2], c[3]); err == nil {
			t.Errorf("NewSlots%v succeeded", c)
		}
	}
	s, err := NewSlots(10, 3, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.AllocSlots(nil, 11); ok {
		t.Error("11 of 10 slots were given")
	}
	if _, ok := s.AllocSlots(nil, -1); ok {
		t.Error("-1 slots were given")
	}
	for name, f := range map[string]func(){
		"FreeRC":          func() { s.FreeRC(0) },
		"FreeRC range":    func() { s.FreeRC(3) },
		"FreeSlots":       func() { s.FreeSlots([]int32{9}) },
		"FreeSlots range": func() { s.FreeSlots([]int32{10}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s of something free did not panic", name)
				}
			}()
			f()
		}()
	}
}

// slotsModel says for every slot who holds it.
type slotsModel struct {
	s     *Slots
	held  []int32 // LSC slots
	rc    []int   // chunks
	owner map[int32]string
}

func (m *slotsModel) own(t *rapid.T, slot int32, who string) {
	if had := m.owner[slot]; had != "" {
		t.Fatalf("slot %d given to %s while %s holds it", slot, who, had)
	}
	m.owner[slot] = who
}

func (m *slotsModel) allocSlots(t *rapid.T) {
	n := rapid.IntRange(0, m.s.KMaster()+1).Draw(t, "n")
	free := m.s.SlotsFree()
	got, ok := m.s.AllocSlots(nil, n)
	if ok != (n <= free) || ok && len(got) != n || !ok && len(got) != 0 {
		t.Fatalf("AllocSlots(%d) with %d free: %v, %v", n, free, got, ok)
	}
	for _, slot := range got {
		m.own(t, slot, "lsc")
	}
	m.held = append(m.held, got...)
}

func (m *slotsModel) freeSlots(t *rapid.T) {
	n := rapid.IntRange(0, len(m.held)).Draw(t, "n")
	for range n {
		i := rapid.IntRange(0, len(m.held)-1).Draw(t, "i")
		slot := m.held[i]
		m.held = slices.Delete(m.held, i, i+1)
		delete(m.owner, slot)
		m.s.FreeSlots([]int32{slot})
	}
}

func (m *slotsModel) allocRC(t *rapid.T) {
	want := m.s.RCFree() > 0
	c, ok := m.s.AllocRC()
	if ok != want {
		t.Fatalf("AllocRC: %v, RCFree said %v", ok, want)
	}
	if ok {
		m.rc = append(m.rc, c)
		for l := range m.s.layers {
			m.own(t, int32(c*m.s.layers+l), "rc")
		}
	}
}

func (m *slotsModel) freeRC(t *rapid.T) {
	if len(m.rc) == 0 {
		t.Skip("no full block to free")
	}
	i := rapid.IntRange(0, len(m.rc)-1).Draw(t, "i")
	for l := range m.s.layers {
		delete(m.owner, int32(m.rc[i]*m.s.layers+l))
	}
	m.s.FreeRC(m.rc[i])
	m.rc = slices.Delete(m.rc, i, i+1)
}

func (m *slotsModel) compact(t *rapid.T) {
	m.s.Compact(func(from, to int32) {
		i := slices.Index(m.held, from)
		if i < 0 {
			t.Fatalf("moved slot %d, which nobody holds", from)
		}
		delete(m.owner, from)
		m.own(t, to, "lsc")
		m.held[i] = to
	})
	if got, want := m.s.RCFree()+m.s.RCUsed(), m.s.MaxRC(len(m.held)); got != want {
		t.Fatalf("after Compact %d full blocks fit; Eq. 5 says %d", got, want)
	}
}

func TestSlotsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers := rapid.IntRange(1, 7).Draw(t, "layers")
		k := rapid.IntRange(0, 60).Draw(t, "K_master")
		s, err := NewSlots(k, layers, 8, 0)
		if err != nil {
			t.Fatal(err)
		}
		m := &slotsModel{s: s, owner: map[int32]string{}}
		t.Repeat(map[string]func(*rapid.T){
			"allocSlots": m.allocSlots,
			"freeSlots":  m.freeSlots,
			"allocRC":    m.allocRC,
			"freeRC":     m.freeRC,
			"compact":    m.compact,
			"": func(t *rapid.T) {
				if err := s.Check(); err != nil {
					t.Fatal(err)
				}
				if s.SlotsUsed() != len(m.held) || s.RCUsed() != len(m.rc) {
					t.Fatalf("%d slots and %d full blocks in use, model has %d and %d", s.SlotsUsed(), s.RCUsed(), len(m.held), len(m.rc))
				}
				if got := s.SlotsFreeAfterEvicting(1 << 30); got != k-len(m.held) {
					t.Fatalf("SlotsFreeAfterEvicting(all) = %d of %d with %d in use", got, k, len(m.held))
				}
			},
		})
	})
}
