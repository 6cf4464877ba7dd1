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
	"github.com/kvlend/kvlend/nvlink/topology"
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

// TestOpensThatFailAreReported: the copies were measured all the same.
func TestOpensThatFailAreReported(t *testing.T) {
	rep := runFake(t, func(context.Context, string, *os.File, int) ([]time.Duration, error) {
		return nil, errors.New("forbidden here")
	})
	var out bytes.Buffer
	if err := rep.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ipc memory in another process failed: forbidden here", "vmm memory in another process failed"} {
		if len(rep.Paths) != 4 || !strings.Contains(out.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, out.String())
		}
	}
}

// TestMeasuredLinks: what is written is what a configuration's fabric.measured reads.
func TestMeasuredLinks(t *testing.T) {
	taken := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	rep := runFake(t, nil)
	m, err := rep.Measured(taken)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	got, err := topology.ParseMeasured(&out)
	if err != nil {
		t.Fatal(err)
	}
	// The fake driver's UUIDs are "kvlend fake GPU0" and so on.
	const uuid = "GPU-6b766c65-6e64-2066-616b-65204750553"
	if len(got.Links) != 2 || got.Links[0].From == got.Links[1].From || got.Fabric != "cuda" || !got.Taken.Equal(taken) ||
		!strings.Contains(got.Machine, "EMULATED") {
		t.Fatalf("measured: %+v", got)
	}
	for _, l := range got.Links {
		if !strings.HasPrefix(l.From, uuid) || !strings.HasPrefix(l.To, uuid) || l.PieceBytes != 64<<10 || l.Latency <= 0 {
			t.Errorf("link %+v", l)
		}
	}
	t.Setenv("KVLEND_FAKE_DEVICES", "1")
	if _, err := runFake(t, nil).Measured(taken); !errors.Is(err, ErrNoPair) {
		t.Errorf("one GPU: %v, want %v", err, ErrNoPair)
	}
}

// runFake measures little on the fake driver.
func runFake(t *testing.T, open func(context.Context, string, *os.File, int) ([]time.Duration, error)) *CUDAReport {
	t.Helper()
	lib, err := fakedriver.Build(t.TempDir())
	if errors.Is(err, fakedriver.ErrUnavailable) {
		t.Skip("skipped:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	rep, err := RunCUDA(context.Background(), CUDAConfig{
		Pieces: []int64{512, 64 << 10}, Bytes: 1 << 18, MaxPieces: 16, Rounds: 1,
		Fabric: cuda.Config{Library: lib, Crossover: 64 << 10}, Open: open,
	})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}
