// Package faultfabric wraps a fabric and breaks it on purpose: delays, copies
// that fail half way, streams that stand still until they are released. With
// equal seeds and equal calls it does the same again. It is for tests.
package faultfabric

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvlend/kvlend/nvlink"
)

// ErrInjected is the error of copies that were made to fail.
var ErrInjected = errors.New("injected fault")

// Config says what goes wrong.
type Config struct {
	Seed uint64
	// MaxDelay: each copy starts later by a random time below it.
	MaxDelay time.Duration
	// FailCopy: the nth CopyBatch of the whole fabric (from 1) fails; 0: none.
	FailCopy int
	// FailRate is the share of copies, 0 to 1, that fail at random.
	FailRate float64
}

// Fabric is the wrapped fabric. It is safe for concurrent use; decisions are
// reproducible only if the order of calls is.
type Fabric struct {
	nvlink.Fabric
	cfg Config

	mu     sync.Mutex
	rng    *rand.Rand
	copies int
	held   map[string]chan struct{} // by stream name; closed by Release
}

// Wrap wraps f, which the wrapper's Close closes.
func Wrap(f nvlink.Fabric, cfg Config) *Fabric {
	return &Fabric{
		Fabric: f,
		cfg:    cfg,
		rng:    rand.New(rand.NewPCG(cfg.Seed, 0x6b766c656e64)),
		held:   map[string]chan struct{}{},
	}
}

// NewStream opens a stream that misbehaves as configured.
func (f *Fabric) NewStream(dev, name string) (nvlink.Stream, error) {
	s, err := f.Fabric.NewStream(dev, name)
	if err != nil {
		return nil, err
	}
	return &stream{Stream: s, fabric: f, name: name}, nil
}

// Copies is the number of CopyBatch calls so far.
func (f *Fabric) Copies() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.copies
}

// Hold makes the streams of this name stand still before their next copy
// starts, until Release.
func (f *Fabric) Hold(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held[name] == nil {
		f.held[name] = make(chan struct{})
	}
}

// Release lets the streams of this name go on.
func (f *Fabric) Release(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.held[name]; c != nil {
		close(c)
		delete(f.held, name)
	}
}

// decide draws what happens to the next copy, which has n pieces: how late it
// starts, and after how many pieces it fails (n+1: it does not).
func (f *Fabric) decide(n int) (delay time.Duration, pieces int, nth int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.copies++
	if f.cfg.MaxDelay > 0 {
		delay = time.Duration(f.rng.Int64N(int64(f.cfg.MaxDelay)))
	}
	if f.copies == f.cfg.FailCopy || f.rng.Float64() < f.cfg.FailRate {
		return delay, f.rng.IntN(n + 1), f.copies
	}
	return delay, n + 1, f.copies
}

// gate blocks while streams of this name are held.
func (f *Fabric) gate(name string) {
	f.mu.Lock()
	c := f.held[name]
	f.mu.Unlock()
	if c != nil {
		<-c
	}
}

type stream struct {
	nvlink.Stream
	fabric *Fabric
	name   string
	mu     sync.Mutex // keeps the calls that make one copy together
}

// CopyBatch copies all pieces, or a prefix of them and then fails; the error
// comes with the next event, as that of a real fault does.
func (s *stream) CopyBatch(pieces []nvlink.Copy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delay, n, nth := s.fabric.decide(len(pieces))
	err := s.Call(func() error {
		s.fabric.gate(s.name)
		if delay > 0 {
			time.Sleep(delay)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n > len(pieces) {
		return s.Stream.CopyBatch(pieces)
	}
	if err := s.Stream.CopyBatch(pieces[:n]); err != nil {
		return err
	}
	return s.Call(func() error {
		return fmt.Errorf("copy %d stopped after %d of %d pieces: %w", nth, n, len(pieces), ErrInjected)
	})
}
