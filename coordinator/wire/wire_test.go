package wire

import (
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// fill draws a value for every field, whatever message it belongs to, so that
// a new field is tested without being named here.
func fill(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	case reflect.Slice:
		n := rapid.IntRange(-1, 4).Draw(t, "len")
		if n < 0 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(t, v.Index(i))
		}
	case reflect.Map:
		n := rapid.IntRange(-1, 3).Draw(t, "len")
		if n < 0 {
			return
		}
		v.Set(reflect.MakeMap(v.Type()))
		for range n {
			k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(t, k)
			fill(t, e)
			v.SetMapIndex(k, e)
		}
	case reflect.String:
		v.SetString(rapid.StringN(1, 20, MaxName).Draw(t, "string"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.Int64Range(1, 100).Draw(t, "int"))
	case reflect.Int32:
		v.SetInt(int64(rapid.Int32().Draw(t, "int32")))
	case reflect.Uint64:
		v.SetUint(rapid.Uint64Range(1, math.MaxInt64).Draw(t, "uint64"))
	case reflect.Uint32:
		v.SetUint(rapid.Uint64Range(0, MaxUnits-1).Draw(t, "uint32"))
	case reflect.Uint8:
		v.SetUint(uint64(rapid.Byte().Draw(t, "byte")))
	case reflect.Float32:
		v.SetFloat(float64(rapid.Float32Range(-1e6, 1e6).Draw(t, "float32")))
	case reflect.Float64:
		v.SetFloat(rapid.Float64Range(0, 1e12).Draw(t, "float64"))
	default:
		panic("no generator for " + v.Kind().String())
	}
}

// mend makes fields agree that depend on each other.
func mend(m Message) {
	switch m := m.(type) {
	case *Frame:
		m.Got = max(m.Got, m.Ack)
	case *Borrow:
		m.Min = min(m.Min, m.Want)
	case *Status:
		for i := range m.Lending {
			l := &m.Lending[i]
			l.GrantTime.Counts, l.ReclaimTime.Counts, l.FenceTime.Counts = nil, nil, make([]uint64, latencyBuckets+1)
		}
	case *Trace:
		if len(m.Names) == 0 {
			m.Spans = nil
		}
		for i := range m.Spans {
			s, n := &m.Spans[i], uint32(len(m.Names))
			s.Track, s.Name, s.Category, s.Layer = s.Track%n, s.Name%n, s.Category%n, max(s.Layer, -1)
		}
	case *Chunk:
		if len(m.Logprobs) != len(m.Tokens) {
			m.Logprobs = nil
		}
		if len(m.Top) != len(m.Tokens) {
			m.Top = nil
		}
	}
}

func allTypes() []Type {
	var ts []Type
	for i := range kinds {
		if kinds[i].make != nil {
			ts = append(ts, Type(i))
		}
	}
	return ts
}

func TestRoundTrip(t *testing.T) {
	for _, typ := range allTypes() {
		t.Run(typ.String(), rapid.MakeCheck(func(t *rapid.T) {
			m := kinds[typ].make()
			fill(t, reflect.ValueOf(m).Elem())
			mend(m)
			prefix := []byte("before")
			b, err := Append(prefix, m)
			if err != nil {
				t.Fatal(err)
			}
			if string(b[:len(prefix)]) != "before" {
				t.Fatal("Append changed what was before")
			}
			got, err := Parse(b[len(prefix):])
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(m, got); d != "" {
				t.Fatal(d)
			}
			again, _ := Encode(got)
			if string(again) != string(b[len(prefix):]) {
				t.Fatal("equal messages have different bytes")
			}
			// A damaged copy may be refused or may be another message; it
			// must not panic and must not be accepted with bytes missing.
			if _, err := Parse(b[len(prefix) : len(b)-1]); err == nil {
				t.Fatal("a truncated message was accepted")
			}
			if _, err := Parse(append(again, 0)); err == nil {
				t.Fatal("a message with a byte too many was accepted")
			}
		}))
	}
}

// TestGolden pins the bytes: changing them needs a new Version.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		m    Message
		want string
	}{
		{&Borrow{ID: 7, Want: 3, Min: 1}, "0110a3010702030301"},
		{&Grant{ID: 7, Lease: 9, Units: []UnitEpoch{{2, 5}}, TTL: time.Second, Version: 4},
			"0111a501070209" + "0381a201020205" + "041a3b9aca00" + "0504"},
		{&Bye{Reason: "done"}, "0102a10164646f6e65"},
		{&Cancel{ID: "r"}, "0121a1016172"},
		{&Chunk{ID: "r", First: 1, Tokens: []int32{-1}, Logprobs: []float32{-0.5}},
			"0122a501617202010381200481fabf00000005f6"},
	} {
		b, err := Encode(c.m)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(b); got != c.want {
			t.Errorf("%s: bytes %s, want %s", c.m.Type(), got, c.want)
		}
	}
}

func TestTypesAreStable(t *testing.T) {
	want := map[Type]string{
		1: "Hello", 2: "Bye", 3: "Frame",
		0x10: "Borrow", 0x11: "Grant", 0x12: "Deny", 0x13: "Return", 0x14: "Reclaim", 0x15: "Released",
		0x16: "Renew", 0x17: "Renewed", 0x18: "Sync",
		0x20: "Submit", 0x21: "Cancel", 0x22: "Chunk", 0x23: "Finished", 0x24: "Failed", 0x25: "StatusAsk", 0x26: "Status",
		0x30: "Join", 0x31: "Welcome", 0x32: "Ready", 0x33: "Gone", 0x34: "FenceAsk",
	}
	got := map[Type]string{}
	for _, typ := range allTypes() {
		if _, pinned := want[typ]; pinned { // new types are pinned at a release
			got[typ] = typ.String()
		}
		if m := kinds[typ].make(); m.Type() != typ {
			t.Errorf("type %#x makes a %s", byte(typ), m.Type())
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if s := Type(0xff).String(); s != "unknown" {
		t.Errorf("Type(0xff) is called %q", s)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		name, hex string
		err       error
		text      string
	}{
		{"empty", "", ErrShort, ""},
		{"header only", "0110", ErrInvalid, "map"},
		{"null body", "0110f6", ErrInvalid, "map"},
		{"version 2", "0210a3010702030301", ErrVersion, "2"},
		{"unknown type", "017fa0", ErrType, "0x7f"},
		{"unknown key", "0110a401070203030118631864", ErrInvalid, "unknown field"},
		{"repeated key", "0110a4010702030301" + "0301", ErrInvalid, "duplicate"},
		{"indefinite map", "0110bf010702030301ff", ErrInvalid, "indefinite"},
		{"tag", "0110c1a3010702030301", ErrInvalid, ""},
		{"text for a number", "0110a3016137" + "02030301", ErrInvalid, ""},
		{"invalid UTF-8", "0102a10161ff", ErrInvalid, "UTF-8"},
		{"NaN", "0122a5016172020103812004" + "81fa7fc00000" + "05f6", ErrInvalid, "NaN"},
		{"infinity", "0122a5016172020103812004" + "81fa7f800000" + "05f6", ErrInvalid, ""},
		{"huge array", "0118a103" + "9b00ffffffffffffff", ErrInvalid, ""},
		{"deep nesting", "0118a103" + strings.Repeat("81", 100) + "00", ErrInvalid, "nest"},
		{"Min above Want", "0110a3010702030304", ErrInvalid, "Min: 4, must be from 0 to 3"},
		{"negative duration", "0111a3010702090420", ErrInvalid, "TTL: -1ns"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := hex.DecodeString(c.hex)
			if err != nil {
				t.Fatal(err)
			}
			m, err := Parse(b)
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("got %+v, error %v; want %v with %q", m, err, c.err, c.text)
			}
		})
	}
	if _, err := Parse(make([]byte, MaxMessage+1)); !errors.Is(err, ErrLong) {
		t.Errorf("over MaxMessage: %v", err)
	}
}

func TestAppendRefuses(t *testing.T) {
	long := strings.Repeat("x", MaxText+1)
	nan := float32(math.NaN())
	for _, c := range []struct {
		m    Message
		text string
	}{
		{&Borrow{Want: 1}, "ID: 0"},
		{&Borrow{ID: 1, Want: -1}, "Want: -1, must be from 1"},
		{&Grant{ID: 1, Lease: 1, TTL: -1}, "TTL"},
		{&Grant{ID: 1, Lease: 1, Units: []UnitEpoch{{Unit: MaxUnits}}}, "Units[0].Unit: 1048576"},
		{&Deny{ID: 1, Reason: long}, "Reason: 8193 bytes"},
		{&Deny{ID: 1, RetryAfter: MaxDuration + 1}, "RetryAfter"},
		{&Hello{}, "Incarnation: 0"},
		{&Bye{Reason: "\xff"}, "UTF-8"},
		{&Frame{From: 1, To: 2, Messages: [][]byte{{}}}, "First: 0"},
		{&Submit{}, "ID: empty"},
		{&Submit{ID: "a", Sampling: Sampling{LogitBias: map[int32]float32{3: nan}}}, "LogitBias[3]"},
		{&Submit{ID: "a", Sampling: Sampling{TopP: nan}}, "TopP"},
		{&Chunk{ID: "a", Tokens: []int32{1}, Logprobs: []float32{nan}}, "Logprobs[0]"},
		{&Chunk{ID: "a", Tokens: []int32{1}, Logprobs: []float32{1, 2}}, "Logprobs: 2 entries"},
		{&Chunk{ID: "a", Top: [][]TokenLogprob{nil}}, "Top: 1 entries"},
		{&Finished{ID: "a", TotalMS: -1}, "TotalMS: -1"},
		{&Failed{ID: "a", Message: long}, "Message"},
		{&Status{ID: 1, Units: []UnitCount{{Lent: -1}}}, "Units[0]"},
		{&Status{ID: 1, Lending: []LendingStatus{{FenceTime: Latency{Counts: []uint64{1}}}}}, "Lending[0].FenceTime.Counts: 1 entries"},
		{&Status{ID: 1, Links: []LinkStatus{{Queued: -1}}}, "Links[0].Queued: -1"},
		{&CheckReport{ID: 1, Findings: make([]Finding, MaxFindings+1)}, "Findings: 257 entries"},
		{&CheckReport{ID: 1, Holds: []Holding{{Parting: []UnitEpoch{{Unit: MaxUnits}}}}}, "Holds[0].Parting[0].Unit"},
		{&DrainState{ID: 1, Units: -1}, "Units: -1"},
		{&UnloadAsk{ID: 1}, "Device: empty"},
		{&UnloadAsk{ID: 1, Device: strings.Repeat("x", MaxName+1)}, "Device: 257 bytes"},
		{&UnloadAsk{Device: "d"}, "ID: 0"},
		{&UnloadState{ID: 1, Blocks: -1}, "Blocks: -1"},
		{&UnloadState{ID: 1, Unknown: long}, "Unknown: 8193 bytes"},
		{&Status{ID: 1, Disks: []DiskStatus{{Free: -1}}}, "Disks[0].Free: -1"},
		{&Status{ID: 1, Disks: make([]DiskStatus, MaxDisks+1)}, "Disks: 257 entries"},
		{&TraceAsk{ID: 1}, "Length: 0s"},
		{&TraceAsk{ID: 1, Length: MaxTrace + 1}, "at most 1m0s"},
		{&Trace{ID: 1, Spans: make([]TraceSpan, 1)}, "Spans[0]: name 0, must be below 0"},
		{&Trace{ID: 1, Names: []string{"a"}, Spans: []TraceSpan{{Layer: -2}}}, "Spans[0].Layer: -2"},
		{&Trace{ID: 1, Names: []string{"a"}, Spans: []TraceSpan{{Bytes: -1}}}, "moves -1 bytes"},
		{&Trace{ID: 1, Spans: make([]TraceSpan, MaxTraceSpans+1)}, "Spans: 65537 entries"},
		{&Frame{From: 1, To: 1, First: 1, Messages: [][]byte{make([]byte, MaxMessage)}}, "longer than"},
	} {
		dst := []byte("kept")
		b, err := Append(dst, c.m)
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: error %v, want %q", c.m.Type(), err, c.text)
		}
		if string(b) != "kept" {
			t.Errorf("%s: a failed Append returned %d bytes", c.m.Type(), len(b))
		}
	}
}

func TestClip(t *testing.T) {
	for _, c := range []struct {
		in    string
		limit int
		want  string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aé", 2, "a"}, {"é", 1, ""}, {"a\xffb", 10, "a\uFFFDb"}, {"", 0, ""},
	} {
		if got := Clip(c.in, c.limit); got != c.want {
			t.Errorf("Clip(%q, %d) = %q, want %q", c.in, c.limit, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, typ := range allTypes() {
		rapid.Check(f, func(t *rapid.T) {
			m := kinds[typ].make()
			fill(t, reflect.ValueOf(m).Elem())
			mend(m)
			if b, err := Encode(m); err == nil && len(b) < 4096 && rapid.IntRange(0, 30).Draw(t, "keep") == 0 {
				f.Add(b)
			}
		})
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		enc, err := Encode(m)
		if err != nil {
			t.Fatalf("%s was parsed but cannot be encoded: %v", m.Type(), err)
		}
		again, err := Parse(enc)
		if err != nil {
			t.Fatalf("%s: %v", m.Type(), err)
		}
		if d := cmp.Diff(m, again); d != "" {
			t.Fatal(d)
		}
	})
}

func BenchmarkChunk(b *testing.B) {
	m := &Chunk{ID: "chatcmpl-0123456789abcdef", First: 100, Tokens: []int32{15339}, Logprobs: []float32{-0.25}}
	var buf []byte
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf, _ = Append(buf[:0], m)
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Parse(buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}
