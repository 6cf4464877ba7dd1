package disk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/overflow/stream"
	"github.com/kvlend/kvlend/prefix"
)

// StoreResult is what a store achieves when it is written to: from memory to
// durable, with checksums, through a copy stream, two batches on their way.
type StoreResult struct {
	Blocks     int   `json:"blocks"`
	BlockBytes int64 `json:"block_bytes"`
	// Raw is what the engine alone writes, in order, 1 MiB at a time, with a sync
	// each 32 MiB or so.
	Raw   float64     `json:"raw_bytes_per_second"`
	Cells []StoreCell `json:"cells"`
}

// StoreCell is one way to fill a store: medians over the rounds.
type StoreCell struct {
	Replace bool `json:"replace"` // blocks that lie there give way; else the store is empty
	Flush   int  `json:"blocks_per_flush"`

	BytesPerSec float64 `json:"bytes_per_second"` // of blocks
	Ratio       float64 `json:"ratio"`            // over Raw, in the same round
	CPUPerGB    float64 `json:"cpu_seconds_per_gb"`
	// Amplification is the bytes that the device was given over those of blocks,
	// LogBytes what of them is log, for each block.
	Amplification float64 `json:"write_amplification"`
	LogBytes      float64 `json:"log_bytes_per_block"`
}

const (
	// storeBatch is how many blocks are copied at once.
	storeBatch = 16
	// logRoom is more than a store needs beside its blocks.
	logRoom = 32 << 20
)

func (o WriteOptions) storeSize() int64 { return storeBytes(o.Layers, o.Blocks) + logRoom }

// keeper writes blocks into a store.
type keeper struct {
	opt    WriteOptions
	set    *set
	dev    device.Device
	far    *stream.Arena
	near   *shm.Arena // two batches of blocks
	stream *stream.Stream
	store  *store.Store
	next   uint64 // key
}

// storeWrites measures them all on one device.
func storeWrites(ctx context.Context, opt WriteOptions) (res StoreResult, err error) {
	res = StoreResult{Blocks: opt.Blocks, BlockBytes: int64(opt.Layers) * layerUnit}
	k := &keeper{opt: opt}
	if k.set, err = openSet([]Spec{{Path: opt.Path}}, true, 16<<20, staging); err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, k.close()) }()
	if err := k.open(); err != nil {
		return res, err
	}
	flushes := []int{storeBatch, 4 * storeBatch}
	trials := make([][]trialOfStore, 2*len(flushes))
	var raw []float64
	for round := range opt.Rounds {
		opt.Progress(fmt.Sprintf("a store: round %d of %d", round+1, opt.Rounds))
		one, err := k.raw(ctx)
		if err != nil {
			return res, err
		}
		raw = append(raw, one)
		for i, n := range flushes {
			two, err := k.trial(ctx, n)
			if err != nil {
				return res, err
			}
			for j, t := range two {
				t.ratio = t.rate / one
				trials[2*i+j] = append(trials[2*i+j], t)
			}
		}
	}
	res.Raw = median(raw)
	for i, list := range trials {
		res.Cells = append(res.Cells, summariseStore(list, i%2 == 1, flushes[i/2]))
	}
	return res, nil
}

func (k *keeper) open() (err error) {
	k.dev = k.set.devs[0]
	if n := k.dev.Info().Size; n < k.opt.storeSize() {
		return fmt.Errorf("%s has %d bytes, a store of %d blocks needs %d", k.opt.Path, n, k.opt.Blocks, k.opt.storeSize())
	}
	k.far = stream.NewArena(k.dev)
	if k.near, err = shm.Create("bench-disk-write", "gpu0", 2*storeBatch*int64(k.opt.Layers)*layerUnit); err != nil {
		return err
	}
	mem := k.near.Bytes()
	for i := range mem {
		mem[i] = byte(i>>12 ^ i*11)
	}
	k.stream, err = stream.New(stream.Options{Name: "keep", Memory: k.set.eng.Memory().For("keep"), Staging: staging})
	return err
}

func (k *keeper) close() error {
	var errs []error
	if k.stream != nil {
		errs = append(errs, k.stream.Close())
	}
	if k.far != nil {
		errs = append(errs, k.far.Close())
	}
	if k.near != nil {
		errs = append(errs, k.near.Close())
	}
	return errors.Join(append(errs, k.set.close())...)
}

// raw is what the engine alone writes per second.
func (k *keeper) raw(ctx context.Context) (float64, error) {
	m, err := k.set.measure(ctx, 0, load{span: k.opt.storeSize() &^ (1<<20 - 1), block: 1 << 20, depth: 16, write: true, sequential: true,
		syncEvery: 32}, k.opt.Each, 0)
	return m.bytesPerSec, err
}

// trialOfStore is one filling of a store.
type trialOfStore struct{ rate, ratio, cpu, amplification, log float64 }

// trial fills an empty store, and then replaces all that it holds.
func (k *keeper) trial(ctx context.Context, flush int) (out [2]trialOfStore, err error) {
	o := store.Options{Layers: k.opt.Layers, LayerBytes: layerUnit, BlockTokens: blockTokens, Run: segmentRun,
		Slots: (k.opt.Blocks + segmentRun - 1) / segmentRun * segmentRun, FlushEntries: flush, Force: true}
	if err := store.Format(ctx, k.dev, o); err != nil {
		return out, err
	}
	if k.store, _, err = store.Open(ctx, k.dev, o); err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, k.store.Close(ctx)) }()
	var held []store.Slot
	for i := range out {
		if out[i], held, err = k.fill(ctx, held); err != nil {
			return out, err
		}
	}
	return out, nil
}

// fill writes all blocks, in the place of those that are held, and says which
// slots they have.
func (k *keeper) fill(ctx context.Context, held []store.Slot) (t trialOfStore, slots []store.Slot, err error) {
	cpu, err := cpuTime()
	if err != nil {
		return t, nil, err
	}
	given, log := k.given(), k.store.Stats().LogBytes
	began := time.Now()
	var flying []store.Slot
	var event nvlink.Event
	for half := 0; len(slots) < k.opt.Blocks; half = 1 - half {
		n := min(storeBatch, k.opt.Blocks-len(slots))
		if len(held) > 0 {
			k.store.Free(held[:n])
			held = held[n:]
		}
		batch := k.store.Alloc(nil, n)
		if len(batch) < n {
			return t, nil, fmt.Errorf("the store gives %d slots of %d", len(batch), n)
		}
		slots = append(slots, batch...)
		next, err := k.copy(batch, half)
		if err != nil {
			return t, nil, err
		}
		if err := k.landed(ctx, event, flying, 1-half); err != nil {
			return t, nil, err
		}
		flying, event = batch, next
		if n < storeBatch || len(slots) == k.opt.Blocks {
			if err := k.landed(ctx, event, flying, half); err != nil {
				return t, nil, err
			}
		}
	}
	if err := k.store.Flush(ctx); err != nil {
		return t, nil, err
	}
	took := time.Since(began)
	after, err := cpuTime()
	if err != nil {
		return t, nil, err
	}
	bytes := float64(k.opt.Blocks) * float64(k.opt.Layers) * layerUnit
	t.rate, t.cpu = bytes/took.Seconds(), (after-cpu).Seconds()/bytes*1e9
	t.amplification = float64(k.given()-given) / bytes
	t.log = float64(k.store.Stats().LogBytes-log) / float64(k.opt.Blocks)
	return t, slots, nil
}

// given is how many bytes the device was given to write so far.
func (k *keeper) given() int64 {
	if m, ok := k.dev.(device.Metered); ok {
		return m.Meter().Stats().Write.Bytes
	}
	return 0
}

// copy enqueues the copies of a batch from one half of the memory.
func (k *keeper) copy(batch []store.Slot, half int) (nvlink.Event, error) {
	var list []nvlink.Copy
	for i, slot := range batch {
		for l := range k.opt.Layers {
			list = append(list, nvlink.Copy{
				Src: nvlink.Span{Arena: k.near, Off: k.at(half, i, l), Len: layerUnit},
				Dst: nvlink.Span{Arena: k.far, Off: k.store.Off(slot, l), Len: layerUnit},
			})
		}
	}
	if err := k.stream.CopyBatch(list); err != nil {
		return nil, err
	}
	return k.stream.Record()
}

// at is where a layer block of a batch lies in memory.
func (k *keeper) at(half, i, layer int) int64 {
	return ((int64(half)*storeBatch+int64(i))*int64(k.opt.Layers) + int64(layer)) * layerUnit
}

// landed commits a batch when it lies on the device; a nil event: there is none.
func (k *keeper) landed(ctx context.Context, event nvlink.Event, batch []store.Slot, half int) error {
	if event == nil {
		return nil
	}
	e := store.Entry{Tokens: make([]int32, blockTokens), Sums: make([]uint64, k.opt.Layers)}
	sums := make([][]uint64, len(batch))
	for i := range batch { // while it is on its way
		for l := range k.opt.Layers {
			sums[i] = append(sums[i], xxh3.Hash(k.near.Bytes()[k.at(half, i, l):][:layerUnit]))
		}
	}
	if err := event.Wait(ctx); err != nil {
		return err
	}
	for i, slot := range batch {
		k.next++
		e.Slot, e.Key, e.Parent, e.Root = slot, prefix.Key{Hi: k.next, Lo: ^k.next}, prefix.Key{Hi: k.next - 1, Lo: 1}, false
		copy(e.Sums, sums[i])
		if _, err := k.store.Commit(&e); err != nil {
			return err
		}
	}
	return nil
}

func summariseStore(list []trialOfStore, replace bool, flush int) StoreCell {
	of := func(f func(trialOfStore) float64) float64 {
		var x []float64
		for _, t := range list {
			x = append(x, f(t))
		}
		return median(x)
	}
	return StoreCell{
		Replace: replace, Flush: flush,
		BytesPerSec:   of(func(t trialOfStore) float64 { return t.rate }),
		Ratio:         of(func(t trialOfStore) float64 { return t.ratio }),
		CPUPerGB:      of(func(t trialOfStore) float64 { return t.cpu }),
		Amplification: of(func(t trialOfStore) float64 { return t.amplification }),
		LogBytes:      of(func(t trialOfStore) float64 { return t.log }),
	}
}

// sizesOf are the sizes of cells, each once, ascending.
func sizesOf(cells []WriteCell) []int64 {
	var out []int64
	for _, c := range cells {
		out = append(out, c.Size)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
