package report

import (
	"maps"
	"slices"
	"time"

	"github.com/kvlend/kvlend/planner/sim"
)

// system turns a simulation's result into the account of it.
func system(name, config string, r *sim.Result) System {
	s := System{Name: name, Config: config, Seconds: r.End.Seconds(), Lent: seriesOf(r.Lent)}
	for _, a := range r.Answers {
		s.Loads = append(s.Loads, loadOf(a))
	}
	c := r.Control
	s.Control = Control{
		Messages: c.Messages, PerSecond: part(float64(c.Messages), s.Seconds), Bytes: c.Bytes,
		Granted: c.Granted, Denied: c.Denied, Reclaims: c.Reclaims, Reclaimed: c.Asked, Fenced: c.Fenced,
	}
	busy := map[string]float64{}
	for _, m := range r.Models {
		if _, ok := busy[m.Device]; !ok {
			s.Devices = append(s.Devices, Device{Name: m.Device})
		}
		busy[m.Device] += m.Worked.Seconds()
		s.Models = append(s.Models, Model{
			Name: m.Name, Role: m.Role, Device: m.Device, Steps: m.Steps, Busy: m.Worked.Seconds(), Slowed: m.Slowed.Seconds(),
			Loaded: m.Loaded, Stored: m.Stored, Moved: moved(m.Moved), Evicted: m.Evicted,
		})
	}
	for i := range s.Devices {
		s.Devices[i].Busy = part(busy[s.Devices[i].Name], s.Seconds)
	}
	for _, l := range r.Links {
		s.Links = append(s.Links, Link{
			From: l.From, To: l.To, Bytes: l.Bytes,
			Busy: part(l.Busy.Seconds(), s.Seconds), Rate: part(float64(l.Bytes), l.Busy.Seconds()),
		})
	}
	for _, d := range r.Disks {
		s.Disks = append(s.Disks, Disk(d))
	}
	return s
}

// part is a / b, and 0 of nothing.
func part(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

func moved(m sim.Moves) map[string]uint64 {
	out := map[string]uint64{"rc": m.RC, "borrowed": m.Borrowed, "host": m.Host, "pool": m.Pool, "dropped": m.Dropped}
	maps.DeleteFunc(out, func(_ string, n uint64) bool { return n == 0 })
	if len(out) == 0 {
		return nil
	}
	return out
}

func loadOf(a *sim.Answers) Load {
	l := Load{
		Model: a.Model, Answered: a.Answered, Unsent: a.Unsent, PromptTokens: a.Prompt, OutputTokens: a.Output,
		Preemptions: a.Preempts, End: a.End.Seconds(), Slower: a.Worse, Waiting: seriesOf(a.Waiting),
		First: distOf(&a.First), Later: distOf(&a.Later), TTFT: distOf(&a.All), Token: distOf(&a.Token), Whole: distOf(&a.Whole), Queue: distOf(&a.Queue),
	}
	for _, code := range slices.Sorted(maps.Keys(a.Refused)) {
		l.Refused = append(l.Refused, Refusal{code, a.Refused[code], a.Reasons[code]})
	}
	all, t := float64(a.Prompt), a.Tiers
	l.Tiers = Tiers{
		Computed: part(float64(t.Computed), all), Local: part(float64(t.Local), all), Borrowed: part(float64(t.Borrowed), all),
		Host: part(float64(t.Host), all), Pool: part(float64(t.Pool), all), Declined: part(float64(t.Declined), all),
	}
	return l
}

// refused is how many requests were not answered.
func (l *Load) refused() int {
	n := 0
	for _, r := range l.Refused {
		n += r.Count
	}
	return n
}

// cdfShares are those of a distribution function's points.
func cdfShares() []float64 {
	var out []float64
	for i := range 100 {
		out = append(out, float64(i)/100)
	}
	return append(out, 0.995, 0.999, 1)
}

func distOf(d *sim.Distribution) Dist {
	out := Dist{Count: d.Count(), Mean: d.Mean(), P50: d.Quantile(0.5), P90: d.Quantile(0.9), P99: d.Quantile(0.99), Max: d.Max()}
	if out.Count == 0 {
		return out
	}
	for _, q := range cdfShares() {
		v := d.Quantile(q)
		// Of points with one value the last says all.
		if n := len(out.CDF); n > 0 && out.CDF[n-1][0] == v {
			out.CDF[n-1][1] = q
			continue
		}
		out.CDF = append(out.CDF, [2]float64{v, q})
	}
	return out
}

func seriesOf(s sim.Series) Series {
	out := Series{Slice: s.Slice.Seconds(), Values: s.Values, Mean: s.Mean, Most: s.Most}
	if out.Values == nil {
		out.Values = []float64{}
	}
	return out
}

// between is the mean of a series from one time to another.
func (s *Series) between(from, to time.Duration) float64 {
	a, b := int(from.Seconds()/s.Slice), int(to.Seconds()/s.Slice)
	b = min(max(b, a+1), len(s.Values))
	if a >= b {
		return 0
	}
	sum := 0.0
	for _, v := range s.Values[a:b] {
		sum += v
	}
	return sum / float64(b-a)
}
