package sim

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/trace"
	"github.com/kvlend/kvlend/planner"
)

func TestMooncake(t *testing.T) {
	path := os.Getenv("KVLEND_MOONCAKE")
	if path == "" {
		t.Skip("KVLEND_MOONCAKE names no trace")
	}
	cfg, err := configs.Load(os.Getenv("KVLEND_CONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	sys, err := planner.Resolve(cfg, configs.CatalogGeometry)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := trace.Load(path, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r, err := Run(context.Background(), Options{System: sys, Hardware: NewHardware(cfg, Machine{}), Loads: []Load{{Model: sys.Models[0].Config.Name, Trace: tr, Seed: 1, Length: 1800 * time.Second}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(began))
	a := r.Answers[0]
	t.Logf("%+v", a.Tiers)
	t.Log(a.Reasons)
	t.Logf("answered %d refused %v ttft p50 %v p99 %v tok %v", a.Answered, a.Refused, a.All.Quantile(.5), a.All.Quantile(.99), a.Token.Quantile(.5))
	r.Answers = nil
	r.Lent.Values = nil
	b, _ := json.MarshalIndent(r, "", " ")
	t.Log(string(b))
}
