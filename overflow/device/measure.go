package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// MeasureOptions configure Measure. Zero values mean the defaults.
type MeasureOptions struct {
	// Off and Len are the range that is measured on (Len 0: to the device's end).
	Off, Len int64
	// Written promises that all of the range was written: reads of what was not
	// would measure nothing. Without it Writes must be set.
	Written bool
	// Writes measures writes too. They overwrite the range.
	Writes   bool
	Sizes    []int         // bytes, multiples of Align (4, 16, 64, 256 KiB, 1 MiB)
	Depths   []int         // I/Os under way (1, 8, 32)
	PerPoint time.Duration // at least (100 ms)
	// Memory for the buffers, of the device's engine; nil: memory that the
	// kernel does not know in advance.
	Memory *Memory
}

// measureBytes bounds size times depth of a point.
const measureBytes = 16 << 20

func (o MeasureOptions) withDefaults(i Info) (MeasureOptions, error) {
	if o.Len == 0 {
		o.Len = i.Size - o.Off
	}
	if len(o.Sizes) == 0 {
		o.Sizes = []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}
	}
	if len(o.Depths) == 0 {
		o.Depths = []int{1, 8, 32}
	}
	if o.PerPoint == 0 {
		o.PerPoint = 100 * time.Millisecond
	}
	switch {
	case !o.Written && !o.Writes:
		return o, errors.New("neither Written nor Writes is set: reads of what was never written measure nothing")
	case o.Off < 0 || o.Off%Align != 0 || o.Len < Align || o.Len%Align != 0 || o.Len > i.Size-o.Off:
		return o, fmt.Errorf("range of %d bytes at %d is not aligned or not within %d bytes", o.Len, o.Off, i.Size)
	}
	for _, n := range o.Sizes {
		if n < Align || n%Align != 0 || n > measureBytes {
			return o, fmt.Errorf("size %d is not a multiple of %d up to %d", n, Align, measureBytes)
		}
	}
	for _, n := range o.Depths {
		if n < 1 || n > maxOps {
			return o, fmt.Errorf("depth %d is not in 1..%d", n, maxOps)
		}
	}
	return o, nil
}

// Measure measures a device that nobody else uses meanwhile, at random offsets
// of a range. Sizes and depths that together exceed 16 MiB or the range are
// left out. The writes' figures include making them durable.
func Measure(ctx context.Context, d Device, o MeasureOptions) (Profile, error) {
	i := d.Info()
	o, err := o.withDefaults(i)
	if err != nil {
		return Profile{}, &Error{Device: i.Name, Op: "measure", Off: o.Off, Len: int(o.Len), Err: err}
	}
	if u, ok := d.(interface {
		Unwritten(off, n int64) (int64, error)
	}); ok && o.Written {
		if n, err := u.Unwritten(o.Off, o.Len); err == nil && n > 0 {
			err := fmt.Errorf("%d bytes of the range were never written", n)
			return Profile{}, &Error{Device: i.Name, Op: "measure", Off: o.Off, Len: int(o.Len), Err: err}
		}
	}
	p := Profile{Device: i.Name, Kind: i.Kind, Taken: time.Now(), Degraded: i.Degraded}
	if !o.Written {
		if err := Prewrite(ctx, d, o.Off, o.Len, nil); err != nil {
			return Profile{}, err
		}
	}
	m, err := newMeasurement(ctx, d, o)
	if err != nil {
		return Profile{}, err
	}
	defer m.close()
	if p.Read, err = m.curve(false); err != nil {
		return Profile{}, err
	}
	if o.Writes {
		if p.Write, err = m.curve(true); err != nil {
			return Profile{}, err
		}
	}
	return p, nil
}

// measurement is one Measure under way.
type measurement struct {
	ctx   context.Context
	d     Device
	o     MeasureOptions
	mem   []byte
	close func()
}

func newMeasurement(ctx context.Context, d Device, o MeasureOptions) (*measurement, error) {
	m := &measurement{ctx: ctx, d: d, o: o}
	need := 0
	for _, size := range o.Sizes {
		for _, depth := range o.Depths {
			if m.fits(size, depth) {
				need = max(need, size*depth)
			}
		}
	}
	if need == 0 {
		return nil, &Error{Device: d.Info().Name, Op: "measure", Off: o.Off, Len: int(o.Len), Err: errors.New("the range is too small for every size and depth")}
	}
	if o.Memory != nil {
		mem, err := o.Memory.For("measure").Get(ctx, need)
		m.mem, m.close = mem, func() { o.Memory.For("measure").Put(mem) }
		return m, err
	}
	mem, whole, err := mapMemory(int64(need), false)
	// A mapping of our own: unmapping cannot fail.
	m.mem, m.close = mem, func() { _ = unix.Munmap(whole) }
	return m, err
}

func (m *measurement) fits(size, depth int) bool {
	return size*depth <= measureBytes && int64(size*depth) <= m.o.Len
}

func (m *measurement) curve(write bool) (Curve, error) {
	var c Curve
	for _, size := range m.o.Sizes {
		for _, depth := range m.o.Depths {
			if !m.fits(size, depth) {
				continue
			}
			p, err := m.point(write, size, depth)
			if err != nil {
				return nil, err
			}
			c = append(c, p)
		}
	}
	return c, nil
}

// lane is one of a point's I/Os: it is submitted again whenever it is done, on
// a part of the range of its own.
type lane struct {
	io       IO
	batch    []*IO
	from, n  int64 // its part, in units of the I/O's size
	rnd      *rand.Rand
	started  time.Time
	finished *sync.WaitGroup
	lats     []time.Duration
	err      error
}

// point measures one size and depth.
func (m *measurement) point(write bool, size, depth int) (Point, error) {
	var wg sync.WaitGroup
	wg.Add(depth)
	started := time.Now()
	lanes := make([]*lane, depth)
	each := m.o.Len / int64(size) / int64(depth)
	for i := range lanes {
		l := &lane{
			from: int64(i) * each, n: each, rnd: rand.New(rand.NewPCG(uint64(i), uint64(size))),
			started: started, finished: &wg, lats: make([]time.Duration, 0, 4096),
		}
		l.io = IO{Write: write, Buf: m.mem[i*size : (i+1)*size]}
		l.io.Done = func(*IO) { m.next(l) }
		l.batch = []*IO{&l.io}
		lanes[i] = l
	}
	for _, l := range lanes {
		m.submit(l)
	}
	wg.Wait()
	var sum time.Duration
	var all []time.Duration
	for _, l := range lanes {
		if l.err != nil {
			return Point{}, l.err
		}
		for _, lat := range l.lats {
			sum += lat
		}
		all = append(all, l.lats...)
	}
	if write {
		if err := m.d.Sync(m.ctx); err != nil {
			return Point{}, err
		}
	}
	took := time.Since(started)
	slices.SortFunc(all, func(a, b time.Duration) int { return cmp.Compare(a, b) })
	return Point{
		Size: size, Depth: depth,
		Rate:    float64(len(all)) * float64(size) / took.Seconds(),
		Latency: sum / time.Duration(len(all)),
		P99:     all[len(all)*99/100],
	}, nil
}

func (m *measurement) submit(l *lane) {
	l.io.Off = m.o.Off + (l.from+l.rnd.Int64N(l.n))*int64(len(l.io.Buf))
	if err := m.d.Submit(l.batch); err != nil {
		l.err = err
		l.finished.Done()
	}
}

// next is the Done of a lane's I/O.
func (m *measurement) next(l *lane) {
	l.err = l.io.Err
	l.lats = append(l.lats, l.io.Ended.Sub(l.io.Began))
	if l.err == nil {
		l.err = m.ctx.Err()
	}
	if l.err != nil || l.io.Ended.Sub(l.started) >= m.o.PerPoint {
		l.finished.Done()
		return
	}
	m.submit(l)
}
