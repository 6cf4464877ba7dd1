package timeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collect starts Collect and returns when it is on.
func collect(r *Recorder, ctx context.Context, d time.Duration) <-chan Recording {
	out := make(chan Recording, 1)
	go func() { out <- r.Collect(ctx, d) }()
	synctest.Wait()
	return out
}

func span(id uint64, from, to time.Time) Span {
	return Span{Track: "t", Name: "n", Category: Load, Layer: NoLayer, ID: id, Start: from, End: to}
}

func ids(rec Recording) []uint64 {
	var out []uint64
	for _, s := range rec.Spans {
		out = append(out, s.ID)
	}
	return out
}

func TestOnlyWhatEndsWhileSomebodyCollectsIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Recorder
		t0 := time.Now()
		add := func(id uint64, began time.Time) { r.Add(span(id, began, time.Now())) }
		add(1, t0)
		if r.On() {
			t.Fatal("on, and nobody collects")
		}
		first := collect(&r, t.Context(), 10*time.Second)
		if !r.On() {
			t.Fatal("off, and somebody collects")
		}
		time.Sleep(time.Second)
		add(2, t0.Add(-time.Hour)) // began before, ended now
		second := collect(&r, t.Context(), time.Minute)
		r.Add(span(3, t0, t0.Add(time.Millisecond))) // ended before the second asked
		time.Sleep(time.Second)
		add(4, t0.Add(2*time.Second))
		add(5, t0.Add(time.Second))
		one := <-first
		if got := ids(one); !slices.Equal(got, []uint64{2, 3, 5, 4}) || one.To.Sub(one.From) != 10*time.Second {
			t.Errorf("first: %v in %v", got, one.To.Sub(one.From))
		}
		time.Sleep(5 * time.Second)
		add(6, time.Now())
		if got := ids(<-second); !slices.Equal(got, []uint64{2, 5, 4, 6}) {
			t.Errorf("second: %v", got)
		}
		if r.On() {
			t.Error("on after everybody has gone")
		}
	})
}

func TestCollectEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Recorder
		ctx, cancel := context.WithCancel(t.Context())
		out := collect(&r, ctx, time.Hour)
		cancel()
		if rec := <-out; rec.To != rec.From || r.On() {
			t.Errorf("%+v, on %v", rec, r.On())
		}
	})
}

// TestRingKeepsTheLatest: the ring forgets the oldest, and says how many.
func TestRingKeepsTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Recorder
		out := collect(&r, t.Context(), time.Second)
		now := time.Now()
		for i := range uint64(ringSize + 10) {
			r.Add(span(i, now.Add(time.Duration(i)), now.Add(time.Duration(i))))
		}
		rec := <-out
		if rec.Lost != 10 || len(rec.Spans) != ringSize || rec.Spans[0].ID != 10 || rec.Spans[ringSize-1].ID != ringSize+9 {
			t.Fatalf("lost %d, have %d from %d to %d", rec.Lost, len(rec.Spans), rec.Spans[0].ID, rec.Spans[len(rec.Spans)-1].ID)
		}
	})
}

// TestManyWriters: spans of many goroutines are all there, whole.
func TestManyWriters(t *testing.T) {
	var r Recorder
	g := r.open(1000)
	defer r.close()
	const writers, each = 8, 500
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				id := uint64(w*each + i)
				r.Add(Span{ID: id, Bytes: int64(3 * id), Start: time.Unix(int64(id), 0), End: time.Unix(int64(id), 0)})
				if i%50 == 0 {
					g.between(time.Time{}, time.Unix(1<<40, 0))
				}
			}
		})
	}
	wg.Wait()
	spans := g.between(time.Time{}, time.Unix(1<<40, 0))
	if len(spans) != 1000 {
		t.Fatalf("%d spans of %d in a ring of 1000", len(spans), writers*each)
	}
	for _, s := range spans {
		if s.Bytes != int64(3*s.ID) || s.Start.Unix() != int64(s.ID) {
			t.Fatalf("torn span %+v", s)
		}
	}
}

func TestHooksAreFreeWhileNobodyLooks(t *testing.T) {
	var r Recorder
	now := time.Now()
	if n := testing.AllocsPerRun(100, func() {
		r.Add(span(1, now, now))
		r.Transfer("load", 0, 1, now, now, 64)
	}); n != 0 {
		t.Errorf("%v allocations while off", n)
	}
	r.open(64)
	defer r.close()
	if n := testing.AllocsPerRun(100, func() {
		r.Add(span(1, now, now))
		r.Transfer("load", 3, 1, now, now, 64)
	}); n != 0 {
		t.Errorf("%v allocations while on", n)
	}
	var none *Recorder
	none.Add(span(1, now, now))
	none.Transfer("load", 0, 0, now, now, 1)
	if none.On() {
		t.Error("a nil Recorder is on")
	}
}

func TestTransfersHaveATrackPerStream(t *testing.T) {
	var r Recorder
	g := r.open(16)
	defer r.close()
	now := time.Now()
	for i, c := range []struct {
		name string
		via  int
		want string
	}{{"load", 0, "load"}, {"promote", 0, "load"}, {"load", 2, "load 2"}, {"promote", 40, "load 40"}, {"store", 0, "store"}} {
		at := now.Add(time.Duration(i))
		r.Transfer(c.name, c.via, i, at, at, 64)
		got := g.between(at, at)
		if want := (Span{Track: c.want, Name: c.name, Category: c.name, Layer: i, Start: at, End: at, Bytes: 64}); len(got) != 1 || got[0] != want {
			t.Errorf("%+v: %+v, want %+v", c, got, want)
		}
	}
}

// fakeModel computes in fake time: 1 ms QKV, 2 ms attention, 4 ms FFN.
type fakeModel struct {
	engine.Runner
	saw engine.KV
}

func (m *fakeModel) Forward(_ context.Context, _ []engine.Sequence, kv engine.KV) (*engine.Output, error) {
	m.saw = kv
	for l := range 2 {
		if _, err := kv.Layer(l); err != nil {
			return nil, err
		}
		time.Sleep(time.Millisecond)
		kv.Written(l)
		time.Sleep(2 * time.Millisecond)
		kv.Done(l)
		time.Sleep(4 * time.Millisecond)
	}
	return &engine.Output{Vocab: 7}, nil
}

// fakeKV is ready after 8 ms per layer, and fails at layer fail.
type fakeKV struct {
	engine.KV
	fail int
}

var errFake = errors.New("no KV")

func (k fakeKV) Layer(l int) ([][]int64, error) {
	time.Sleep(8 * time.Millisecond)
	if l == k.fail {
		return nil, errFake
	}
	return [][]int64{{int64(l)}}, nil
}
func (fakeKV) Written(int) {}
func (fakeKV) Done(int)    {}

func TestWatchedForwardShowsItsLayers(t *testing.T) {
	for _, c := range []struct {
		fail int
		want []string
	}{
		{-1, []string{
			"steps step -1 0-30", "engine wait 0 0-8", "engine attention 0 8-11", "engine ffn 0 11-15",
			"engine wait 1 15-23", "engine attention 1 23-26", "engine ffn 1 26-30"}},
		{1, []string{
			"steps step -1 0-23", "engine wait 0 0-8", "engine attention 0 8-11", "engine ffn 0 11-15", "engine wait 1 15-23"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var r Recorder
			m, kv := &fakeModel{}, fakeKV{fail: c.fail}
			w := Watch(m, &r)
			_, err := w.Forward(t.Context(), nil, kv)
			if m.saw != engine.KV(kv) || errors.Is(err, errFake) != (c.fail >= 0) {
				t.Fatalf("off: KV %T, error %v", m.saw, err)
			}
			rec := collect(&r, t.Context(), time.Second)
			t0 := time.Now()
			out, err := w.Forward(t.Context(), []engine.Sequence{{Tokens: make([]int32, 3)}, {Tokens: make([]int32, 4)}}, kv)
			if errors.Is(err, errFake) != (c.fail >= 0) || (out == nil) != (err != nil) {
				t.Fatalf("on: %v, %v", out, err)
			}
			var got []string
			spans := (<-rec).Spans
			slices.SortStableFunc(spans, func(a, b Span) int { return a.Start.Compare(b.Start)*2 - strings.Compare(a.Track, b.Track) })
			for _, s := range spans {
				got = append(got, fmt.Sprintf("%s %s %d %d-%d", s.Track, s.Name, s.Layer, s.Start.Sub(t0).Milliseconds(), s.End.Sub(t0).Milliseconds()))
				if s.ID != 2 || s.Category == Step && s.Bytes != 7 {
					t.Errorf("%+v: want step 2 and 7 tokens", s)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("spans %q, want %q", got, c.want)
			}
		})
	}
}

func drawRecording(t *rapid.T) Recording {
	from := time.Unix(1_700_000_000, 0)
	rec := Recording{From: from, To: from.Add(time.Second), Lost: rapid.Uint64Range(0, 9).Draw(t, "lost")}
	for range rapid.IntRange(0, 20).Draw(t, "n") {
		start := from.Add(time.Duration(rapid.Int64Range(-1e9, 1e9).Draw(t, "start")))
		rec.Spans = append(rec.Spans, Span{
			Track:    rapid.SampledFrom([]string{"engine", "steps", "load", "a\"b\\", "\u00e9"}).Draw(t, "track"),
			Name:     rapid.SampledFrom([]string{"x", "<y>"}).Draw(t, "name"),
			Category: rapid.SampledFrom([]string{Load, Step, Wait}).Draw(t, "category"),
			Layer:    rapid.IntRange(NoLayer, 9).Draw(t, "layer"), ID: rapid.Uint64Range(0, 1<<40).Draw(t, "id"),
			Start: start, End: start.Add(time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "d"))),
			Bytes: rapid.Int64Range(0, 1<<40).Draw(t, "bytes"),
		})
	}
	return rec
}

func TestWireRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rec := drawRecording(t)
		b, err := wire.Encode(ToWire(3, rec))
		if err != nil {
			t.Fatal(err)
		}
		m, err := wire.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(rec, FromWire(m.(*wire.Trace))); d != "" {
			t.Fatal(d)
		}
	})
}

func TestWireClipsWhatDoesNotFit(t *testing.T) {
	now := time.Now()
	rec := Recording{From: now, To: now.Add(time.Second), Lost: 5, Spans: make([]Span, wire.MaxTraceSpans+7)}
	for i := range rec.Spans {
		rec.Spans[i] = Span{Track: "engine", Start: now.Add(time.Duration(i)), End: now.Add(time.Hour), Layer: 1 << 20, ID: 1 << 60, Bytes: 1 << 60}
	}
	if m := ToWire(1, rec); len(m.Spans) != wire.MaxTraceSpans || m.Lost != 12 {
		t.Errorf("%d spans, %d lost", len(m.Spans), m.Lost)
	} else if b, err := wire.Encode(m); err != nil {
		t.Errorf("the largest trace: %d bytes, %v", len(b), err)
	}
	for i := range rec.Spans {
		rec.Spans[i].Track = fmt.Sprint(i)
	}
	m := ToWire(1, rec)
	if err := m.Validate(); err != nil || m.Lost+uint64(len(m.Spans)) != uint64(len(rec.Spans))+5 {
		t.Errorf("many names: %v, %d spans, %d lost", err, len(m.Spans), m.Lost)
	}
}

// TestChromeFormat parses what was written: every span is there, on the thread
// that has its track's name.
func TestChromeFormat(t *testing.T) {
	type parsed struct {
		Name, Ph, Cat string
		TS, Dur       float64
		PID, TID      int
		Args          struct {
			Name                      string
			Layer                     *int
			ID                        uint64
			Bytes, Tokens, Sort_index int64
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		procs := []Process{{"oak", 10, drawRecording(t)}, {"birch", 11, drawRecording(t)}}
		var buf bytes.Buffer
		if err := WriteChrome(&buf, procs); err != nil {
			t.Fatal(err)
		}
		var file struct {
			DisplayTimeUnit string
			TraceEvents     []parsed
		}
		if err := json.Unmarshal(buf.Bytes(), &file); err != nil {
			t.Fatalf("%v in\n%s", err, buf.String())
		}
		threads, names, at := map[[2]int]string{}, map[int]string{}, 0
		var spans []Span
		for _, p := range procs {
			spans = append(spans, p.Spans...)
		}
		for _, e := range file.TraceEvents {
			switch e.Name + e.Ph {
			case "process_nameM":
				names[e.PID] = e.Args.Name
				continue
			case "thread_nameM":
				threads[[2]int{e.PID, e.TID}] = e.Args.Name
				continue
			case "thread_sort_indexM":
				continue
			}
			s := spans[at]
			at++
			if e.Ph != "X" || e.Name != s.Name || e.Cat != s.Category || threads[[2]int{e.PID, e.TID}] != s.Track {
				t.Fatalf("event %+v on %q for span %+v", e, threads[[2]int{e.PID, e.TID}], s)
			}
			if ts, dur := micros(s.Start.Sub(procs[0].From)), micros(s.End.Sub(s.Start)); e.TS != ts || e.Dur != dur {
				t.Fatalf("event at %v for %v, span at %v for %v", e.TS, e.Dur, ts, dur)
			}
			if (e.Args.Layer == nil) != (s.Layer == NoLayer) || e.Args.Layer != nil && *e.Args.Layer != s.Layer || e.Args.ID != s.ID || e.Args.Bytes+e.Args.Tokens != s.Bytes {
				t.Fatalf("args %+v for %+v", e.Args, s)
			}
		}
		if at != len(spans) || names[10] != "oak" || names[11] != "birch" || file.DisplayTimeUnit != "ms" {
			t.Fatalf("%d of %d spans, processes %v", at, len(spans), names)
		}
	})
}

func TestTracksAreInOrder(t *testing.T) {
	var spans []Span
	for _, s := range []string{"store", "load 1", "engine", "load", "steps", "store"} {
		spans = append(spans, Span{Track: s})
	}
	if got := tracks(spans); !slices.Equal(got, []string{"steps", "engine", "load", "load 1", "store"}) {
		t.Errorf("tracks %q", got)
	}
}

func BenchmarkOff(b *testing.B) {
	var r Recorder
	for b.Loop() {
		if r.On() {
			b.Fatal("on")
		}
	}
}

func BenchmarkOn(b *testing.B) {
	var r Recorder
	r.open(ringSize)
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		r.Add(span(1, now, now))
	}
}
