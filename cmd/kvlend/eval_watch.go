package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/recall"
)

// pollRecall is how often a server's metrics are looked at.
const pollRecall = 500 * time.Millisecond

// recallWatch looks at a server's metrics now and then: how many units are lent
// has to be seen while they are.
type recallWatch struct {
	client *http.Client
	url    string
	key    string
	roles  map[string]string // of the models
	stop   context.CancelFunc
	loop   sync.WaitGroup
	// The loop's until it has ended.
	last map[string]recall.System // what was read last, by model
	seen recall.System            // since the run began; UnitsLent is the most at once
}

// watchRecall begins to watch; nil if the server is not kvlend's.
func watchRecall(ctx context.Context, url, key string, cards []openai.ModelCard) *recallWatch {
	w := &recallWatch{
		client: &http.Client{Timeout: 10 * time.Second}, key: key, roles: map[string]string{},
		url: strings.TrimSuffix(strings.TrimSuffix(url, "/"), "/v1") + "/metrics",
	}
	for _, c := range cards {
		w.roles[c.ID] = c.Role
	}
	now, err := w.read(ctx)
	if err != nil || now == nil {
		return nil
	}
	w.last = now
	ctx, w.stop = context.WithCancel(ctx)
	w.loop.Go(func() {
		tick := time.NewTicker(pollRecall)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				w.look(ctx)
			}
		}
	})
	return w
}

// end looks for the last time and returns what was seen, nil of a nil watch.
func (w *recallWatch) end(ctx context.Context) *recall.System {
	if w == nil {
		return nil
	}
	w.stop()
	w.loop.Wait()
	w.look(ctx)
	return &w.seen
}

// look takes note of the metrics. If they cannot be read now, they may be later.
func (w *recallWatch) look(ctx context.Context) {
	now, err := w.read(ctx)
	if err != nil || now == nil {
		return
	}
	lent := int64(0)
	for model, s := range now {
		w.seen.Add(w.last[model], s)
		w.last[model] = s // one that does not answer now keeps what it had
		lent += s.UnitsLent
	}
	w.seen.UnitsLent = max(w.seen.UnitsLent, lent)
}

// read reads the metrics; nil if there are none of kvlend's.
func (w *recallWatch) read(ctx context.Context) (map[string]recall.System, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url, nil)
	if err != nil {
		return nil, err
	}
	if w.key != "" {
		req.Header.Set("Authorization", "Bearer "+w.key)
	}
	res, err := w.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics: %s", res.Status)
	}
	return parseRecallMetrics(io.LimitReader(res.Body, 16<<20), w.roles)
}

// parseRecallMetrics reads metrics in Prometheus' text format by model; nil: there
// are none. What both sides of lending count is taken from the workers.
func parseRecallMetrics(r io.Reader, roles map[string]string) (map[string]recall.System, error) {
	var all map[string]recall.System
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, rest, ok := strings.Cut(lines.Text(), "{")
		labels, number, closed := strings.Cut(rest, "} ")
		if !ok || !closed || !strings.HasPrefix(name, "kvlend_") {
			continue
		}
		v, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %q: %w", lines.Text(), err)
		}
		_, model, _ := strings.Cut(labels, `model_name="`)
		model, _, _ = strings.Cut(model, `"`)
		s := all[model]
		if to := recallMetric(&s, name, labels, roles[model] == configs.RoleWorker); to != nil {
			*to += int64(v)
			if all == nil {
				all = map[string]recall.System{}
			}
			all[model] = s
		}
	}
	return all, lines.Err()
}

// recallMetric is where a metric belongs, nil if nowhere.
func recallMetric(s *recall.System, name, labels string, worker bool) *int64 {
	switch name {
	case "kvlend_borrowed_loaded_bytes_total":
		return &s.Loaded
	case "kvlend_borrowed_stored_bytes_total":
		return &s.Stored
	case "kvlend_preemptions_total":
		return &s.Preempted
	case "kvlend_stale_blocks_total":
		return &s.Stale
	case "kvlend_checksum_failures_total":
		return &s.Corrupt
	case "kvlend_evacuated_blocks_total":
		return &s.Moved
	}
	if !worker {
		return nil
	}
	switch name {
	case "kvlend_units":
		if strings.Contains(labels, `state="lent"`) {
			return &s.UnitsLent
		}
	case "kvlend_units_granted_total":
		return &s.Granted
	case "kvlend_units_reclaimed_total":
		return &s.Reclaimed
	case "kvlend_units_fenced_total":
		return &s.Fenced
	}
	return nil
}
