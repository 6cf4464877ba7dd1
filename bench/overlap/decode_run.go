package overlap

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/scheduler"
)

// warmTokens of each sequence are drawn with everything at home before a
// measurement: the scheduler's cost model learns from them.
const warmTokens = 12

// decoder measures the cells of the decode experiment.
type decoder struct {
	*world
	opt *DecodeOptions
	// expected are the hashes of a sequence's rows of logits, by history and
	// sequence: the same wherever its KV lies and whatever it is batched with.
	expected map[[2]int][]uint64
}

// measurement is a cell while it runs. Sinks and the sampler run on the
// scheduler's goroutine; who waits for done reads after it.
type measurement struct {
	d     *decoder
	c     *DecodeCell
	cache *decodeCache
	s     *scheduler.Scheduler

	done chan struct{} // the present phase is over
	once *sync.Once

	ended int // sequences of the warm-up
}

// measure runs a cell once.
func (d *decoder) measure(ctx context.Context, c *DecodeCell) (decodeRun, error) {
	clear(d.local.Bytes()[d.slots:d.homes]) // what is read there was loaded
	m := &measurement{d: d, c: c, cache: newDecodeCache(d, c)}
	opt := scheduler.Options{MaxRunning: c.Batch, Sampler: m.sample}
	if c.Way != MixedInTurns {
		opt.StreamFactor = 1e9 // whoever can takes part
	}
	m.s = scheduler.New(d.model, m.cache, opt)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	waited, began := waitedForCore(), time.Now()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = m.s.Run(ctx) // the context's error; steps that fail are events
	}()
	err := m.phase(ctx, "warm", warmTokens, m.warm)
	m.cache.streaming, m.cache.steps = c.streaming(), nil
	if err == nil {
		err = m.phase(ctx, "measured", d.opt.room()-warmTokens, m.token)
	}
	took := time.Since(began)
	waited = waitedForCore() - waited
	cancel()
	<-stopped
	if err != nil {
		return decodeRun{}, err
	}
	r, enough := m.window()
	if !enough {
		return r, fmt.Errorf("sequences at home ended before the streamed ones had drawn %d tokens", d.opt.Tokens)
	}
	r.took, r.waited = took.Seconds(), waited.Seconds()
	return r, nil
}

// phase submits a request per sequence and waits until done is closed.
func (m *measurement) phase(ctx context.Context, name string, tokens int, event func(i int, ev scheduler.Event)) error {
	var failure error
	done, once := make(chan struct{}), &sync.Once{}
	m.done, m.once = done, once
	for i := range m.c.Batch {
		prompt := make([]int32, m.c.History+1)
		prompt[0] = int32(i) // tells the sampler; its KV is in place
		prompt[m.c.History] = m.d.tokens[i]
		p := sampling.Default()
		p.Temperature = 0
		err := m.s.Submit(scheduler.Request{ID: fmt.Sprint(name, i), Tokens: prompt, MaxTokens: tokens, Sampling: p, IgnoreEOS: true,
			Sink: func(ev scheduler.Event) {
				if ev.Err != nil {
					once.Do(func() { failure = ev.Err; close(done) })
					return
				}
				event(i, ev)
			}})
		if err != nil {
			return err
		}
	}
	select {
	case <-done:
		return failure
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *measurement) over() { m.once.Do(func() { close(m.done) }) }

func (m *measurement) warm(_ int, ev scheduler.Event) {
	if ev.Finish != "" {
		if m.ended++; m.ended == m.c.Batch {
			m.over()
		}
	}
}

// token ends the measurement when there is enough of it. Sequence 0, which is one
// of the slow, asks, so that the scheduler has little to wait for.
func (m *measurement) token(i int, ev scheduler.Event) {
	if ev.Finish == "" && i > 0 {
		return
	}
	if _, enough := m.window(); enough || ev.Finish != "" {
		m.over()
	}
}

// window sums up the steps from the one after that in which the last sequence
// drew its first token to the one in which each of the slow sequences has drawn
// enough; enough is false if they have not yet. A step is a token of each
// sequence in it.
func (m *measurement) window() (r decodeRun, enough bool) {
	n, started := m.c.streaming(), 0
	slow := cmp.Or(n, m.c.Batch)
	drawn, last := make([]int, m.c.Batch), make([]time.Time, m.c.Batch)
	var from time.Time
	steps := 0.0
	for _, s := range m.cache.steps {
		for _, i := range s.seqs {
			if drawn[i]++; from.IsZero() && drawn[i] == 1 {
				started++
			}
			last[i] = s.finished
		}
		switch {
		case started < m.c.Batch:
			continue
		case from.IsZero():
			from = s.finished
			clear(drawn)
			continue
		}
		steps++
		r.stream += s.stream
		r.step += s.step
		r.least += s.least
		if enough = slices.Min(drawn[:slow]) >= m.d.opt.Tokens; enough {
			break
		}
	}
	r.stream, r.step, r.least = r.stream/steps, r.step/steps, r.least/steps
	for i, tokens := range drawn {
		per := last[i].Sub(from).Seconds() / float64(tokens)
		if i < n {
			r.streamed += per / float64(n)
		} else {
			r.atHome += per / float64(m.c.Batch-n)
		}
		r.rate += 1 / per
	}
	return r, enough
}

// sample draws the likeliest token, and compares the logits with those that the
// sequence had before.
func (m *measurement) sample(logits []float32, prompt, output []int32, index int, p sampling.Params, scratch *sampling.Scratch) (sampling.Token, error) {
	key := [2]int{m.c.History, int(prompt[0])}
	hash, known := scheduler.HashRow(0, logits), m.d.expected[key]
	switch {
	case index == len(known):
		m.d.expected[key] = append(known, hash)
	case index > len(known) || known[index] != hash:
		return sampling.Token{}, fmt.Errorf("token %d of sequence %d: the logits differ from those over local KV", index, prompt[0])
	}
	return sampling.Sample(logits, prompt, output, index, p, scratch)
}
