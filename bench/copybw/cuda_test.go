//go:build cuda && cgo

package copybw

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/nvlink/cuda"
	"github.com/kvlend/kvlend/nvlink/cuda/fakedriver"
)

// TestCUDAMeasuresEveryVariant runs on the fake driver, and says so.
func TestCUDAMeasuresEveryVariant(t *testing.T) {
	lib, err := fakedriver.Build(t.TempDir())
	if errors.Is(err, fakedriver.ErrUnavailable) {
		t.Skip("skipped:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	opened := map[cuda.MemoryKind]bool{}
	rep, err := RunCUDA(context.Background(), CUDAConfig{
		Pieces: []int64{512, 64 << 10}, Bytes: 1 << 18, MaxPieces: 16, Rounds: 1,
		Fabric: cuda.Config{Library: lib},
		Open: func(_ context.Context, handle string, file *os.File, rounds int) ([]time.Duration, error) {
			h, err := cuda.ParseHandle(handle)
			opened[h.Kind] = (file != nil) == (h.Kind == cuda.VMM)
			return []time.Duration{3000, 5000, 4000}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Paths) != 4 || !opened[cuda.VMM] || !opened[cuda.IPC] {
		t.Fatalf("paths %+v, opened %v", rep.Paths, opened)
	}
	for _, p := range rep.Paths {
		if (p.Kind == cuda.Local) != (p.From == p.To) || len(p.Rows) != 2 {
			t.Errorf("path %+v", p)
		}
		for _, row := range p.Rows {
			for _, v := range cudaVariants {
				if r := row.Results[v]; r.GBPerSec <= 0 || r.Share <= 0 {
					t.Errorf("%s to %s, %d bytes, %s: %+v", p.From, p.To, row.PieceBytes, v, r)
				}
			}
		}
	}
	var out bytes.Buffer
	if err := rep.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"EMULATED", "gpu1 to gpu0, peer", "64 KiB", "gather", "vmm memory in another process takes 4 us"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, out.String())
		}
	}
	if _, err := RunCUDA(context.Background(), CUDAConfig{Pieces: []int64{0}}); err == nil {
		t.Error("pieces of 0 bytes were accepted")
	}
}
