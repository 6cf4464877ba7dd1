package perf

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// curvesGZ are medians of NCCL send/recv between two GPUs of a DGX A100 and of
// a DGX H100, in one server (intra) and between two (inter).
//
//go:embed curves.csv.gz
var curvesGZ []byte

// The curves that NVLink scales.
const (
	curveA100 = "a100_dgx/intra"
	curveH100 = "h100_dgx/intra"
)

// Curve is how long one call takes by its size.
type Curve struct {
	Name  string // such as "h100_dgx/intra"
	Sizes []int64
	Times []time.Duration // of each size
}

// Curves lists the measured curves, by name.
func Curves() []Curve {
	z, err := gzip.NewReader(bytes.NewReader(curvesGZ))
	if err != nil {
		panic("BUG: curves.csv.gz: " + err.Error())
	}
	out, err := ParseCurves(z)
	if err != nil {
		panic("BUG: curves.csv.gz: " + err.Error())
	}
	return out
}

var curveColumns = []string{"file", "locality", "size_bytes", "median_ms", "p_min_ms", "GBps"}

// ParseCurves reads curves as comma-separated values with a header: machine,
// locality, bytes, median and least milliseconds, GB/s. Only the first four
// columns are used. Rows may be in any order, but no size comes twice in a curve.
func ParseCurves(r io.Reader) ([]Curve, error) {
	in := csv.NewReader(r)
	in.FieldsPerRecord = len(curveColumns)
	head, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("curves: header: %w", err)
	}
	if !slices.Equal(head, curveColumns) {
		return nil, fmt.Errorf("curves: header is %q, want %q", strings.Join(head, ","), strings.Join(curveColumns, ","))
	}
	type row struct {
		size int64
		t    time.Duration
	}
	rows := map[string][]row{}
	for {
		rec, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("curves: %w", err)
		}
		line, _ := in.FieldPos(0)
		size, err := strconv.ParseInt(rec[2], 10, 64)
		if err != nil || size < 1 {
			return nil, fmt.Errorf("curves: line %d: size_bytes is %q, want a whole number above 0", line, rec[2])
		}
		ms, err := strconv.ParseFloat(rec[3], 64)
		if err != nil || !(ms >= 1e-6 && ms <= 3.6e6) {
			return nil, fmt.Errorf("curves: line %d: median_ms is %q, want 1e-6 to 3.6e6", line, rec[3])
		}
		name := rec[0] + "/" + rec[1]
		rows[name] = append(rows[name], row{size, time.Duration(ms * 1e6)})
	}
	var out []Curve
	for name, list := range rows {
		slices.SortFunc(list, func(a, b row) int { return int(min(1, max(-1, a.size-b.size))) })
		c := Curve{Name: name}
		for i, r := range list {
			if i > 0 && r.size == list[i-1].size {
				return nil, fmt.Errorf("curves: %s has %d bytes twice", name, r.size)
			}
			c.Sizes, c.Times = append(c.Sizes, r.size), append(c.Times, r.t)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("curves: no rows")
	}
	slices.SortFunc(out, func(a, b Curve) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Link makes a link of the curve. A larger call never takes less: where
// measurements say so, neighbours are averaged (isotonic regression). Between
// sizes it interpolates on logarithmic scales; beyond the largest it goes on
// with the bandwidth reached there.
func (c Curve) Link() (*Link, error) {
	if len(c.Sizes) < 2 || len(c.Sizes) != len(c.Times) {
		return nil, fmt.Errorf("curve %s: %d sizes and %d times, want two or more of each", c.Name, len(c.Sizes), len(c.Times))
	}
	for i := range c.Sizes {
		if c.Sizes[i] < 1 || c.Times[i] < 1 || i > 0 && c.Sizes[i] <= c.Sizes[i-1] {
			return nil, fmt.Errorf("curve %s: point %d is %s for %d bytes, want positive figures and ascending sizes", c.Name, i, c.Times[i], c.Sizes[i])
		}
	}
	l := &Link{curve: isotonic(c)}
	first, last := l.curve[0], l.curve[len(l.curve)-1]
	l.latency = time.Duration(first.seconds * 1e9)
	l.rate = float64(last.size) / last.seconds
	return l, nil
}

// isotonic pools adjacent violators until times do not fall.
func isotonic(c Curve) []point {
	type pool struct {
		sum float64
		n   int
	}
	mean := func(p pool) float64 { return p.sum / float64(p.n) }
	var pools []pool
	for _, t := range c.Times {
		pools = append(pools, pool{t.Seconds(), 1})
		for n := len(pools); n > 1 && mean(pools[n-2]) >= mean(pools[n-1]); n = len(pools) {
			pools[n-2].sum += pools[n-1].sum
			pools[n-2].n += pools[n-1].n
			pools = pools[:n-1]
		}
	}
	var out []point
	for _, p := range pools {
		for range p.n {
			out = append(out, newPoint(c.Sizes[len(out)], mean(p)))
		}
	}
	return out
}
