package perf

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
)

// DiskSpec describes a disk, or memory that serves as one, by a few figures.
type DiskSpec struct {
	Name                          string
	Capacity                      int64   // bytes; 0: unknown
	ReadBandwidth, WriteBandwidth float64 // bytes per second
	ReadIOPS, WriteIOPS           float64 // operations per second; 0: no limit but the bandwidth
	ReadLatency, WriteLatency     time.Duration
	Endurance                     Endurance
}

// DRAM is host memory of a bandwidth.
func DRAM(bandwidth float64, capacity int64) DiskSpec {
	return DiskSpec{
		Name: "DRAM", Capacity: capacity, ReadBandwidth: bandwidth, WriteBandwidth: bandwidth,
		ReadLatency: time.Microsecond, WriteLatency: time.Microsecond,
	}
}

// Endurance is how much may be written to a disk before it is worn out, in
// bytes; 0: any amount.
type Endurance float64

// Drive writes per day, as makers class their drives.
const (
	ConsumerDWPD      = 0.3
	ReadIntensiveDWPD = 1.0
	MixedUseDWPD      = 3.0
)

// DWPD is the endurance of a drive that may be written so many times a day for
// so many years.
func DWPD(writes float64, capacity int64, years float64) Endurance {
	return Endurance(writes * float64(capacity) * 365 * years)
}

// Years is how long the disk lasts when bytes are written in each span of time,
// and the drive writes amplification times what it is told to (at least 1).
// Infinity when nothing is written or nothing wears.
func (e Endurance) Years(bytes float64, in time.Duration, amplification float64) float64 {
	if e <= 0 || !(bytes > 0) || in <= 0 {
		return math.Inf(1)
	}
	perYear := bytes / in.Seconds() * max(1, amplification) * 365 * 24 * 3600
	return float64(e) / perYear
}

// Disk says how long I/Os take. Read-only once made.
type Disk struct {
	name        string
	capacity    int64
	endurance   Endurance
	read, write side
}

// side is what reads or writes do: by figures, or by a table of measurements.
type side struct {
	rate, iops, latency float64 // bytes/s, 1/s (+Inf: no limit), seconds
	table               []sizeRow
}

type sizeRow struct {
	logSize float64
	depths  []depthPoint // ascending
}

type depthPoint struct {
	logDepth, logRate, logLatency float64
}

// NewDisk checks a description.
func NewDisk(s DiskSpec) (*Disk, error) {
	errs := []error{
		within("disk: read bandwidth in bytes/s", s.ReadBandwidth, 1, 1e15),
		within("disk: write bandwidth in bytes/s", s.WriteBandwidth, 1, 1e15),
		within("disk: read IOPS", s.ReadIOPS, 0, 1e12),
		within("disk: write IOPS", s.WriteIOPS, 0, 1e12),
		within("disk: capacity in bytes", float64(s.Capacity), 0, 1e18),
		within("disk: endurance in bytes", float64(s.Endurance), 0, 1e24),
	}
	for _, l := range []time.Duration{s.ReadLatency, s.WriteLatency} {
		if l < 0 || l > time.Minute {
			errs = append(errs, fmt.Errorf("disk: latency is %s, want 0s to 1m", l))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	limit := func(iops float64) float64 {
		if iops == 0 {
			return math.Inf(1)
		}
		return iops
	}
	return &Disk{
		name: s.Name, capacity: s.Capacity, endurance: s.Endurance,
		read:  side{rate: s.ReadBandwidth, iops: limit(s.ReadIOPS), latency: s.ReadLatency.Seconds()},
		write: side{rate: s.WriteBandwidth, iops: limit(s.WriteIOPS), latency: s.WriteLatency.Seconds()},
	}, nil
}

// ProfileDisk is a disk as the overflow pool measured it. Without measurements
// of writes they are taken to be like reads.
func ProfileDisk(p device.Profile, capacity int64, e Endurance) (*Disk, error) {
	d := &Disk{name: p.Device, capacity: capacity, endurance: e}
	var err error
	if d.read, err = tableSide(p.Read); err != nil {
		return nil, fmt.Errorf("profile of %s: read: %w", p.Device, err)
	}
	if d.write = d.read; len(p.Write) > 0 {
		if d.write, err = tableSide(p.Write); err != nil {
			return nil, fmt.Errorf("profile of %s: write: %w", p.Device, err)
		}
	}
	return d, nil
}

func tableSide(c device.Curve) (side, error) {
	if len(c) == 0 {
		return side{}, errors.New("no measurements")
	}
	c = slices.Clone(c)
	slices.SortFunc(c, func(a, b device.Point) int {
		if a.Size != b.Size {
			return a.Size - b.Size
		}
		return a.Depth - b.Depth
	})
	var s side
	for i, p := range c {
		if p.Size < 1 || p.Depth < 1 || p.Latency < 1 || !(p.Rate >= 1 && p.Rate <= 1e15) {
			return side{}, fmt.Errorf("measurement %d is size %d, depth %d, %g bytes/s, latency %s: want positive figures", i, p.Size, p.Depth, p.Rate, p.Latency)
		}
		s.rate = max(s.rate, p.Rate)
		if i == 0 || p.Size != c[i-1].Size {
			s.table = append(s.table, sizeRow{logSize: math.Log(float64(p.Size))})
		} else if p.Depth == c[i-1].Depth {
			return side{}, fmt.Errorf("size %d at depth %d comes twice", p.Size, p.Depth)
		}
		row := &s.table[len(s.table)-1]
		row.depths = append(row.depths, depthPoint{math.Log(float64(p.Depth)), math.Log(p.Rate), math.Log(p.Latency.Seconds())})
	}
	return s, nil
}

// Name, Capacity and Endurance are what the disk was made with.
func (d *Disk) Name() string         { return d.name }
func (d *Disk) Capacity() int64      { return d.capacity }
func (d *Disk) Endurance() Endurance { return d.endurance }

// ReadRate and WriteRate are the bandwidth that I/Os of a size reach when depth
// of them are under way, in bytes per second.
func (d *Disk) ReadRate(piece int64, depth int) float64 {
	r, _ := d.read.at(piece, depth)
	return r
}

// WriteRate is the like for writes.
func (d *Disk) WriteRate(piece int64, depth int) float64 {
	r, _ := d.write.at(piece, depth)
	return r
}

// Read is how long it takes to read bytes in I/Os of a size, depth of them under
// way at once, with nobody else on the disk: at least the latency of one I/O.
func (d *Disk) Read(bytes, piece int64, depth int) time.Duration {
	return d.read.time(bytes, piece, depth)
}

// Write is the like for writes.
func (d *Disk) Write(bytes, piece int64, depth int) time.Duration {
	return d.write.time(bytes, piece, depth)
}

func (s *side) time(bytes, piece int64, depth int) time.Duration {
	if bytes <= 0 {
		return 0
	}
	if piece <= 0 || piece > bytes {
		piece = bytes
	}
	n := (bytes-1)/piece + 1
	rate, one := s.at(piece, int(min(int64(max(1, depth)), n)))
	return duration(max(one, float64(bytes)/rate))
}

// at is the bandwidth at a size and depth, and how long one I/O takes alone.
func (s *side) at(piece int64, depth int) (rate, one float64) {
	p, d := float64(max(1, piece)), float64(max(1, depth))
	if s.table == nil {
		one = s.latency + p/s.rate
		return min(s.rate, s.iops*p, d*p/one), one
	}
	size, deep := math.Log(p), math.Log(d)
	i := 0
	for i < len(s.table)-1 && s.table[i+1].logSize <= size {
		i++
	}
	a, b := &s.table[i], &s.table[min(i+1, len(s.table)-1)]
	rateA, _ := a.at(deep)
	rateB, _ := b.at(deep)
	_, oneA := a.at(0)
	_, oneB := b.at(0)
	rate = math.Exp(mix(size, a.logSize, b.logSize, rateA, rateB))
	one = math.Exp(mix(size, a.logSize, b.logSize, oneA, oneB))
	// Above the largest size an I/O is as long as its bytes, below the smallest
	// it is as slow as that one.
	if last := s.table[len(s.table)-1].logSize; size > last {
		one *= math.Exp(size - last)
	}
	if first := s.table[0].logSize; size < first {
		rate *= math.Exp(size - first)
	}
	return rate, one
}

func (r *sizeRow) at(logDepth float64) (logRate, logLatency float64) {
	i := 0
	for i < len(r.depths)-1 && r.depths[i+1].logDepth <= logDepth {
		i++
	}
	a, b := &r.depths[i], &r.depths[min(i+1, len(r.depths)-1)]
	return mix(logDepth, a.logDepth, b.logDepth, a.logRate, b.logRate), mix(logDepth, a.logDepth, b.logDepth, a.logLatency, b.logLatency)
}

// mix interpolates between (a, ya) and (b, yb); outside of them it is the nearer end.
func mix(x, a, b, ya, yb float64) float64 {
	switch {
	case x <= a || a == b:
		return ya
	case x >= b:
		return yb
	}
	return ya + (yb-ya)*(x-a)/(b-a)
}
