//go:build cuda && cgo

package cuda

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// machine is the driver and its devices, shared by a fabric and its arenas. It
// ends with the last of them.
type machine struct {
	drv    *driver
	devs   []*device // immutable
	home   *device   // whose context serves where any would
	notice func(string)

	mu        sync.Mutex
	refs      int
	pairs     map[[2]int]*pair     // by device index; filled by newMachine
	batchless string               // why cuMemcpyBatchAsync is not used; empty: it is
	ipc       map[[64]byte]*opened // what this process has opened
}

// opened is memory of another process, shared by the arenas that opened it.
type opened struct {
	at   uint64
	refs int
}

// pair is whether one device reaches the memory of another.
type pair struct {
	peer bool
	why  string // without peer
	// enabled: the contexts know it. What maps VMM memory does not need that.
	enabled bool
	noted   bool // Notice has heard of it
}

// newMachine opens the driver; it counts one reference. names are those of the
// devices by ordinal; nil: all, as gpu0, gpu1, ...
func newMachine(library string, names []string) (*machine, error) {
	drv, err := openDriver(library)
	if err != nil {
		return nil, err
	}
	m := &machine{drv: drv, refs: 1, pairs: map[[2]int]*pair{}, ipc: map[[64]byte]*opened{}}
	if err := m.findDevices(names); err != nil {
		drv.close()
		return nil, err
	}
	if err := m.findPairs(); err != nil {
		drv.close()
		return nil, err
	}
	if !drv.batched() {
		m.batchless = "the driver has none (CUDA 12.8 and later do), or the headers of this build are not of CUDA 12.8 or 12.9"
	}
	return m, nil
}

func (m *machine) findDevices(names []string) error {
	if names == nil {
		for i := range m.drv.count {
			names = append(names, fmt.Sprintf("gpu%d", i))
		}
	}
	for i, name := range names {
		if name != "" && slices.Contains(names[:i], name) {
			return fmt.Errorf("cuda fabric: Devices[%d] %q is named twice", i, name)
		}
	}
	if len(names) > m.drv.count {
		return fmt.Errorf("cuda fabric: %d devices are named; the driver has %d", len(names), m.drv.count)
	}
	for i, name := range names {
		if name == "" {
			continue // not used by this process
		}
		d, err := m.drv.device(i)
		if err != nil {
			return err
		}
		d.m, d.name, d.index = m, name, len(m.devs)
		if err := d.ask(); err != nil {
			return err
		}
		m.devs = append(m.devs, d)
	}
	if len(m.devs) == 0 {
		return errors.New("cuda fabric: no device is named")
	}
	return nil
}

func (m *machine) findPairs() error {
	for _, a := range m.devs {
		for _, b := range m.devs {
			p := &pair{}
			m.pairs[[2]int{a.index, b.index}] = p
			if a == b {
				p.peer, p.enabled = true, true
				continue
			}
			var err error
			if p.peer, err = m.drv.canPeer(a, b); err != nil {
				return err
			}
			if !p.peer {
				p.why = "the driver says that there is no peer access (cuDeviceCanAccessPeer)"
			}
		}
	}
	return nil
}

// device finds a device by name, nil: there is none.
func (m *machine) device(name string) *device {
	for _, d := range m.devs {
		if d.name == name {
			return d
		}
	}
	return nil
}

func (m *machine) names() []string {
	var out []string
	for _, d := range m.devs {
		out = append(out, d.name)
	}
	return out
}

func (m *machine) retain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refs++
}

// release ends the machine with the last reference.
func (m *machine) release() error {
	m.mu.Lock()
	m.refs--
	last := m.refs == 0
	m.mu.Unlock()
	if !last {
		return nil
	}
	var errs []error
	for _, d := range m.devs {
		errs = append(errs, d.stop())
	}
	m.drv.close()
	return errors.Join(errs...)
}

// reaches reports whether dev's context may use memory that was allocated in
// the context of owner, making it so at the first question.
func (m *machine) reaches(dev, owner *device) bool {
	m.mu.Lock()
	p := m.pairs[[2]int{dev.index, owner.index}]
	known := p.enabled || !p.peer
	ok := p.peer
	m.mu.Unlock()
	if known {
		return ok
	}
	err := owner.start()
	if err == nil {
		err = dev.do(func() error { return m.drv.enablePeer(dev, owner) })
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p.enabled = true
	if err != nil {
		p.peer, p.why = false, err.Error()
	}
	return p.peer
}

// unreachable notes why a device could not be given access.
func (m *machine) unreachable(dev, owner *device, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pairs[[2]int{dev.index, owner.index}]
	p.peer, p.why = false, err.Error()
}

// peer reports whether dev is said to reach the memory of owner.
func (m *machine) peer(dev, owner *device) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pairs[[2]int{dev.index, owner.index}].peer
}

// batches reports whether cuMemcpyBatchAsync is used.
func (m *machine) batches() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.batchless == ""
}

// refuseBatches ends the use of cuMemcpyBatchAsync.
func (m *machine) refuseBatches(err error) {
	m.mu.Lock()
	first := m.batchless == ""
	m.batchless = err.Error()
	m.mu.Unlock()
	if first {
		m.notice(fmt.Sprintf("copies are given to the copy engine one by one: %v", err))
	}
}
