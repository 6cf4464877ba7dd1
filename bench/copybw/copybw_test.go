package copybw

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRunMeasuresEveryVariant(t *testing.T) {
	rep, err := Run(context.Background(), Config{Pieces: []int64{512, 64 << 10}, Bytes: 1 << 20, MaxPieces: 200, Rounds: 2})
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Rows) != 2 || rep.Rows[0].Pieces != 200 || rep.Rows[1].Pieces != 16 {
		t.Fatalf("rows %+v", rep.Rows)
	}
	for _, row := range rep.Rows {
		for _, v := range variants {
			if r := row.Results[v]; r.GBPerSec <= 0 || r.Share <= 0 {
				t.Errorf("%d bytes, %s: %+v", row.PieceBytes, v, r)
			}
		}
		if r := row.Results[Plain]; r.Share != 1 || r.ExtraNanos != 0 {
			t.Errorf("plain against itself: %+v", r)
		}
	}
	var out bytes.Buffer
	if err := rep.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"512 B", "64 KiB", "batched", "cold"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, out.String())
		}
	}
	if raw, err := json.Marshal(rep); err != nil || !bytes.Contains(raw, []byte(`"share_of_plain":1`)) {
		t.Errorf("JSON %s, %v", raw, err)
	}
}

// TestVariantsCopy checks that what is measured is a copy.
func TestVariantsCopy(t *testing.T) {
	cfg, err := Config{Bytes: 1 << 20, Pieces: []int64{4096}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBench(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b.src.Bytes() {
		b.src.Bytes()[i] = byte(i>>12 + i)
	}
	list, cross := b.lists(4096, 256)
	want := make([]byte, 1<<20)
	plain(want, b.src.Bytes(), list)
	for _, v := range variants {
		clear(b.dst.Bytes())
		if _, err := b.measure(context.Background(), v, list, cross); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b.dst.Bytes(), want) {
			t.Errorf("%s does not copy the list", v)
		}
	}
	if err := b.close(); err != nil {
		t.Fatal(err)
	}
}

func TestRefusals(t *testing.T) {
	for want, cfg := range map[string]Config{
		"piece of 0 bytes":    {Pieces: []int64{0}},
		"piece of 2048 bytes": {Pieces: []int64{2048}, Bytes: 1024},
		"Rounds -1":           {Rounds: -1},
	} {
		if _, err := Run(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run(%+v): %v, want %q", cfg, err, want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, Config{Pieces: []int64{64}, Bytes: 1 << 10}); !errors.Is(err, context.Canceled) {
		t.Errorf("Run with a cancelled context: %v", err)
	}
}

func TestMedianAndSummary(t *testing.T) {
	if m := median([]float64{3, 1, 2}); m != 2 {
		t.Errorf("median of 3 is %v", m)
	}
	if m := median([]float64{4, 1, 2, 3}); m != 2.5 {
		t.Errorf("median of 4 is %v", m)
	}
	got := summarise([]time.Duration{2000, 4000}, []time.Duration{1000, 1000}, 100, 10)
	if got.Share != 0.375 || got.ExtraNanos != 200 || got.GBPerSec != 0.375 {
		t.Errorf("summary %+v", got)
	}
}
