package disk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
)

// set is an engine with devices and one buffer of its memory.
type set struct {
	eng  *device.Engine
	devs []device.Device
	mem  []byte
}

// openDepth is how much may be under way on one device: more than is ever asked.
const openDepth = 1024

// openSet opens devices, for reading unless write is set, with a buffer of n
// bytes that the kernel knows in advance and more bytes of such memory that
// nobody has. All of it may be in flight.
func openSet(specs []Spec, write bool, n, more int64) (_ *set, err error) {
	n = (n + device.Align - 1) &^ (device.Align - 1)
	s := &set{}
	if s.eng, err = device.NewEngine(device.EngineOptions{Memory: n + more, InFlight: 2 * (n + more)}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.mem, err = s.eng.Memory().Get(context.Background(), int(n)); err != nil {
		return nil, err
	}
	// Pages that were never touched would be mapped while a clock runs.
	clear(s.mem)
	for _, d := range specs {
		dev, err := device.Open(context.Background(), s.eng, device.Options{Path: d.Path, ReadOnly: !write, Depth: openDepth})
		if err != nil {
			return nil, err
		}
		s.devs = append(s.devs, dev)
	}
	return s, nil
}

func (s *set) close() error {
	var errs []error
	for _, d := range s.devs {
		errs = append(errs, d.Close())
	}
	if s.mem != nil {
		s.eng.Memory().Put(s.mem)
	}
	return errors.Join(append(errs, s.eng.Close())...)
}

// degraded is why a device is slower than it need be; empty: none is.
func (s *set) degraded() string {
	for _, d := range s.devs {
		if i := d.Info(); i.Degraded != "" {
			return fmt.Sprintf("%s: %s", i.Name, i.Degraded)
		}
	}
	return s.eng.Stats().Degraded
}

// maxIO is the largest I/O of at most bound bytes that suits all devices.
func (s *set) maxIO(bound int64) int64 {
	for _, d := range s.devs {
		bound = min(bound, d.Info().MaxIO)
	}
	return bound
}

func (s *set) sizes() []int64 {
	var out []int64
	for _, d := range s.devs {
		out = append(out, d.Info().Size)
	}
	return out
}

// measure has one device do what l says, for d.
func (s *set) measure(ctx context.Context, dev int, l load, d time.Duration, seed uint64) (sample, error) {
	p := newPump(s.devs[dev], s.mem, l, seed)
	calls := s.eng.Stats().Ring.Enters
	objects := mallocs()
	cpu, err := cpuTime()
	if err != nil {
		return sample{}, err
	}
	ios, took, err := p.run(ctx, d)
	if err != nil {
		return sample{}, err
	}
	after, err := cpuTime()
	if err != nil {
		return sample{}, err
	}
	n := float64(ios)
	m := sample{bytesPerSec: float64(ios*l.block) / took.Seconds(), cpuPerGB: (after - cpu).Seconds() / (n * float64(l.block)) * 1e9}
	m.calls = float64(s.eng.Stats().Ring.Enters-calls) / n
	m.allocs = float64(mallocs()-objects) / n
	m.median, m.p99 = p.quantiles()
	return m, nil
}
