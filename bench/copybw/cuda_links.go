//go:build cuda && cgo

package copybw

import (
	"errors"
	"strings"
	"time"

	"github.com/kvlend/kvlend/nvlink/cuda"
	"github.com/kvlend/kvlend/nvlink/topology"
)

// ErrNoPair is the reason of Measured where there is one GPU.
var ErrNoPair = errors.New("one GPU: there is no pair of GPUs to measure")

// linkPiece is the size of pieces, in bytes, whose bandwidth stands for a link;
// the next smaller measured one, or else the smallest, where it was not measured.
const linkPiece = 1 << 20

// Measured gives the links between GPUs, named by their UUIDs, as a
// configuration's fabric.measured reads them. Bandwidths are those of one list
// by the fabric's crossover; latencies those of a list, a copy and an event of the
// smallest piece, which is more than until the first byte arrives.
func (r *CUDAReport) Measured(taken time.Time) (*topology.Measured, error) {
	uuids, models := map[string]string{}, []string{}
	for _, d := range r.Info.Devices {
		uuids[d.Name] = d.UUIDText()
		models = append(models, d.Model)
	}
	out := &topology.Measured{Version: topology.MeasuredVersion, Fabric: "cuda", Machine: strings.Join(models, ", "), Taken: taken}
	if r.Info.Fake {
		out.Machine = "EMULATED by the fake driver: " + out.Machine
	}
	for _, p := range r.Paths {
		if p.Kind == cuda.Local || len(p.Rows) == 0 {
			continue
		}
		row := p.Rows[0]
		for _, next := range p.Rows {
			if next.PieceBytes <= linkPiece {
				row = next
			}
		}
		first := p.Rows[0] // bytes by GB/s are nanoseconds
		out.Links = append(out.Links, topology.MeasuredLink{
			From: uuids[p.From], To: uuids[p.To], PieceBytes: row.PieceBytes,
			BytesPerSec: row.Results[Auto].GBPerSec * 1e9,
			Latency:     time.Duration(float64(first.PieceBytes) / first.Results[Synced].GBPerSec),
		})
	}
	if len(out.Links) == 0 {
		return nil, ErrNoPair
	}
	return out, nil
}
