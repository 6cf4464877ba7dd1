package store

import (
	"fmt"
	"sort"

	"github.com/kvlend/kvlend/overflow/device"
)

const (
	secondCopy  = 512 << 10 // offset of the superblock's second copy
	headerBytes = 1 << 20
	dataAlign   = 64 << 10
	// slackShare is how much of a checkpoint's pages an area has beyond it.
	slackShare = 4
	minSlack   = 16 // pages
	maxSlots   = 1 << 31
)

// Geometry is the shape of a store. It does not change while it exists.
type Geometry struct {
	Layers      int
	LayerBytes  int   // M
	BlockTokens int   // B
	Run         int   // R, slots of a segment
	Slots       int   // a multiple of Run
	Stride      int64 // M rounded up to device.Align
	Base        int64 // where the blocks begin
}

// Off is where a layer of a slot begins.
func (g *Geometry) Off(s Slot, layer int) int64 {
	r := int64(g.Run)
	seg, i := int64(s)/r, int64(s)%r
	return g.Base + (seg*r*int64(g.Layers)+int64(layer)*r+i)*g.Stride
}

// Adjacent says whether each layer of b follows the same layer of a.
func (g *Geometry) Adjacent(a, b Slot) bool {
	return b == a+1 && int(b)%g.Run != 0
}

// segmentBytes is what a segment takes.
func (g *Geometry) segmentBytes() int64 {
	return int64(g.Run) * int64(g.Layers) * g.Stride
}

// layout is a geometry and where its log lies.
type layout struct {
	Geometry
	page      int      // bytes of a log page
	areaPages int      // pages of an area
	area      [2]int64 // where they begin
}

func (o *Options) validateShape() error {
	for _, c := range []struct {
		name          string
		v, least, max int
	}{
		{"Layers", o.Layers, 1, MaxLayers},
		{"LayerBytes", o.LayerBytes, 1, MaxLayerBytes},
		{"BlockTokens", o.BlockTokens, 1, MaxBlockTokens},
		{"Run", o.Run, 0, MaxRun},
		{"Slots", o.Slots, 0, maxSlots},
		{"len(Label)", len(o.Label), 0, MaxLabel},
	} {
		if c.v < c.least || c.v > c.max {
			return fmt.Errorf("store: %s is %d, must be in [%d, %d]", c.name, c.v, c.least, c.max)
		}
	}
	return nil
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// newLayout is the largest that fits a device of this size.
func newLayout(o *Options, size int64) (layout, error) {
	var l layout
	if err := o.validateShape(); err != nil {
		return l, err
	}
	l.Geometry = Geometry{
		Layers: o.Layers, LayerBytes: o.LayerBytes, BlockTokens: o.BlockTokens,
		Run: o.Run, Stride: roundUp(int64(o.LayerBytes), device.Align),
	}
	if l.Run == 0 {
		l.Run = int(min(max((1<<20)/l.Stride, 1), MaxRun))
	}
	l.page = pageBytes(l.Layers, l.BlockTokens)
	most := size / l.segmentBytes()
	if o.Slots > 0 {
		most = min(most, int64((o.Slots+l.Run-1)/l.Run))
	}
	most = min(most, int64(maxSlots/l.Run))
	// The first number of segments that does not fit, less one.
	n := sort.Search(int(most), func(n int) bool { return l.place(n+1) > size })
	if n == 0 {
		return l, fmt.Errorf("store: the device has %d bytes; one segment of %d blocks (%d layers of %d bytes) and its log need %d",
			size, l.Run, l.Layers, l.LayerBytes, l.place(1))
	}
	l.place(n)
	return l, nil
}

// place lays out n segments and says where they end.
func (l *layout) place(n int) int64 {
	l.Slots = n * l.Run
	full := (l.Slots + l.entriesPerPage() - 1) / l.entriesPerPage()
	l.areaPages = full + max(full/slackShare, minSlack)
	bytes := int64(l.areaPages) * int64(l.page)
	l.area = [2]int64{headerBytes, headerBytes + bytes}
	l.Base = roundUp(headerBytes+2*bytes, dataAlign)
	return l.Base + int64(n)*l.segmentBytes()
}

// end is where the blocks end.
func (l *layout) end() int64 {
	return l.Base + int64(l.Slots/l.Run)*l.segmentBytes()
}
