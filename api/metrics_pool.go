package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// poolCollector turns what a Status says of the devices of the overflow pool into
// series. The label device only has names of the configuration; one that comes
// twice is left out.
type poolCollector struct {
	values    []peerValue[wire.DiskStatus]
	budget    *prometheus.Desc
	life      *prometheus.Desc
	blocks    *prometheus.Desc
	bytes     *prometheus.Desc
	ios       *prometheus.Desc
	latency   *prometheus.Desc
	bandwidth *prometheus.Desc
}

func newPoolCollector(desc func(name, help string, labels ...string) *prometheus.Desc) *poolCollector {
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	return &poolCollector{
		values: []peerValue[wire.DiskStatus]{
			{desc("kvlend_pool_device_up", "1 while the device is in use; 0 after it failed, or could not be opened.", "device"), gauge, func(d *wire.DiskStatus) float64 { return flag(d.Fenced == "") }},
			{desc("kvlend_pool_device_degraded", "1 while a slower path to the device than intended is in use.", "device"), gauge, func(d *wire.DiskStatus) float64 { return flag(d.Degraded != "") }},
			{desc("kvlend_pool_device_draining", "1 while the device is drained.", "device"), gauge, func(d *wire.DiskStatus) float64 { return flag(d.Draining) }},
			{desc("kvlend_pool_queue_depth", "Reads and writes under way.", "device"), gauge, func(d *wire.DiskStatus) float64 { return float64(d.InFlight) }},
			{desc("kvlend_pool_unflushed_changes", "Changes that would not survive a crash yet.", "device"), gauge, func(d *wire.DiskStatus) float64 { return float64(d.Lag) }},
			{desc("kvlend_pool_errors_total", "Reads and writes that failed.", "device"), counter, func(d *wire.DiskStatus) float64 { return float64(d.Errors) }},
			{desc("kvlend_pool_late_total", "How often a device answered several times later than predicted, so that it was not waited for and left alone for a while.", "device"), counter, func(d *wire.DiskStatus) float64 { return float64(d.Late) }},
			{desc("kvlend_pool_corrupt_blocks_total", "Blocks that were not what had been stored.", "device"), counter, func(d *wire.DiskStatus) float64 { return float64(d.Corrupt) }},
			{desc("kvlend_pool_reused_blocks_total", "Blocks that could not be found again after a crash, since their places had been used again before it.", "device"), counter, func(d *wire.DiskStatus) float64 { return float64(d.Reused) }},
		},
		budget:    desc("kvlend_pool_write_budget_bytes", "What may still be written to a device with a write_budget at the moment.", "device"),
		life:      desc("kvlend_pool_life_days", "How long the device lasts at the rate of writes so far, where rated_writes says what it endures.", "device"),
		blocks:    desc("kvlend_pool_blocks", "Blocks on a device: live ones, which a restart finds, free places, and places that are reserved or not yet recorded.", "device", "state"),
		bytes:     desc("kvlend_pool_bytes_total", "Bytes read and written.", "device", "direction"),
		ios:       desc("kvlend_pool_ios_total", "Reads and writes.", "device", "direction"),
		latency:   desc("kvlend_pool_latency_seconds", "Latency of reads and writes since the start.", "device", "direction", "quantile"),
		bandwidth: desc("kvlend_pool_read_bandwidth_bytes_per_second", "Bandwidth of reads as it was measured, and as it is lately while the device is used.", "device", "source"),
	}
}

func (c *poolCollector) describe(ch chan<- *prometheus.Desc) {
	for _, v := range c.values {
		ch <- v.desc
	}
	for _, d := range []*prometheus.Desc{c.budget, c.life, c.blocks, c.bytes, c.ios, c.latency, c.bandwidth} {
		ch <- d
	}
}

func (c *poolCollector) collect(ch chan<- prometheus.Metric, model string, s *wire.Status) {
	collectPeers(ch, c.values, model, s.Disks, func(d *wire.DiskStatus) string { return d.Name })
	seen := map[string]bool{}
	for i := range s.Disks {
		d := &s.Disks[i]
		if seen[d.Name] || d.Slots == 0 { // one that never opened has no figures
			continue
		}
		seen[d.Name] = true
		c.device(ch, model, d)
	}
}

func (c *poolCollector) device(ch chan<- prometheus.Metric, model string, d *wire.DiskStatus) {
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, kind, v, append([]string{model, d.Name}, labels...)...)
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	if d.Budget > 0 {
		send(c.budget, gauge, float64(d.BudgetLeft))
	}
	if d.LifeDays > 0 {
		send(c.life, gauge, float64(d.LifeDays))
	}
	send(c.blocks, gauge, float64(d.Live), "live")
	send(c.blocks, gauge, float64(d.Free), "free")
	send(c.blocks, gauge, float64(max(0, d.Slots-d.Live-d.Free)), "reserved")
	send(c.bandwidth, gauge, float64(d.Rate), "measured")
	send(c.bandwidth, gauge, float64(d.Read.Rate), "achieved")
	for direction, u := range map[string]wire.DiskUsage{"read": d.Read, "write": d.Write} {
		send(c.bytes, counter, float64(u.Bytes), direction)
		send(c.ios, counter, float64(u.IOs), direction)
		if u.IOs > 0 {
			send(c.latency, gauge, u.P50.Seconds(), direction, "0.5")
			send(c.latency, gauge, u.P99.Seconds(), direction, "0.99")
		}
	}
}
