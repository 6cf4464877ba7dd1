package lsc

import (
	"fmt"
	"testing"
)

// BenchmarkPass is a decode step without computation: what the pipeline
// itself costs per pass of 24 layers.
func BenchmarkPass(b *testing.B) {
	const layers = 24
	for _, c := range []struct {
		blocks int
		m      int64
	}{{1, 4 << 10}, {64, 4 << 10}, {64, 64 << 10}} {
		for _, buffers := range []int{1, 2} {
			b.Run(fmt.Sprintf("blocks=%d/bytes=%d/buffers=%d", c.blocks, c.m, buffers), func(b *testing.B) {
				r := newRig(b, rigConfig{layers: layers, blocks: c.blocks, buffers: buffers, m: c.m})
				// Without the trace, which costs two calls per batch.
				r.load, r.store = r.load.(traced).Stream, r.store.(traced).Stream
				pl := r.pipeline(buffers)
				var blocks []Block
				for i := range c.blocks {
					blocks = append(blocks, r.block(i, buffers, true, false, &fence{until: -1}))
				}
				b.SetBytes(int64(c.blocks) * layers * c.m)
				b.ReportAllocs()
				for b.Loop() {
					p, err := pl.Begin(blocks)
					if err != nil {
						b.Fatal(err)
					}
					for l := range layers {
						if err := p.Layer(l); err != nil {
							b.Fatal(err)
						}
						p.Written(l)
						p.Done(l)
					}
					if err := p.Finish(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
