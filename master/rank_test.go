package master

import "testing"

// TestFastLinksFirst: lenders are used in the order of what their links were
// measured to carry; what is not measured, or hardly differs, keeps its place.
func TestFastLinksFirst(t *testing.T) {
	w := newWorld(t, worlds[0])
	c := w.cache
	first, second := c.pools[0], c.pools[1]
	is := func(want *pool, when string) {
		t.Helper()
		c.rank()
		if c.order[0] != want {
			t.Errorf("%s: %s is first", when, c.order[0].cfg.Name)
		}
	}
	is(first, "nothing measured")
	second.link.rate = 5e9
	is(first, "only the second measured")
	first.link.rate = 4.5e9
	is(first, "hardly slower")
	first.link.rate = 1e9
	is(second, "much slower")
	first.link.rate = 5.5e9
	is(second, "hardly faster")
	for _, f := range w.lend {
		f.wanted = 2
		f.answer()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.takeSpot(false)
	if !ok || at.pool != second {
		t.Errorf("a block was taken from %+v", at)
	}
	c.free(at)
}
