package configs

import (
	"encoding"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/elastic"
	"pgregory.net/rapid"
)

type geometry = elastic.Geometry

func TestValues(t *testing.T) {
	for _, c := range []struct {
		into    encoding.TextUnmarshaler
		text    string
		want    any // nil: refused
		printed string
	}{
		{new(Bytes), "16GiB", Bytes(16 << 30), "16GiB"},
		{new(Bytes), "384KiB", Bytes(384 << 10), "384KiB"},
		{new(Bytes), "4MB", Bytes(4e6), "4MB"},
		{new(Bytes), "96GB", Bytes(96e9), "96GB"},
		{new(Bytes), "72.75GiB", Bytes(291 << 28), "74496MiB"},
		{new(Bytes), "4096", Bytes(4096), "4KiB"},
		{new(Bytes), "0", Bytes(0), "0B"},
		{new(Bytes), "1000", Bytes(1000), "1kB"},
		{new(Bytes), "1KB", Bytes(1000), "1kB"},
		{new(Bytes), "7B", Bytes(7), "7B"},
		{new(Bytes), "8388607.9999990463256835937500TiB", Bytes(1<<63 - 1<<20), "8796093022207MiB"},
		{new(Bytes), "8388608TiB", nil, ""},
		{new(Bytes), "1.5B", nil, ""},
		{new(Bytes), "-1", nil, ""},
		{new(Bytes), "1e3", nil, ""},
		{new(Bytes), "1/2MB", nil, ""},
		{new(Bytes), "GiB", nil, ""},
		{new(Bytes), "4 GiB", nil, ""},
		{new(Bytes), "4gb", nil, ""},
		{new(Bytes), "4Gb", nil, ""},
		{new(Bytes), "4kiB", nil, ""},
		{new(Bytes), "", nil, ""},
		{new(Bytes), "1.", nil, ""},
		{new(Bytes), ".5GB", nil, ""},
		{new(Bytes), "٣GB", nil, ""},
		{new(Bytes), strings.Repeat("9", 40), nil, ""},
		{new(Rate), "400GB/s", Rate(400e9), "400GB/s"},
		{new(Rate), "0.5GiB/s", Rate(1 << 29), "512MiB/s"},
		{new(Rate), "400GB", nil, ""},
		{new(Rate), "400", nil, ""},
		{new(Rate), "400/s", nil, ""},
		{new(Duration), "60s", Duration(time.Minute), "1m"},
		{new(Duration), "5us", Duration(5000), "5us"},
		{new(Duration), "1m30s", Duration(90 * time.Second), "1m30s"},
		{new(Duration), "600s", Duration(10 * time.Minute), "10m"},
		{new(Duration), "2h", Duration(2 * time.Hour), "2h"},
		{new(Duration), "0", Duration(0), "0s"},
		{new(Duration), "60", nil, ""},
		{new(Duration), "-1s", nil, ""},
		{new(Duration), "+1s", nil, ""},
		{new(Duration), "", nil, ""},
		{new(Percent), "5%", Percent(5), "5%"},
		{new(Percent), "99.9%", Percent(99.9), "99.9%"},
		{new(Percent), "100%", Percent(100), "100%"},
		{new(Percent), "101%", nil, ""},
		{new(Percent), "0.05", nil, ""},
		{new(Percent), "-1%", nil, ""},
		{new(Percent), "%", nil, ""},
	} {
		err := c.into.UnmarshalText([]byte(c.text))
		if (err == nil) != (c.want != nil) {
			t.Errorf("%T %q: %v", c.into, c.text, err)
			continue
		}
		if err != nil {
			continue
		}
		got := fmt.Sprint(c.into)
		if got != c.printed || deref(c.into) != c.want {
			t.Errorf("%T %q prints as %q, want %q (%v)", c.into, c.text, got, c.printed, c.want)
		}
	}
}

// deref is the plain number behind a value type, for comparison.
func deref(v any) any {
	switch v := v.(type) {
	case *Bytes:
		return *v
	case *Rate:
		return *v
	case *Duration:
		return *v
	case *Percent:
		return *v
	}
	return nil
}

// TestPrintedValuesParse: String and UnmarshalText are inverse, and what is
// printed matches the schema's pattern.
func TestPrintedValuesParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1<<62).Draw(t, "n") >> rapid.IntRange(0, 62).Draw(t, "shift")
		n *= rapid.SampledFrom([]int64{1, 1 << 10, 1e6}).Draw(t, "factor") // may wrap; the sign is cleared below
		n &= 1<<63 - 1
		check := func(v fmt.Stringer, back encoding.TextUnmarshaler, pattern string) {
			if err := back.UnmarshalText([]byte(v.String())); err != nil || fmt.Sprint(back) != v.String() {
				t.Fatalf("%q: %v, %v", v, back, err)
			}
			if !regexp.MustCompile(pattern).MatchString(v.String()) {
				t.Fatalf("%q does not match %s", v, pattern)
			}
		}
		var b Bytes
		check(Bytes(n), &b, patternBytes)
		var r Rate
		check(Rate(n), &r, patternRate)
		var d Duration
		check(Duration(n), &d, patternDuration)
		var p Percent
		check(Percent(float64(n%10001)/100), &p, patternPercent)
		if int64(b) != n || int64(r) != n || int64(d) != n || p != Percent(float64(n%10001)/100) {
			t.Fatalf("%d: %d, %d, %d, %v", n, b, r, d, p)
		}
	})
}

func TestNearest(t *testing.T) {
	keys := []string{"arena", "device", "borrow_from", "max_running"}
	for s, want := range map[string]string{
		"areena": "arena", "aerna": "arena", "ARENA": "arena", "borow_form": "borrow_from", "maxrunning": "max_running",
		"zebra": "", "": "", strings.Repeat("a", 1000): "", "devices": "device",
	} {
		if got := nearest(s, keys); got != want {
			t.Errorf("nearest to %q is %q, want %q", s, got, want)
		}
	}
}

func TestCatalog(t *testing.T) {
	models := Catalog()
	for source, want := range map[string]struct {
		layers int
		token  int64 // bytes of KV in fp16
	}{
		"catalog:LWM-1M-Text": {32, 524288}, "catalog:Qwen3-8B": {36, 147456}, "catalog:Qwen3-14B": {40, 163840},
		"catalog:Qwen3-32B": {64, 262144}, "catalog:GPT-OSS-20B": {24, 49152}, "builtin:random-atlas": {8, 4096}, "builtin:random-birch": {6, 1536}, "builtin:random-cedar": {5, 1280},
	} {
		m := Model{Name: "m", Source: source, BlockTokens: 16, KVDtype: "f16"}
		g, err := m.Geometry(CatalogGeometry)
		if err != nil || g.Layers != want.layers || g.TokenBytes() != want.token {
			t.Errorf("%s: %+v, %v", source, g, err)
		}
	}
	if g, err := (&Model{Source: "builtin:random-atlas", BlockTokens: 16, KVDtype: "f32"}).Geometry(CatalogGeometry); err != nil || g.ElemBytes != 4 {
		t.Errorf("%+v, %v", g, err)
	}
	for source, m := range models {
		if err := (elastic.Geometry{Name: source, Layers: m.Layers, BlockTokens: 16, KVHeads: m.KVHeads, HeadDim: m.HeadDim, ElemBytes: 2}).Validate(); err != nil {
			t.Error(err)
		}
	}
}
