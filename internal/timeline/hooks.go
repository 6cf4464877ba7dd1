package timeline

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/engine"
)

// Tracks of the hooks in this package.
const (
	engineTrack = "engine"
	stepTrack   = "steps"
	storeTrack  = "store"
)

// loadTracks names the first streams, so that a span needs no allocation.
var loadTracks = [...]string{"load", "load 1", "load 2", "load 3", "load 4", "load 5", "load 6", "load 7"}

// Transfer implements lsc.Recorder: one batch of a pass, on a track per stream.
func (r *Recorder) Transfer(name string, via, layer int, began, ended time.Time, bytes int64) {
	if !r.On() {
		return
	}
	track := storeTrack
	switch {
	case name == Store:
	case via < len(loadTracks):
		track = loadTracks[via]
	default:
		track = fmt.Sprint("load ", via)
	}
	r.Add(Span{Track: track, Name: name, Category: name, Layer: layer, Start: began, End: ended, Bytes: bytes})
}

// Runner is a model whose forward passes appear on the timeline: a span per
// step, and per layer waiting, attention and FFN.
type Runner struct {
	engine.Runner
	rec   *Recorder
	steps atomic.Uint64
}

// Watch returns inner with hooks. Results are the same.
func Watch(inner engine.Runner, rec *Recorder) *Runner { return &Runner{Runner: inner, rec: rec} }

// Forward implements engine.Runner.
func (r *Runner) Forward(ctx context.Context, batch []engine.Sequence, kv engine.KV) (*engine.Output, error) {
	id := r.steps.Add(1)
	if !r.rec.On() {
		return r.Runner.Forward(ctx, batch, kv)
	}
	began := time.Now()
	w := &watchedKV{KV: kv, rec: r.rec, step: id, layer: NoLayer}
	out, err := r.Runner.Forward(ctx, batch, w)
	now := time.Now()
	w.close(now)
	tokens := 0
	for i := range batch {
		tokens += len(batch[i].Tokens)
	}
	r.rec.Add(Span{Track: stepTrack, Name: Step, Category: Step, Layer: NoLayer, ID: id, Start: began, End: now, Bytes: int64(tokens)})
	return out, err
}

// watchedKV times the calls of one pass. The engine calls it from one goroutine.
type watchedKV struct {
	engine.KV
	rec   *Recorder
	step  uint64
	layer int       // whose FFN runs; NoLayer: none does
	at    time.Time // when the layer's attention began or ended
}

func (w *watchedKV) add(name string, l int, from, to time.Time) {
	w.rec.Add(Span{Track: engineTrack, Name: name, Category: name, Layer: l, ID: w.step, Start: from, End: to})
}

// close ends the FFN that runs, if any.
func (w *watchedKV) close(now time.Time) {
	if w.layer != NoLayer {
		w.add(FFN, w.layer, w.at, now)
		w.layer = NoLayer
	}
}

// Layer implements engine.KV.
func (w *watchedKV) Layer(l int) ([][]int64, error) {
	began := time.Now()
	w.close(began)
	tables, err := w.KV.Layer(l)
	w.at = time.Now()
	w.add(Wait, l, began, w.at)
	return tables, err
}

// Done implements engine.KV.
func (w *watchedKV) Done(l int) {
	now := time.Now()
	w.add(Attention, l, w.at, now)
	w.KV.Done(l)
	w.layer, w.at = l, now
}
