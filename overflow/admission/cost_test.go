package admission

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvlend/kvlend/prefix"
)

const mega = 1e6

// tiers are DRAM above a fast SSD above a slow one, for blocks of 1 MB that take
// 1 ms to compute and 0.1 ms for each before them.
func tiers() *Cost {
	return &Cost{
		Bytes:     mega,
		Recompute: func(depth int) time.Duration { return time.Millisecond + time.Duration(depth)*100*time.Microsecond },
		Classes:   []Class{{Rate: 20e9, Below: 1}, {Rate: 1e9, Below: 2}, {Rate: 0.25e9}},
	}
}

func TestCost(t *testing.T) {
	c := tiers()
	unknown := tiers()
	unknown.Recompute = nil
	silent := tiers()
	silent.Recompute = func(int) time.Duration { return 0 }
	unmeasured := tiers()
	unmeasured.Classes[2].Rate = 0
	for _, k := range []struct {
		name         string
		c            *Cost
		class, depth int
		want         float64
	}{
		{"to the fast SSD", c, 0, 100, 1 - 0.05},
		{"computing is no slower than the fast SSD", c, 0, 0, 1 - 0.05},
		{"to the slow SSD", c, 1, 100, 4 - 1},
		{"computing is faster than the slow SSD", c, 1, 10, 2 - 1},
		{"computing is as fast as this SSD", c, 1, 0, 0},
		{"lost", c, 2, 100, 11 - 4},
		{"better computed", c, 2, 10, 0},
		{"nobody knows how long computing takes", unknown, 2, 5, 1e6 - 4},
		{"nor here", silent, 2, 500, 1e6 - 4},
		{"but what reading below takes is known", unknown, 1, 5, 4 - 1},
		{"reads that nobody has measured", unmeasured, 2, 5, 1.5},
		{"below one that nobody has measured", unmeasured, 1, 5, 0},
	} {
		got := k.c.Of(k.class, k.depth)
		if math.Abs(got-k.want) > 1e-9 {
			t.Errorf("%s: %v ms, want %v", k.name, got, k.want)
		}
		if per := k.c.PerByte(k.class, k.depth); math.Abs(per-k.want/mega) > 1e-12 {
			t.Errorf("%s: %v ms a byte", k.name, per)
		}
	}
}

func TestPropertyCost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.Float64Range(-1, 1e5).Draw(t, "ms")
		c := &Cost{
			Bytes:     rapid.Int64Range(0, 1<<30).Draw(t, "bytes"),
			Recompute: func(depth int) time.Duration { return time.Duration(ms * float64(depth) * 1e6) },
			Classes:   []Class{{Rate: rapid.Float64().Draw(t, "rate"), Below: 1}, {Rate: rapid.Float64().Draw(t, "rate")}},
		}
		for class := range c.Classes {
			for _, depth := range []int{0, 1, 1000} {
				got := c.Of(class, depth)
				if !(got >= 0 && got <= 1e6) {
					t.Fatalf("class %d, depth %d: %v", class, depth, got)
				}
				// What computing costs bounds what a loss costs.
				if most := ms * float64(depth); most > 1e-3 && got > most {
					t.Fatalf("class %d, depth %d: %v, computing takes %v", class, depth, got, most)
				}
			}
		}
	})
}

// An index with these costs gives up first what is nearly as fast to compute as
// to read, although it was used last.
func TestCostOrdersAnIndex(t *testing.T) {
	x, err := prefix.New[string](prefix.Options{BlockTokens: 1, Classes: 3, Cost: tiers().Of})
	if err != nil {
		t.Fatal(err)
	}
	root := prefix.Root([]byte("model"))
	var long []*prefix.Node[string]
	for i := range int32(100) {
		var up *prefix.Node[string]
		if i > 0 {
			up = long[i-1]
		}
		n, _ := x.Insert(up, root, []int32{i}, 2, "long")
		long = append(long, n)
	}
	short, _ := x.Insert(nil, root, []int32{500}, 2, "short")
	x.Unref(long...)
	x.Unref(short)
	if v := x.Victim(2); v != short {
		t.Errorf("the victim is %s's block %d", v.Value, v.Depth())
	}
}
