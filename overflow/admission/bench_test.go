package admission

import (
	"testing"

	"github.com/kvlend/kvlend/prefix"
)

// usualDoor counts exactly, in a map, and forgets all when it is full.
type usualDoor struct {
	window int
	seen   map[prefix.Key]uint8
}

func (u *usualDoor) Admit(k prefix.Key) bool {
	if len(u.seen) >= u.window {
		clear(u.seen)
	}
	u.seen[k]++
	return u.seen[k] >= 2
}

// One use in four is of a block that was used before. A million uses are
// remembered, so that neither fits in the processor's caches.
func BenchmarkAdmit(b *testing.B) {
	const window = 1 << 20
	keys := make([]prefix.Key, window)
	for i := range keys {
		keys[i] = key(i - i%4/3*(i/2))
	}
	d := doorkeeper(b, 2, window)
	u := &usualDoor{window: window, seen: make(map[prefix.Key]uint8, window)}
	for _, c := range []struct {
		name  string
		admit func(prefix.Key) bool
		bytes float64
	}{
		{"doorkeeper", d.Admit, float64(d.Bytes())},
		{"map", u.Admit, 17. / 0.875 * window}, // key and count, at the load of a Go map
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				c.admit(keys[i&(window-1)])
				i++
			}
			b.ReportMetric(c.bytes/window, "bytes/use")
		})
	}
}

func BenchmarkTake(b *testing.B) {
	w := budget(b, BudgetOptions{PerDay: 500e9})
	b.ReportAllocs()
	for b.Loop() {
		w.Take(1 << 16)
	}
}
