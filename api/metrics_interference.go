package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// interferenceCollector turns what lending costs workers into series. What is
// not known has none.
type interferenceCollector struct {
	time, ratio *prometheus.Desc
}

func newInterferenceCollector(desc func(name, help string, labels ...string) *prometheus.Desc) *interferenceCollector {
	return &interferenceCollector{
		time:  desc("kvlend_step_seconds", "A worker's recent steps, median: per token of a prompt (prefill) or per step (decode, the time per token), while units are lent and while none are.", "phase", "lending"),
		ratio: desc("kvlend_lending_slowdown_ratio", "Time of a worker's steps while units are lent over that while none are, at equal work.", "phase"),
	}
}

func (c *interferenceCollector) describe(ch chan<- *prometheus.Desc) {
	ch <- c.time
	ch <- c.ratio
}

func (c *interferenceCollector) collect(ch chan<- prometheus.Metric, model string, s *wire.Status) {
	for _, phase := range []struct {
		name  string
		times *wire.StepTimes
	}{{"prefill", &s.Interference.Prefill}, {"decode", &s.Interference.Decode}} {
		t := phase.times
		if t.WithSteps > 0 {
			ch <- prometheus.MustNewConstMetric(c.time, prometheus.GaugeValue, t.WithMS/1e3, model, phase.name, "true")
		}
		if t.WithoutSteps > 0 {
			ch <- prometheus.MustNewConstMetric(c.time, prometheus.GaugeValue, t.WithoutMS/1e3, model, phase.name, "false")
		}
		if t.Ratio > 0 {
			ch <- prometheus.MustNewConstMetric(c.ratio, prometheus.GaugeValue, t.Ratio, model, phase.name)
		}
	}
}
