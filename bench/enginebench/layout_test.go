package enginebench

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
)

// TestLayoutsCoverTheCache: both placements use each layer block once, and
// block-major keeps the layers of a block together.
func TestLayoutsCoverTheCache(t *testing.T) {
	r, err := kernels.New(kernels.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := newLayoutSubject(r, tiny(), 512)
	size := s.l.LayerBlockBytes()
	for _, shuffled := range []bool{false, true} {
		for _, blockMajor := range []bool{false, true} {
			tables := s.tables(blockMajor, shuffled)
			all := slices.Sorted(slices.Values(slices.Concat(tables...)))
			for i, off := range all {
				if off != int64(i)*size {
					t.Fatalf("block-major %t, shuffled %t: layer block %d lies at %d", blockMajor, shuffled, i, off)
				}
			}
			if got := tables[1][0]-tables[0][0] == size; got != blockMajor {
				t.Errorf("block-major %t: the first block's layers lie at %d and %d", blockMajor, tables[0][0], tables[1][0])
			}
			if slices.IsSorted(tables[0]) == shuffled {
				t.Errorf("shuffled %t: blocks at %v", shuffled, tables[0])
			}
		}
	}
}

func TestCompareLayouts(t *testing.T) {
	res, err := CompareLayouts(context.Background(), LayoutOptions{Models: []*engine.Config{tiny()}, Tokens: 512, Rounds: 3, MinTime: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Cases) != 6 || res.ISA == "" {
		t.Fatalf("result %+v", res)
	}
	for _, c := range res.Cases {
		if !(c.BlockMS > 0 && c.LayerMS > 0 && c.RatioLow <= c.Ratio && c.Ratio <= c.RatioTop) {
			t.Errorf("case %+v", c)
		}
	}
	var b bytes.Buffer
	if err := res.WriteTable(&b); err != nil || strings.Count(b.String(), "tiny") != 6 {
		t.Errorf("%v\n%s", err, b.String())
	}
	for _, bad := range []LayoutOptions{{Tokens: 100}, {Tokens: 513}, {Rounds: -1}} {
		if _, err := CompareLayouts(context.Background(), bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}
