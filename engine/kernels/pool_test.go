package kernels

import (
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPoolRunsEachUnitOnce also checks that no two units run at once under the
// same worker number.
func TestPoolRunsEachUnitOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 7} {
		p := newPool(threads)
		busy := make([]atomic.Int32, threads)
		for n := range 300 {
			count := make([]atomic.Int32, n)
			p.run(n, func(worker, i int) {
				if busy[worker].Add(1) != 1 {
					t.Errorf("worker %d runs two units at once", worker)
				}
				count[i].Add(1)
				busy[worker].Add(-1)
			})
			for i := range count {
				if c := count[i].Load(); c != 1 {
					t.Fatalf("%d threads, %d units: unit %d ran %d times", threads, n, i, c)
				}
			}
		}
		p.close()
	}
}

// TestPoolUsesAllWorkers holds every unit until all workers have one.
func TestPoolUsesAllWorkers(t *testing.T) {
	const threads = 4
	p := newPool(threads)
	defer p.close()
	for range 20 {
		var here atomic.Int32
		all := make(chan struct{})
		p.run(threads, func(int, int) {
			if here.Add(1) == threads {
				close(all)
			}
			<-all
		})
	}
}

func BenchmarkPool(b *testing.B) {
	p := newPool(2)
	defer p.close()
	for b.Loop() {
		p.run(2, func(int, int) {})
	}
}
