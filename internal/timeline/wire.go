package timeline

import (
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// ToWire makes the message that answers ask id.
func ToWire(id uint64, rec Recording) *wire.Trace {
	out := &wire.Trace{ID: id, Start: rec.From.UnixNano(), Length: rec.To.Sub(rec.From), Lost: rec.Lost}
	index := map[string]uint32{}
	name := func(s string) uint32 {
		i, ok := index[s]
		if !ok {
			i = uint32(len(out.Names))
			index[s] = i
			out.Names = append(out.Names, wire.Clip(s, wire.MaxName))
		}
		return i
	}
	for i := range rec.Spans {
		s := &rec.Spans[i]
		if len(out.Spans) == wire.MaxTraceSpans || len(out.Names)+3 > wire.MaxTraceNames {
			out.Lost += uint64(len(rec.Spans) - i)
			break
		}
		out.Spans = append(out.Spans, wire.TraceSpan{
			Track: name(s.Track), Name: name(s.Name), Category: name(s.Category), Layer: int32(s.Layer), ID: s.ID,
			Start: int64(s.Start.Sub(rec.From)), Length: max(0, s.End.Sub(s.Start)), Bytes: s.Bytes,
		})
	}
	return out
}

// FromWire is the recording that m carries. m is valid.
func FromWire(m *wire.Trace) Recording {
	from := time.Unix(0, m.Start)
	out := Recording{From: from, To: from.Add(m.Length), Lost: m.Lost}
	for i := range m.Spans {
		s := &m.Spans[i]
		start := from.Add(time.Duration(s.Start))
		out.Spans = append(out.Spans, Span{
			Track: m.Names[s.Track], Name: m.Names[s.Name], Category: m.Names[s.Category],
			Layer: int(s.Layer), ID: s.ID, Start: start, End: start.Add(s.Length), Bytes: s.Bytes,
		})
	}
	return out
}
