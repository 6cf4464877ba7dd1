package overlap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/lsc"
	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/nvlink/topology"
)

const blockTokens = 16

// world is a master with an engine, and a lender per link whose arenas hold the
// same history. Of the master's arena come first the slots of two buffers, then
// the homes of promoted blocks, then a local copy of the history, then the
// blocks of new tokens.
type world struct {
	model      *engine.Model
	layers     int
	layerBytes int64
	history    int // blocks
	slots      int64
	homes      int64
	resident   int64
	fresh      int64
	tokens     []int32

	local *shm.Arena
	links map[string]*linkEnd
	alone map[[2]int]*alone // by history and new tokens

	closers []func() error
}

// linkEnd is one emulated link with its lender and pipelines by buffers.
type linkEnd struct {
	bytesPerSec float64
	remote      *shm.Arena
	pipelines   [3]*lsc.Pipeline // index 0 is not used
}

// alone is a case over local KV: what computing takes, and its outcome.
type alone struct {
	seconds []float64
	logits  []float32
}

func newWorld(opt *Options) (w *world, err error) {
	w = &world{links: map[string]*linkEnd{}, alone: map[[2]int]*alone{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.model, err = engine.Random(opt.Model, 1, engine.Options{Threads: 1, BlockTokens: blockTokens}); err != nil {
		return nil, err
	}
	w.closers = append(w.closers, w.model.Close)
	w.layers, w.layerBytes = opt.Model.Layers, w.model.KVLayout().LayerBlockBytes()
	w.history = max(slices.Max(opt.History), figTokens) / blockTokens
	whole := int64(w.history*w.layers) * w.layerBytes
	newBlocks := (max(slices.Max(opt.New), figNew) + blockTokens - 1) / blockTokens
	w.slots = 0
	w.homes = int64(2*w.history) * w.layerBytes
	w.resident = w.homes + whole
	w.fresh = w.resident + whole
	if w.local, err = w.arena("master", "gpu0", w.fresh+int64(newBlocks*w.layers)*w.layerBytes); err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(1, 1))
	fillKV(w.local.Bytes()[w.resident:w.fresh], rng)
	w.tokens = make([]int32, newBlocks*blockTokens)
	for i := range w.tokens {
		w.tokens[i] = int32(rng.IntN(opt.Model.Vocab))
	}
	return w, nil
}

// fillKV writes random bf16 numbers of magnitude 0.125 to 0.5.
func fillKV(mem []byte, rng *rand.Rand) {
	for i := 0; i+8 <= len(mem); i += 8 {
		binary.LittleEndian.PutUint64(mem[i:], rng.Uint64()&0x80ff80ff80ff80ff|0x3e003e003e003e00)
	}
}

func (w *world) arena(name, dev string, size int64) (*shm.Arena, error) {
	a, err := shm.Create(name, dev, size)
	if err == nil {
		w.closers = append(w.closers, a.Close)
	}
	return a, err
}

func (w *world) close() error {
	var errs []error
	for _, f := range slices.Backward(w.closers) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// openLinks makes a fabric per link, with a lender that has the history.
func (w *world) openLinks(links []Link) error {
	for _, l := range links {
		top, err := topology.FullMesh([]string{"gpu0", "gpu1"}, l.BytesPerSec, latency)
		if err != nil {
			return err
		}
		fab, err := shm.New(shm.Config{Topology: top, Pace: true})
		if err != nil {
			return err
		}
		end := &linkEnd{bytesPerSec: l.BytesPerSec}
		if end.remote, err = w.arena("lender-"+l.Name, "gpu1", w.fresh-w.resident); err != nil {
			return err
		}
		copy(end.remote.Bytes(), w.local.Bytes()[w.resident:w.fresh])
		w.closers = append(w.closers, fab.Close)
		load, err := fab.NewStream("gpu0", "load")
		if err != nil {
			return err
		}
		store, err := fab.NewStream("gpu0", "store")
		if err != nil {
			return err
		}
		for buffers := 1; buffers <= 2; buffers++ {
			end.pipelines[buffers], err = lsc.New(lsc.Config{Layers: w.layers, Buffers: buffers,
				LayerBlockBytes: w.layerBytes, Local: w.local, Load: load, Store: store})
			if err != nil {
				return err
			}
		}
		w.links[l.Name] = end
	}
	return nil
}

// calibrate returns the time of the pass that sets the links' speed.
func (w *world) calibrate(ctx context.Context) (float64, error) {
	var list []float64
	for range 4 { // the first warms up
		kv := w.kv(figTokens, figNew, w.residentAt)
		if _, err := w.forward(ctx, kv); err != nil {
			return 0, err
		}
		list = append(list, kv.step())
	}
	slices.Sort(list[1:])
	return list[2], nil
}

// residentAt is where block i of the local history lies.
func (w *world) residentAt(i, l int) int64 { return w.resident + w.offset(i, l) }

func (w *world) offset(i, l int) int64 { return int64(i*w.layers+l) * w.layerBytes }

// kv is an engine.KV that times each call.
type kv struct {
	w       *world
	pass    *lsc.Pass // nil: all is local
	history int       // tokens
	new     int
	at      func(i, l int) int64 // block i of the history
	table   []int64

	laps
}

func (w *world) kv(history, fresh int, at func(i, l int) int64) *kv {
	return &kv{w: w, history: history, new: fresh, at: at, table: make([]int64, (history+fresh+blockTokens-1)/blockTokens)}
}

// Memory implements engine.KV.
func (k *kv) Memory() []byte { return k.w.local.Bytes() }

// Layer implements engine.KV.
func (k *kv) Layer(l int) ([][]int64, error) {
	k.called = append(k.called, time.Now())
	if k.pass != nil {
		if err := k.pass.Layer(l); err != nil {
			return nil, err
		}
	}
	k.ready = append(k.ready, time.Now())
	n := k.history / blockTokens
	for i := range k.table {
		if i < n {
			k.table[i] = k.at(i, l)
		} else {
			k.table[i] = k.w.fresh + k.w.offset(i-n, l)
		}
	}
	return [][]int64{k.table}, nil
}

// Written implements engine.KV.
func (k *kv) Written(l int) {
	if k.pass != nil {
		k.pass.Written(l)
	}
}

// Done implements engine.KV.
func (k *kv) Done(l int) {
	k.ended = append(k.ended, time.Now())
	if k.pass != nil {
		k.pass.Done(l)
	}
}

func (w *world) forward(ctx context.Context, k *kv) ([]float32, error) {
	k.began = time.Now()
	out, err := w.model.Forward(ctx, []engine.Sequence{{Tokens: w.tokens[:k.new], Start: k.history, Logits: engine.LastLogits}}, k)
	k.finished = time.Now()
	if err != nil {
		return nil, err
	}
	return out.Logits[0], nil
}

// measure runs a cell once, next to the same pass over local KV.
func (w *world) measure(ctx context.Context, c *Cell) (run, error) {
	ref, err := w.compute(ctx, c)
	if err != nil {
		return run{}, err
	}
	link := w.links[c.Link]
	n := c.History / blockTokens
	clear(w.local.Bytes()[w.homes:w.resident]) // what is read there was loaded
	p := pass{buffers: 2}
	if c.Way == OneBuffer {
		p.buffers = 1
	}
	promoted := map[string]int{Promoted: n, Mixed: n / 2}[c.Way]
	p.promoted, p.streamed = w.took(link, promoted), w.took(link, n-promoted)
	k := w.kv(c.History, c.New, func(i, l int) int64 {
		if i < promoted {
			return w.homes + w.offset(i, l)
		}
		return w.slots + int64(i*p.buffers+l%p.buffers)*w.layerBytes
	})
	blocks := w.blocks(link, k, n, promoted, p.buffers)
	waited := waitedForCore()
	began := time.Now()
	if k.pass, err = link.pipelines[p.buffers].Begin(blocks); err != nil {
		return run{}, err
	}
	defer k.pass.Abort()
	if c.Queued {
		time.Sleep(time.Duration((p.streamed + p.promoted) * float64(time.Second)))
	}
	logits, err := w.forward(ctx, k)
	if err == nil {
		err = k.pass.Finish()
	}
	if err != nil {
		return run{}, err
	}
	waited = waitedForCore() - waited
	if !slices.Equal(logits, ref.logits) {
		return run{}, fmt.Errorf("the logits differ from those over local KV")
	}
	k.times(&p)
	p.lead = k.began.Sub(began).Seconds()
	slices.Sort(ref.seconds)
	return run{
		step: k.step(), load: float64(w.layers) * (p.streamed + p.promoted), stall: k.stall(), bound: sum(p.stalls()),
		compute: (k.step() - k.stall()) / ref.seconds[len(ref.seconds)/2], waited: waited.Seconds(),
	}, nil
}

// took is how long one layer of so many blocks travels on an idle link.
func (w *world) took(link *linkEnd, blocks int) float64 {
	if blocks == 0 {
		return 0
	}
	return float64(int64(blocks)*w.layerBytes)/link.bytesPerSec + latency.Seconds()
}

// blocks plans the history's loads.
func (w *world) blocks(link *linkEnd, k *kv, n, promoted, buffers int) []lsc.Block {
	out := make([]lsc.Block, n)
	for i := range out {
		slots := buffers
		if i < promoted {
			slots = w.layers
		}
		out[i] = lsc.Block{Load: true, Key: int64(i), Remote: func(l int) nvlink.Span {
			return nvlink.Span{Arena: link.remote, Off: w.offset(i, l), Len: w.layerBytes}
		}}
		for l := range slots {
			out[i].Slots = append(out[i].Slots, k.at(i, l))
		}
	}
	return out
}

// compute runs the pass over local KV.
func (w *world) compute(ctx context.Context, c *Cell) (*alone, error) {
	key := [2]int{c.History, c.New}
	ref := w.alone[key]
	if ref == nil {
		ref = &alone{}
		w.alone[key] = ref
	}
	k := w.kv(c.History, c.New, w.residentAt)
	logits, err := w.forward(ctx, k)
	if err != nil {
		return nil, err
	}
	ref.logits = slices.Clone(logits)
	ref.seconds = append(ref.seconds, k.step())
	return ref, nil
}
