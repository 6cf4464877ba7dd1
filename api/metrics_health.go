package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// healthCollector turns what a Status says of links and lending into series.
// The label peer only ever has names that the processes know from the
// configuration; one that comes twice is left out, since it would spoil the
// whole scrape.
type healthCollector struct {
	links   []peerValue[wire.LinkStatus]
	lending []peerValue[wire.LendingStatus]
	times   []peerTimes
	moved   *prometheus.Desc
}

type peerValue[T any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(*T) float64
}

type peerTimes struct {
	desc *prometheus.Desc
	get  func(*wire.LendingStatus) *wire.Latency
}

func newHealthCollector(desc func(name, help string, labels ...string) *prometheus.Desc) *healthCollector {
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	return &healthCollector{
		moved: desc("kvlend_evacuated_blocks_total", "Blocks moved out of the way, by destination; dropped ones are computed again.", "destination"),
		links: []peerValue[wire.LinkStatus]{
			{desc("kvlend_link_up", "1 while the link to a peer is connected.", "peer"), gauge, func(l *wire.LinkStatus) float64 { return flag(l.Up) }},
			{desc("kvlend_link_refused", "1 while the peer refuses the link, or is refused.", "peer"), gauge, func(l *wire.LinkStatus) float64 { return flag(l.Refused) }},
			{desc("kvlend_link_queued_messages", "Messages that the peer has not acknowledged.", "peer"), gauge, func(l *wire.LinkStatus) float64 { return float64(l.Queued) }},
			{desc("kvlend_link_messages_sent_total", "Messages, once each.", "peer"), counter, func(l *wire.LinkStatus) float64 { return float64(l.Sent) }},
			{desc("kvlend_link_messages_resent_total", "Messages sent again.", "peer"), counter, func(l *wire.LinkStatus) float64 { return float64(l.Resent) }},
			{desc("kvlend_link_messages_dropped_total", "Messages lost with a process of the peer.", "peer"), counter, func(l *wire.LinkStatus) float64 { return float64(l.Dropped) }},
			{desc("kvlend_link_connects_total", "Times that the link was connected.", "peer"), counter, func(l *wire.LinkStatus) float64 { return float64(l.Connects) }},
			{desc("kvlend_link_peer_resets_total", "Times that the peer was another process than before.", "peer"), counter, func(l *wire.LinkStatus) float64 { return float64(l.Resets) }},
		},
		lending: []peerValue[wire.LendingStatus]{
			{desc("kvlend_units_granted_total", "Units lent (workers) or borrowed (masters).", "peer"), counter, func(l *wire.LendingStatus) float64 { return float64(l.Granted) }},
			{desc("kvlend_units_returned_total", "Units given back.", "peer"), counter, func(l *wire.LendingStatus) float64 { return float64(l.Returned) }},
			{desc("kvlend_borrows_denied_total", "Requests for units that were denied.", "peer"), counter, func(l *wire.LendingStatus) float64 { return float64(l.Denied) }},
			{desc("kvlend_units_reclaimed_total", "Units asked back.", "peer"), counter, func(l *wire.LendingStatus) float64 { return float64(l.Reclaimed) }},
			{desc("kvlend_units_fenced_total", "Units taken without consent.", "peer"), counter, func(l *wire.LendingStatus) float64 { return float64(l.Fenced) }},
			{desc("kvlend_fences_confirmed_total", "Fenced units that came home.", "peer"), counter, func(l *wire.LendingStatus) float64 { return float64(l.Confirmed) }},
		},
		times: []peerTimes{
			{desc("kvlend_grant_seconds", "From asking for units to having them (masters).", "peer"), func(l *wire.LendingStatus) *wire.Latency { return &l.GrantTime }},
			{desc("kvlend_reclaim_seconds", "From asking units back to the last one's return (workers).", "peer"), func(l *wire.LendingStatus) *wire.Latency { return &l.ReclaimTime }},
			{desc("kvlend_fence_seconds", "From taking a unit to the proof that its borrower writes no more (workers).", "peer"), func(l *wire.LendingStatus) *wire.Latency { return &l.FenceTime }},
		},
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (c *healthCollector) describe(ch chan<- *prometheus.Desc) {
	ch <- c.moved
	for _, v := range c.links {
		ch <- v.desc
	}
	for _, v := range c.lending {
		ch <- v.desc
	}
	for _, v := range c.times {
		ch <- v.desc
	}
}

func (c *healthCollector) collect(ch chan<- prometheus.Metric, model string, s *wire.Status) {
	collectPeers(ch, c.links, model, s.Links, func(l *wire.LinkStatus) string { return l.Peer })
	collectPeers(ch, c.lending, model, s.Lending, func(l *wire.LendingStatus) string { return l.Peer })
	seen := map[string]bool{}
	for i := range s.Lending {
		l := &s.Lending[i]
		if seen[l.Peer] {
			continue
		}
		seen[l.Peer] = true
		for _, t := range c.times {
			if h := t.get(l); len(h.Counts) > 0 {
				ch <- histogram(t.desc, h, model, l.Peer)
			}
		}
	}
	seen = map[string]bool{}
	for _, m := range s.Moved {
		if !seen[m.Name] {
			seen[m.Name] = true
			ch <- prometheus.MustNewConstMetric(c.moved, prometheus.CounterValue, float64(m.N), model, m.Name)
		}
	}
}

func collectPeers[T any](ch chan<- prometheus.Metric, values []peerValue[T], model string, rows []T, peer func(*T) string) {
	seen := map[string]bool{}
	for i := range rows {
		name := peer(&rows[i])
		if seen[name] {
			continue
		}
		seen[name] = true
		for _, v := range values {
			ch <- prometheus.MustNewConstMetric(v.desc, v.kind, v.get(&rows[i]), model, name)
		}
	}
}

// histogram turns a Latency, which counts by bucket, into Prometheus' form,
// which counts up to each bound.
func histogram(d *prometheus.Desc, h *wire.Latency, labels ...string) prometheus.Metric {
	buckets := map[float64]uint64{}
	total := uint64(0)
	bounds := wire.LatencyBounds()
	for i, n := range h.Counts {
		total += n
		if i < len(bounds) {
			buckets[bounds[i]] = total
		}
	}
	return prometheus.MustNewConstHistogram(d, total, h.Sum, buckets, labels...)
}
