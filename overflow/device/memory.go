package device

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"

	"golang.org/x/sys/unix"
)

// Memory hands out buffers of the engine's arena: aligned to Align, known to
// the kernel in advance, not Go heap. Memories of one engine (For) share the
// arena and differ in the purpose under which their buffers are accounted. It
// is safe for concurrent use.
type Memory struct {
	a       *arena
	purpose string
	usage   Usage // under a.mu
}

// Usage is the account of one purpose, in bytes.
type Usage struct{ InUse, Peak int64 }

// ErrTooLarge says that no buffer can be that large.
var ErrTooLarge = errors.New("larger than the engine's memory can hold")

// arena is the memory behind all Memories of an engine.
type arena struct {
	mem, whole []byte
	base       uintptr
	region     int  // bytes that are registered as one, a multiple of Align
	registered bool // with the ring

	mu       sync.Mutex
	runs     *runs              // guarded by mu
	purposes map[string]*Memory // guarded by mu
	waiters  []*memWaiter       // guarded by mu, first come first served
	closed   bool               // guarded by mu
}

type memWaiter struct {
	m     *Memory
	n     int
	ready chan []byte // of room for one; closed: the engine is
}

func newArena(n int64, region int, huge bool) (*arena, error) {
	mem, whole, err := mapMemory(n, huge)
	if err != nil {
		return nil, err
	}
	return &arena{
		mem: mem, whole: whole, base: address(mem), region: region,
		runs:     newRuns(int32(n/Align), int32(region/Align)),
		purposes: map[string]*Memory{},
	}, nil
}

// regions is the arena in the pieces that are registered.
func (a *arena) regions() [][]byte {
	var out [][]byte
	for at := 0; at < len(a.mem); at += a.region {
		out = append(out, a.mem[at:min(at+a.region, len(a.mem))])
	}
	return out
}

// regionOf is the index of the registered region that holds b, or -1.
func (a *arena) regionOf(b []byte) int {
	at := address(b) - a.base // wraps around below the base
	if !a.registered || at >= uintptr(len(a.mem)) || at+uintptr(len(b)) > uintptr(len(a.mem)) {
		return -1
	}
	i := int(at) / a.region
	if (int(at)+len(b)-1)/a.region != i {
		return -1
	}
	return i
}

func (a *arena) purpose(name string) *Memory {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.purposes[name]
	if m == nil {
		m = &Memory{a: a, purpose: name}
		a.purposes[name] = m
	}
	return m
}

// close unmaps the arena, unless somebody still has buffers: then it stays and
// an error says who.
func (a *arena) close() error {
	a.shut()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.runs.free == a.runs.pages {
		return unix.Munmap(a.whole)
	}
	var names []string
	for n, m := range a.purposes {
		if m.usage.InUse != 0 {
			names = append(names, fmt.Sprintf("%s (%d bytes)", n, m.usage.InUse))
		}
	}
	sort.Strings(names)
	return fmt.Errorf("buffers of the engine's memory were not put back: %v", names)
}

// shut ends the giving out of buffers.
func (a *arena) shut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, w := range a.waiters {
		close(w.ready)
	}
	a.waiters = nil
}

// For is the same memory under another purpose, e.g. "load" or "journal".
func (m *Memory) For(purpose string) *Memory { return m.a.purpose(purpose) }

// Size is the whole arena in bytes, for all purposes.
func (m *Memory) Size() int64 { return int64(len(m.a.mem)) }

// Free is what nobody has, in bytes. It may lie in pieces.
func (m *Memory) Free() int64 {
	m.a.mu.Lock()
	defer m.a.mu.Unlock()
	return int64(m.a.runs.free) * Align
}

// Usage is the account of every purpose that was ever used.
func (m *Memory) Usage() map[string]Usage {
	m.a.mu.Lock()
	defer m.a.mu.Unlock()
	out := make(map[string]Usage, len(m.a.purposes))
	for n, p := range m.a.purposes {
		out[n] = p.usage
	}
	return out
}

func (m *Memory) check(n int) error {
	if n <= 0 || n > min(m.a.region, len(m.a.mem)) {
		return fmt.Errorf("a buffer of %d bytes (1 to %d): %w", n, min(m.a.region, len(m.a.mem)), ErrTooLarge)
	}
	return nil
}

// take is called under a.mu.
func (m *Memory) take(n int) []byte {
	pages := int32((n + Align - 1) / Align)
	p := m.a.runs.take(pages)
	if p == noPage {
		return nil
	}
	m.usage.InUse += int64(pages) * Align
	m.usage.Peak = max(m.usage.Peak, m.usage.InUse)
	at := int(p) * Align
	return m.a.mem[at : at+n : at+int(pages)*Align]
}

// TryGet is a buffer of n bytes (with room up to the next multiple of Align),
// or nil when there is none just now or others wait for one. Its content is
// arbitrary. Put gives it back.
func (m *Memory) TryGet(n int) []byte {
	if m.check(n) != nil {
		return nil
	}
	m.a.mu.Lock()
	defer m.a.mu.Unlock()
	if len(m.a.waiters) > 0 || m.a.closed {
		return nil
	}
	return m.take(n)
}

// Get is TryGet that waits for its turn. It fails with ErrTooLarge, ErrClosed
// or the context's error.
func (m *Memory) Get(ctx context.Context, n int) ([]byte, error) {
	if err := m.check(n); err != nil {
		return nil, err
	}
	if b := m.TryGet(n); b != nil {
		return b, nil
	}
	m.a.mu.Lock()
	w := &memWaiter{m: m, n: n, ready: make(chan []byte, 1)}
	m.a.waiters = append(m.a.waiters, w)
	if m.a.closed {
		close(w.ready)
		m.a.waiters = nil
	}
	m.a.serve()
	m.a.mu.Unlock()
	select {
	case b, ok := <-w.ready:
		if !ok {
			return nil, ErrClosed
		}
		return b, nil
	case <-ctx.Done():
		m.a.leave(w)
		return nil, ctx.Err()
	}
}

// serve gives buffers to those who wait, in their order. Called under mu.
func (a *arena) serve() {
	for len(a.waiters) > 0 {
		w := a.waiters[0]
		b := w.m.take(w.n)
		if b == nil {
			return
		}
		w.ready <- b
		a.waiters[0] = nil
		a.waiters = a.waiters[1:]
	}
}

// leave ends w's waiting; what it was given meanwhile goes back.
func (a *arena) leave(w *memWaiter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, x := range a.waiters {
		if x == w {
			a.waiters = append(a.waiters[:i], a.waiters[i+1:]...)
			a.serve()
			return
		}
	}
	if b, ok := <-w.ready; ok {
		w.m.put(b)
	}
}

// Put gives a buffer of this purpose back; nothing may use it any more. It may
// have been shortened, but must begin where it began.
func (m *Memory) Put(b []byte) {
	m.a.mu.Lock()
	defer m.a.mu.Unlock()
	m.put(b)
}

func (m *Memory) put(b []byte) {
	at := address(b) - m.a.base
	if at >= uintptr(len(m.a.mem)) || at%Align != 0 || m.a.runs.taken(int32(at/Align)) == 0 {
		panic(fmt.Sprintf("BUG: a buffer of %d bytes was put back that is not taken from the engine's memory", len(b)))
	}
	p := int32(at / Align)
	m.usage.InUse -= int64(m.a.runs.taken(p)) * Align
	if m.usage.InUse < 0 {
		panic(fmt.Sprintf("BUG: a buffer was put back under the purpose %q that was taken under another", m.purpose))
	}
	m.a.runs.put(p)
	m.a.serve()
}
