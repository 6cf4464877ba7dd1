package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/kvlend/kvlend/overflow/device"
)

// PassthroughOptions say what Passthrough measures. Zero fields have the
// defaults named.
type PassthroughOptions struct {
	NVMe, Block string // /dev/ngXnY and /dev/nvmeXnY of one namespace
	// Span is how many bytes are read at random; 128 MiB. They must have been
	// written before.
	Span     int64
	Sizes    []int64 // 4 KiB to 256 KiB
	Depths   []int   // 1, 16, 64
	Rounds   int     // 5
	Each     time.Duration
	Progress func(string)
}

func (o PassthroughOptions) withDefaults() (PassthroughOptions, error) {
	if o.NVMe == "" || o.Block == "" {
		return o, fmt.Errorf("the namespace is %q and its block device %q; want both", o.NVMe, o.Block)
	}
	if o.Span == 0 {
		o.Span = 128 << 20
	}
	if len(o.Sizes) == 0 {
		o.Sizes = []int64{4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10}
	}
	if len(o.Depths) == 0 {
		o.Depths = []int{1, 16, 64}
	}
	if o.Each == 0 {
		o.Each = 500 * time.Millisecond
	}
	// The rest is as for Read.
	r, err := ReadOptions{Path: o.Block, Span: o.Span, Sizes: o.Sizes, Depths: o.Depths, Rounds: o.Rounds, Each: o.Each, Progress: o.Progress}.withDefaults()
	o.Rounds, o.Progress = r.Rounds, r.Progress
	return o, err
}

// PassthroughResult is what Passthrough measured.
type PassthroughResult struct {
	Machine  Machine           `json:"machine"`
	NVMe     string            `json:"nvme"`
	Block    string            `json:"block"`
	Degraded string            `json:"degraded,omitempty"`
	Rounds   int               `json:"rounds"`
	Each     float64           `json:"seconds_each"`
	Cells    []PassthroughCell `json:"cells"`
}

// PassthroughCell is one size and depth: medians over the rounds.
type PassthroughCell struct {
	Size     int64   `json:"size_bytes"`
	Depth    int     `json:"depth"`
	NVMe     float64 `json:"nvme_bytes_per_second"`
	Block    float64 `json:"block_bytes_per_second"`
	Ratio    float64 `json:"ratio"` // passthrough over the block device
	Low      float64 `json:"ratio_quartile_1"`
	High     float64 `json:"ratio_quartile_3"`
	CPURatio float64 `json:"cpu_ratio"` // of CPU time per byte
}

// Passthrough compares reads of an NVMe namespace by commands of our own with
// O_DIRECT reads of its block device.
func Passthrough(ctx context.Context, opt PassthroughOptions) (res *PassthroughResult, err error) {
	opt, err = opt.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("bench disk passthrough: %w", err)
	}
	s, err := openSet([]Spec{{Path: opt.Block}}, false, slices.Max(opt.Sizes)*int64(slices.Max(opt.Depths)), 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	// Without its block device nothing can take over unseen.
	d, err := device.OpenNVMe(ctx, s.eng, device.NVMeOptions{Path: opt.NVMe, ReadOnly: true, Depth: openDepth})
	if err != nil {
		return nil, err
	}
	s.devs = append(s.devs, d)
	for _, d := range s.devs {
		if n := d.Info().Size; n < opt.Span {
			return nil, fmt.Errorf("%s has %d bytes, want a span of %d", d.Info().Path, n, opt.Span)
		}
	}
	res = &PassthroughResult{Machine: machine(), NVMe: opt.NVMe, Block: opt.Block, Degraded: s.degraded(), Rounds: opt.Rounds, Each: opt.Each.Seconds()}
	for _, n := range opt.Sizes {
		for _, depth := range opt.Depths {
			c, err := passthroughCell(ctx, s, opt, n, depth)
			if err != nil {
				return nil, fmt.Errorf("reads of %s, %d in flight: %w", size(n), depth, err)
			}
			res.Cells = append(res.Cells, c)
		}
	}
	return res, nil
}

func passthroughCell(ctx context.Context, s *set, opt PassthroughOptions, block int64, depth int) (PassthroughCell, error) {
	var got [2][]sample // by device: the block device, the namespace
	for round := range opt.Rounds {
		opt.Progress(fmt.Sprintf("%s, %d in flight: round %d of %d", size(block), depth, round+1, opt.Rounds))
		for i := range 2 {
			dev := (i + round) % 2
			m, err := s.measure(ctx, dev, load{span: opt.Span, block: block, depth: depth}, opt.Each, uint64(round))
			if err != nil {
				return PassthroughCell{}, err
			}
			got[dev] = append(got[dev], m)
		}
	}
	var c ReadCell
	c.summarise(got[1], got[0])
	return PassthroughCell{Size: block, Depth: depth, NVMe: c.BytesPerSec, Block: c.FioBytesPerSec, Ratio: c.Ratio,
		Low: c.Low, High: c.High, CPURatio: c.CPURatio}, nil
}

// WriteJSON writes the result as indented JSON.
func (r *PassthroughResult) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// WriteTable writes the result for a terminal.
func (r *PassthroughResult) WriteTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "Random reads by NVMe passthrough against O_DIRECT on the block device.\n%s. Medians of %d rounds of %.1f s each, interleaved.%s\n",
		r.Machine, r.Rounds, r.Each, warn(r.Degraded)); err != nil {
		return err
	}
	t := newTable(table.Row{"read", "in flight", "passthrough MB/s", "O_DIRECT MB/s", "ratio", "quartiles", "CPU time per byte, ratio"})
	var last int64
	for _, c := range r.Cells {
		if last != 0 && c.Size != last {
			t.AppendSeparator()
		}
		last = c.Size
		t.AppendRow(table.Row{size(c.Size), c.Depth, mb(c.NVMe), mb(c.Block), ratio(c.Ratio), fmt.Sprintf("%.2f-%.2f", c.Low, c.High), orNone(c.CPURatio, ratio)})
	}
	_, err := fmt.Fprintln(w, t.Render())
	return err
}
