package api

import (
	"context"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// statusTimeout bounds what a model process that hangs can cost a scrape.
const statusTimeout = time.Second

// metrics holds the gateway's own series in a registry of its own. Figures of
// the model processes are asked for at each scrape. The label model_name only
// ever has names of configured models.
type metrics struct {
	registry   *prometheus.Registry
	requests   *prometheus.CounterVec // by outcome
	prompt     *prometheus.CounterVec
	cached     *prometheus.CounterVec
	generated  *prometheus.CounterVec
	firstToken *prometheus.HistogramVec
	perToken   *prometheus.HistogramVec
	whole      *prometheus.HistogramVec
	receipts   *receiptMetrics
}

func newMetrics(models []*Model, restarts int) *metrics {
	label := []string{"model_name"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append(label[:1:1], labels...))
	}
	histogram := func(name, help string, low, factor float64, n int) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(low, factor, n)}, label)
	}
	m := &metrics{
		registry:   prometheus.NewRegistry(),
		requests:   counter("kvlend_requests_total", "Requests by outcome.", "outcome"),
		prompt:     counter("kvlend_prompt_tokens_total", "Prompt tokens of answered requests."),
		cached:     counter("kvlend_cached_prompt_tokens_total", "Prompt tokens of answered requests that came from the cache."),
		generated:  counter("kvlend_generation_tokens_total", "Tokens of answers."),
		firstToken: histogram("kvlend_time_to_first_token_seconds", "From a request's arrival to its first token.", 0.001, 2, 18),
		perToken:   histogram("kvlend_time_per_output_token_seconds", "Mean time between the tokens of an answer.", 0.0005, 2, 14),
		whole:      histogram("kvlend_request_duration_seconds", "From a request's arrival to its last token.", 0.005, 2, 18),
		receipts: &receiptMetrics{
			source:   counter("kvlend_prompt_tokens_by_source_total", "Prompt tokens by where their KV came from, once for each answer.", "source"),
			declined: counter("kvlend_declined_prompt_tokens_total", "Prompt tokens that were cached and computed all the same, because that was expected to be faster."),
			prefill:  histogram("kvlend_prefill_seconds", "From a request's admission to its first token.", 0.001, 2, 18),
			ratio:    histogram("kvlend_prefill_prediction_ratio", "Time that a prompt took over the time that was predicted.", 0.125, math.Sqrt2, 13),
			slower:   counter("kvlend_cache_slower_total", "Answers whose prompt took over 1.25 times as long with the cache as was expected without it."),
		},
	}
	again := prometheus.NewCounter(prometheus.CounterOpts{Name: "kvlend_gateway_restarts_total",
		Help: "Times that the gateway's process was started again."})
	again.Add(float64(restarts))
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})) // the gateway's own
	m.registry.MustRegister(m.receipts.source, m.receipts.declined, m.receipts.prefill, m.receipts.ratio, m.receipts.slower)
	m.registry.MustRegister(again, m.requests, m.prompt, m.cached, m.generated, m.firstToken, m.perToken, m.whole, newStatusCollector(models))
	for _, model := range models {
		// Series exist from the start, so that rates do not begin with a gap.
		for _, outcome := range []string{"ok", "rejected", "error", "cancelled"} {
			m.requests.WithLabelValues(model.Name, outcome)
		}
		m.receipts.begin(model.Name)
	}
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// answered records a choice's times.
func (m *metrics) answered(c *choice) {
	name := c.m.Name
	if !c.first.IsZero() {
		m.firstToken.WithLabelValues(name).Observe(c.first.Sub(c.created).Seconds())
		m.whole.WithLabelValues(name).Observe(c.last.Sub(c.created).Seconds())
	}
	if c.counted > 1 {
		m.perToken.WithLabelValues(name).Observe(c.last.Sub(c.first).Seconds() / float64(c.counted-1))
	}
}

// finished records a request that reached its model.
func (m *metrics) finished(j *job, e *apiError) {
	name := j.m.Name
	outcome := "ok"
	switch {
	case e == nil:
		u := j.usage()
		m.prompt.WithLabelValues(name).Add(float64(u.PromptTokens))
		m.cached.WithLabelValues(name).Add(float64(u.PromptTokensDetails.CachedTokens))
		m.generated.WithLabelValues(name).Add(float64(u.CompletionTokens))
	case e.outcome != "":
		outcome = e.outcome
	case e.code == "overloaded":
		outcome = "overloaded"
	case e.status < 500:
		outcome = "rejected"
	default:
		outcome = "error"
	}
	m.requests.WithLabelValues(name, outcome).Inc()
	for _, c := range j.choices {
		m.receipts.record(name, c)
	}
}

// rejected records a request that was refused before it reached its model.
func (m *metrics) rejected(model *Model) {
	m.requests.WithLabelValues(model.Name, "rejected").Inc()
}

// statusCollector turns the model processes' Status into series.
type statusCollector struct {
	models []*Model
	up     *prometheus.Desc
	values []statusValue
	blocks *prometheus.Desc
	units  *prometheus.Desc
	health *healthCollector
	costs  *interferenceCollector
	pool   *poolCollector
}

type statusValue struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(*wire.Status) float64
}

func newStatusCollector(models []*Model) *statusCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"model_name"}, labels...), nil)
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	return &statusCollector{
		models: models,
		health: newHealthCollector(desc),
		costs:  newInterferenceCollector(desc),
		pool:   newPoolCollector(desc),
		up:     desc("kvlend_model_up", "1 while the model's process answers."),
		blocks: desc("kvlend_kv_blocks", "Full blocks by place (local, borrowed, host, pool) and state (used by requests, kept for later ones, free).", "place", "state"),
		units:  desc("kvlend_units", "Elastic units by peer and state.", "peer", "state"),
		values: []statusValue{
			{desc("kvlend_requests_running", "Requests being computed."), gauge, func(s *wire.Status) float64 { return float64(s.Running) }},
			{desc("kvlend_requests_waiting", "Requests waiting."), gauge, func(s *wire.Status) float64 { return float64(s.Waiting) }},
			{desc("kvlend_kv_cache_usage_ratio", "Share of KV blocks that requests use, borrowed ones included."), gauge, usageRatio},
			{desc("kvlend_max_model_len", "Longest sequence that can be served, in tokens."), gauge, func(s *wire.Status) float64 { return float64(s.Model.MaxTokens) }},
			{desc("kvlend_usable_model_len", "Longest sequence that can be served at present, in tokens: less while devices of the overflow pool are out of use."), gauge, func(s *wire.Status) float64 { return float64(s.Model.UsableTokens) }},
			{desc("kvlend_preemptions_total", "Requests that were computed again."), counter, func(s *wire.Status) float64 { return float64(s.Preempted) }},
			{desc("kvlend_steps_sat_out_total", "Steps that sequences sat out because their KV is streamed."), counter, func(s *wire.Status) float64 { return float64(s.SatOut) }},
			{desc("kvlend_rather_waited_total", "Times that a request stayed in the queue because streaming its KV would have cost more than waiting."), counter, func(s *wire.Status) float64 { return float64(s.RatherWaited) }},
			{desc("kvlend_borrowed_loaded_bytes_total", "Bytes loaded from borrowed memory."), counter, func(s *wire.Status) float64 { return float64(s.Loaded) }},
			{desc("kvlend_borrowed_stored_bytes_total", "Bytes stored to borrowed memory."), counter, func(s *wire.Status) float64 { return float64(s.Stored) }},
			{desc("kvlend_stale_blocks_total", "Borrowed blocks whose epoch had passed when they were to be loaded (epoch misses)."), counter, func(s *wire.Status) float64 { return float64(s.Stale) }},
			{desc("kvlend_evicted_sequences_total", "Sequences that lost their place and are computed again."), counter, func(s *wire.Status) float64 { return float64(s.Evicted) }},
			{desc("kvlend_checksum_failures_total", "Borrowed blocks that did not match their checksum."), counter, func(s *wire.Status) float64 { return float64(s.Corrupt) }},
			{desc("kvlend_restarts_total", "Times that the model's process was started again."), counter, func(s *wire.Status) float64 { return float64(s.Restarts) }},
			{desc("kvlend_draining", "1 while the model is drained."), gauge, func(s *wire.Status) float64 { return flag(s.Draining) }},
			{desc("kvlend_audit_records_lost_total", "Audit records that could not be kept."), counter, func(s *wire.Status) float64 { return float64(s.AuditLost) }},
			{desc("kvlend_lending_backoffs_total", "Times that a worker lent no more for a while because lending slowed it down."), counter, func(s *wire.Status) float64 { return float64(s.Interference.Backoffs) }},
			{desc("kvlend_lending_backing_off", "1 while nothing is lent for that reason."), gauge, func(s *wire.Status) float64 { return flag(s.Interference.BackingOff) }},
			{desc("kvlend_link_budget_bytes_per_second", "The most that a master moves to and from one lender's arena; 0: no limit."), gauge, func(s *wire.Status) float64 { return float64(s.LinkBudget) }},
			{desc("kvlend_degraded", "Degraded paths in use; the status names them."), gauge, func(s *wire.Status) float64 { return float64(len(s.Degraded)) }},
		},
	}
}

func usageRatio(s *wire.Status) float64 {
	b := s.Blocks
	used := b.LocalUsed + b.BorrowedUsed
	all := used + b.LocalFree + b.BorrowedFree + b.LocalKept + b.BorrowedKept
	if all == 0 {
		return 0
	}
	return float64(used) / float64(all)
}

// Describe implements prometheus.Collector.
func (c *statusCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.up
	ch <- c.blocks
	ch <- c.units
	c.health.describe(ch)
	c.costs.describe(ch)
	c.pool.describe(ch)
	for _, v := range c.values {
		ch <- v.desc
	}
}

// Collect implements prometheus.Collector.
func (c *statusCollector) Collect(ch chan<- prometheus.Metric) {
	for i, s := range askAll(context.Background(), c.models) {
		name := c.models[i].Name
		if s == nil {
			ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, 0, name)
			continue
		}
		ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, 1, name)
		for _, v := range c.values {
			ch <- prometheus.MustNewConstMetric(v.desc, v.kind, v.get(s), name)
		}
		c.collectBlocks(ch, name, s)
		c.health.collect(ch, name, s)
		c.costs.collect(ch, name, s)
		c.pool.collect(ch, name, s)
	}
}

func (c *statusCollector) collectBlocks(ch chan<- prometheus.Metric, name string, s *wire.Status) {
	send := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), append([]string{name}, labels...)...)
	}
	send(c.blocks, s.Blocks.LocalUsed, "local", "used")
	send(c.blocks, s.Blocks.LocalKept, "local", "kept")
	send(c.blocks, s.Blocks.LocalFree, "local", "free")
	send(c.blocks, s.Blocks.BorrowedUsed, "borrowed", "used")
	send(c.blocks, s.Blocks.BorrowedKept, "borrowed", "kept")
	send(c.blocks, s.Blocks.BorrowedFree, "borrowed", "free")
	if s.Blocks.HostUsed+s.Blocks.HostKept+s.Blocks.HostFree > 0 {
		send(c.blocks, s.Blocks.HostUsed, "host", "used")
		send(c.blocks, s.Blocks.HostKept, "host", "kept")
		send(c.blocks, s.Blocks.HostFree, "host", "free")
	}
	if s.Blocks.PoolUsed+s.Blocks.PoolKept+s.Blocks.PoolFree > 0 {
		send(c.blocks, s.Blocks.PoolUsed, "pool", "used")
		send(c.blocks, s.Blocks.PoolKept, "pool", "kept")
		send(c.blocks, s.Blocks.PoolFree, "pool", "free")
	}
	seen := map[string]bool{}
	for _, u := range s.Units {
		if seen[u.Peer] {
			continue // a repeated series would spoil the whole scrape
		}
		seen[u.Peer] = true
		send(c.units, u.Local, u.Peer, "local")
		send(c.units, u.Lent, u.Peer, "lent")
		send(c.units, u.Reclaiming, u.Peer, "reclaiming")
		send(c.units, u.Fenced, u.Peer, "fenced")
	}
}

// askAll asks all processes at once; nil stands for one that did not answer.
func askAll(ctx context.Context, models []*Model) []*wire.Status {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	out := make([]*wire.Status, len(models))
	var wg sync.WaitGroup
	for i, m := range models {
		if !m.Upstream.Alive() {
			continue
		}
		wg.Go(func() {
			if s, err := m.Upstream.Status(ctx); err == nil {
				out[i] = s
			}
		})
	}
	wg.Wait()
	return out
}
