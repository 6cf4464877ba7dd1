package placement

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawDevice is a device in any condition.
func drawDevice(t *rapid.T) Device {
	slots := rapid.IntRange(0, 200).Draw(t, "slots")
	return Device{
		Rate:   rapid.OneOf(rapid.Float64(), rapid.Float64Range(1e8, 2e10), rapid.Just(0.0)).Draw(t, "rate"),
		Free:   rapid.IntRange(-1, slots+1).Draw(t, "free"),
		Slots:  slots,
		State:  rapid.SampledFrom([]State{OK, OK, OK, Slow, Fenced, Draining}).Draw(t, "state"),
		Fences: rapid.IntRange(0, 1).Draw(t, "fences"),
	}
}

// room is how many blocks find a place at all.
func room(devices []Device) (n int) {
	for i := range devices {
		if devices[i].takes() {
			n += devices[i].Free
		}
	}
	return n
}

// checkParts says whether parts are what Policy.Place promises.
func checkParts(t *rapid.T, parts []Part, devices []Device, blocks int) {
	last, placed := -1, 0
	for _, p := range parts {
		if p.Device <= last || p.Device >= len(devices) {
			t.Fatalf("%v: devices of %d out of order", parts, len(devices))
		}
		d := &devices[p.Device]
		if p.Count < 1 || p.Count > d.Free || d.State == Fenced || d.State == Draining {
			t.Fatalf("%v: %d blocks for %+v", parts, p.Count, *d)
		}
		last = p.Device
		placed += p.Count
	}
	if want := min(max(blocks, 0), room(devices)); placed != want {
		t.Fatalf("%v: %d blocks placed, want %d", parts, placed, want)
	}
}

// What every policy does, whatever becomes of the devices between calls.
func TestPropertySuite(t *testing.T) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p, twin := parse(t, name), parse(t, name)
				var devices []Device
				for range rapid.IntRange(1, 20).Draw(t, "calls") {
					for range rapid.IntRange(0, 3).Draw(t, "joining") {
						devices = append(devices, drawDevice(t))
					}
					if len(devices) > 0 {
						i := rapid.IntRange(0, len(devices)-1).Draw(t, "changing")
						fences := devices[i].Fences
						devices[i] = drawDevice(t)
						devices[i].Fences += fences
					}
					blocks := rapid.OneOf(rapid.IntRange(-1, 3), rapid.IntRange(0, 600)).Draw(t, "blocks")
					before := slices.Clone(devices)
					kept := Part{Device: 77, Count: 7}
					parts := p.Place([]Part{kept}, devices, blocks)
					if parts[0] != kept {
						t.Fatal("what was in dst has changed")
					}
					parts = parts[1:]
					checkParts(t, parts, devices, blocks)
					if !slices.EqualFunc(before, devices, func(a, b Device) bool { return a.Free == b.Free && a.State == b.State && a.Slots == b.Slots }) {
						t.Fatal("the caller's devices have changed")
					}
					if again := twin.Place(nil, devices, blocks); !slices.Equal(parts, again) {
						t.Fatalf("the same calls gave %v and %v", parts, again)
					}
					checkCarried(t, p)
					checkShares(t, p.Shares(nil, devices), devices)
					for _, q := range parts {
						devices[q.Device].Free -= q.Count
					}
				}
			})
		})
	}
}

// checkCarried says whether those who were in the last division carry what sums
// to nothing: else all of them would be due too much, or too little, for ever.
func checkCarried(t *rapid.T, p Policy) {
	s, ok := p.(*shared)
	if !ok {
		return
	}
	total := 0.0
	for i := range s.of {
		total += s.of[i].carried
		if c := s.of[i].carried; c < -2 || c > 2 {
			t.Fatalf("device %d carries %v blocks", i, c)
		}
	}
	if total < -1e-6 || total > 1e-6 {
		t.Fatalf("%v blocks are carried in all", total)
	}
}

func checkShares(t *rapid.T, shares []float64, devices []Device) {
	if len(shares) != len(devices) {
		t.Fatalf("%d shares of %d devices", len(shares), len(devices))
	}
	total := 0.0
	for i, s := range shares {
		if s < 0 || s > 1 || s > 0 && !devices[i].takes() {
			t.Fatalf("share %v of %+v", s, devices[i])
		}
		total += s
	}
	want := 0.0
	if room(devices) > 0 {
		want = 1
	}
	if total < want-1e-9 || total > want+1e-9 {
		t.Fatalf("shares sum to %v, want %v", total, want)
	}
}

func TestNoAllocation(t *testing.T) {
	for _, name := range names {
		devices := roomy(20e9, 7e9, 7e9, 3e9, 3e9, 0, 1e9, 5e9)
		devices[3].Free = 2
		p := parse(t, name)
		parts := make([]Part, 0, len(devices))
		shares := make([]float64, 0, len(devices))
		p.Place(parts, devices, 1) // it learns how many devices there are
		if n := testing.AllocsPerRun(100, func() {
			parts = p.Place(parts[:0], devices, 100)
			shares = p.Shares(shares[:0], devices)
			Finish(parts, devices, 1<<16)
		}); n != 0 {
			t.Errorf("%s: %v allocations a call", name, n)
		}
	}
}
