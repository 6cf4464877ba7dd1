package stream_test

import (
	"slices"
	"testing"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/overflow/stream"
)

func TestLengthsThatAreNoBlocks(t *testing.T) {
	r := newRig(t, 1, 1<<20, 1<<20, stream.Options{MaxRead: 4 * page})
	for _, n := range []int64{1, 3, 63, page - 1, page, page + 1, 4 * page, 4*page + 1, 100_001} {
		want := r.fill(1)
		r.copy(r.load(0, 2*page, 777, n))
		r.must(r.sync())
		copy(want[777:], r.devs[0].bytes(2*page, n))
		r.equal("host", r.host.Bytes(), want)

		dev := r.devs[0].bytes(0, 1<<20)
		r.copy(r.store(0, 3*page, 5, n))
		r.must(r.sync())
		copy(dev[3*page:], want[5:][:n])
		clear(dev[3*page+n : 3*page+(n+page-1)/page*page])
		r.equal("device", r.devs[0].bytes(0, 1<<20), dev)
		r.equal("source", r.host.Bytes(), want)
	}
}

// TestPlan: which I/Os a list becomes.
func TestPlan(t *testing.T) {
	const k = page
	type p struct {
		write  bool
		dev    int
		off, n int64
	}
	for _, c := range []struct {
		name   string
		o      stream.Options
		maxIO  int64
		pieces []p
		want   [][]ioKey
	}{
		{"one", stream.Options{}, 0, []p{{false, 0, 4 * k, 100}}, [][]ioKey{{{false, 4 * k, k}}}},
		{"neighbours", stream.Options{}, 0, []p{{false, 0, 0, k}, {false, 0, k, 2 * k}, {false, 0, 3 * k, 1}}, [][]ioKey{{{false, 0, 4 * k}}}},
		{"any order", stream.Options{}, 0, []p{{false, 0, 2 * k, k}, {false, 0, 0, k}, {false, 0, k, k}}, [][]ioKey{{{false, 0, 3 * k}}}},
		{"short neighbours", stream.Options{}, 0, []p{{false, 0, 0, 10}, {false, 0, k, 10}}, [][]ioKey{{{false, 0, 2 * k}}}},
		{"a gap", stream.Options{}, 0, []p{{false, 0, 0, k}, {false, 0, 2 * k, k}}, [][]ioKey{{{false, 0, k}, {false, 2 * k, k}}}},
		{"a gap that pays", stream.Options{Gap: k}, 0, []p{{false, 0, 0, k}, {false, 0, 2 * k, k}, {false, 0, 5 * k, k}}, [][]ioKey{{{false, 0, 3 * k}, {false, 5 * k, k}}}},
		{"no write over a gap", stream.Options{Gap: k}, 0, []p{{true, 0, 0, k}, {true, 0, 2 * k, k}, {true, 0, 3 * k, 1}}, [][]ioKey{{{true, 0, k}, {true, 2 * k, 2 * k}}}},
		{"the budget", stream.Options{MaxRead: 2 * k}, 0, []p{{false, 0, 0, k}, {false, 0, k, k}, {false, 0, 2 * k, k}}, [][]ioKey{{{false, 0, 2 * k}, {false, 2 * k, k}}}},
		{"longer than the budget", stream.Options{MaxRead: 2 * k}, 0, []p{{false, 0, k, 5*k - 7}}, [][]ioKey{{{false, k, 2 * k}, {false, 3 * k, 2 * k}, {false, 5 * k, k}}}},
		{"the device's limit", stream.Options{}, 2*k + 512, []p{{true, 0, 0, 3 * k}}, [][]ioKey{{{true, 0, 2 * k}, {true, 2 * k, k}}}},
		{"read twice", stream.Options{}, 0, []p{{false, 0, 0, 3 * k}, {false, 0, k, k}, {false, 0, k, 3 * k}}, [][]ioKey{{{false, 0, 4 * k}}}},
		{"two devices", stream.Options{}, 0, []p{{false, 1, 0, k}, {false, 0, k, k}, {false, 1, k, k}}, [][]ioKey{{{false, k, k}}, {{false, 0, 2 * k}}}},
		{"both directions", stream.Options{}, 0, []p{{true, 0, 8 * k, k}, {false, 0, 0, k}, {true, 1, 0, k}, {false, 1, k, k}},
			[][]ioKey{{{false, 0, k}, {true, 8 * k, k}}, {{false, k, k}, {true, 0, k}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 2, 1<<20, 1<<20, c.o)
			for i := range r.devs {
				r.devs[i].info.MaxIO = c.maxIO
				r.ar[i] = stream.NewArena(r.devs[i])
			}
			want := r.fill(3)
			var pieces []nvlink.Copy
			at := int64(1)
			devs := [][]byte{r.devs[0].bytes(0, 1<<20), r.devs[1].bytes(0, 1<<20)}
			after := [][]byte{slices.Clone(devs[0]), slices.Clone(devs[1])}
			for _, x := range c.pieces {
				if x.write {
					pieces = append(pieces, r.store(x.dev, x.off, at, x.n))
					clear(after[x.dev][x.off : x.off+(x.n+page-1)/page*page])
					copy(after[x.dev][x.off:], want[at:][:x.n])
				} else {
					pieces = append(pieces, r.load(x.dev, x.off, at, x.n))
					copy(want[at:], devs[x.dev][x.off:][:x.n])
				}
				at += x.n + 3
			}
			r.copy(pieces...)
			r.must(r.sync())
			for i, w := range c.want {
				if got := r.devs[i].asked(); !slices.Equal(got, w) {
					t.Errorf("device %d was asked for %v, want %v", i, got, w)
				}
			}
			r.equal("host", r.host.Bytes(), want)
			for i := range after {
				r.equal("device", r.devs[i].bytes(0, 1<<20), after[i])
			}
		})
	}
}

// TestOneSubmitPerDevice: however long the list, as long as there is staging.
func TestOneSubmitPerDevice(t *testing.T) {
	const n = 2000
	r := newRig(t, 3, 2*n*page, n*64, stream.Options{})
	want := r.fill(0)
	var pieces []nvlink.Copy
	for i := range int64(n) {
		d, off := int(i%3), i*7919%n*2*page
		pieces = append(pieces, r.load(d, off, i*64, 64))
		copy(want[i*64:][:64], r.devs[d].bytes(off, 64))
	}
	r.copy(pieces...)
	r.must(r.sync())
	r.equal("host", r.host.Bytes(), want)
	for _, d := range r.devs {
		if len(d.submits) != 1 {
			t.Errorf("device %s: %d Submits of %v I/Os", d.info.Name, len(d.submits), d.submits)
		}
	}
	if st := r.s.Stats(); st.Reads != n || st.Submits != 3 || st.Pieces != n || st.Batches != 1 || st.ReadBytes != n*page || st.PieceBytes != n*64 {
		t.Errorf("stats: %+v", st)
	}
}

// TestScarceStaging: a list of a hundred times the staging goes through, in few
// Submits, to all devices in proportion.
func TestScarceStaging(t *testing.T) {
	const staging = 32 * page
	r := newRig(t, 2, 4000*page, 4000*page, stream.Options{Staging: staging, MaxRead: page})
	want := r.fill(0)
	var pieces []nvlink.Copy
	for i := range int64(3000) {
		d := 0
		if i%3 == 2 {
			d = 1
		}
		pieces = append(pieces, r.load(d, i*page, i*page, page))
		copy(want[i*page:][:page], r.devs[d].bytes(i*page, page))
	}
	r.copy(pieces...)
	r.must(r.sync())
	r.equal("host", r.host.Bytes(), want)
	if r.mem.peak > staging {
		t.Errorf("%d bytes of staging were used, want at most %d", r.mem.peak, staging)
	}
	if st := r.s.Stats(); st.Submits > 2*3000/(32/4)+4 || st.OwnBuffer != 0 {
		t.Errorf("%+v: too many submits, or no buffer", st)
	}
	half := 0
	for _, n := range r.devs[0].submits {
		half += n
	}
	if half != 2000 {
		t.Errorf("device 0 got %d I/Os", half)
	}
}

// TestNoStaging: without any buffer from the pool a stream goes on, slowly.
func TestNoStaging(t *testing.T) {
	r := newRig(t, 1, 1<<20, 1<<20, stream.Options{MaxRead: 2 * page})
	r.mem.left = 0
	want := r.fill(2)
	r.copy(r.load(0, 0, 100, 9*page), r.store(0, 20*page, 1<<19, 3*page))
	copy(want[100:], r.devs[0].bytes(0, 9*page))
	r.must(r.sync())
	r.equal("host", r.host.Bytes(), want)
	r.equal("device", r.devs[0].bytes(20*page, 3*page), want[1<<19:][:3*page])
	if st := r.s.Stats(); st.OwnBuffer != 5+2 {
		t.Errorf("%d I/Os used the stream's own buffer, want 7", st.OwnBuffer)
	}
}
