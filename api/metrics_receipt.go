package api

import (
	"github.com/prometheus/client_golang/prometheus"
)

// slowCache is how much longer than computing it all a prompt with cached
// tokens may take before it counts as a failure of the cache.
const slowCache = 1.25

// receiptMetrics sum up the receipts of answers.
type receiptMetrics struct {
	source, declined, slower *prometheus.CounterVec
	prefill, ratio           *prometheus.HistogramVec
}

// begin makes a model's series exist from the start.
func (m *receiptMetrics) begin(model string) {
	for _, source := range []string{"computed", "local", "borrowed", "host", "pool"} {
		m.source.WithLabelValues(model, source)
	}
	m.declined.WithLabelValues(model)
	m.slower.WithLabelValues(model)
}

// record takes a choice's receipt, if its model process gave one. One that was
// cancelled before its first token has none: its prompt was not complete.
func (m *receiptMetrics) record(model string, c *choice) {
	f := &c.final
	if f.ID == "" || f.Tokens == 0 {
		return
	}
	r := f.Receipt
	add := func(source string, n int) { m.source.WithLabelValues(model, source).Add(float64(max(n, 0))) }
	add("local", r.Local)
	add("borrowed", r.Borrowed)
	add("host", r.Host)
	add("pool", r.Pool)
	add("computed", len(c.prompt.ids)-c.cached())
	m.declined.WithLabelValues(model).Add(float64(max(r.Declined, 0)))
	m.prefill.WithLabelValues(model).Observe(f.PrefillMS / 1000)
	if r.PredictedMS > 0 {
		m.ratio.WithLabelValues(model).Observe(f.PrefillMS / r.PredictedMS)
	}
	if c.cached() > 0 && r.RecomputeMS > 0 && f.PrefillMS > slowCache*r.RecomputeMS {
		m.slower.WithLabelValues(model).Inc()
	}
}
