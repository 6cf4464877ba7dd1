package interference

import (
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
)

const (
	// bufferBytes is the master's side of the copies: it fits in a core's cache.
	bufferBytes = 512 << 10
	// pieceBytes is a layer block of a large model.
	pieceBytes = 64 << 10
	// loadsPerStore: a master reads its history in every step and writes only
	// what is new.
	loadsPerStore = 4
)

// master copies between the units that it was lent and its own memory, without
// a pause.
type master struct {
	w      *worker
	fab    *shm.Fabric
	stream nvlink.Stream
	buffer *shm.Arena
	moved  atomic.Int64
	quit   chan struct{}
	done   chan error
	at     int64 // in the lent memory
	n      int
}

// startMaster begins to copy on a core; rate is the budget in bytes per second,
// 0: none.
func startMaster(w *worker, core int, rate int64) (*master, error) {
	m := &master{w: w, quit: make(chan struct{}), done: make(chan error, 1)}
	var cfg shm.Config
	if rate > 0 {
		cfg.Budgets = map[string]int64{arenaName: rate}
	}
	var err error
	if m.fab, err = shm.New(cfg); err != nil {
		return nil, err
	}
	if m.buffer, err = shm.Create("master", "master", bufferBytes); err != nil {
		return nil, errors.Join(err, m.fab.Close())
	}
	m.stream, err = m.fab.NewStream("master", "traffic")
	if err == nil {
		err = m.stream.Call(func() error {
			runtime.LockOSThread() // the stream's goroutine, until it ends
			return pin(core)
		})
	}
	if err == nil {
		err = m.wait()
	}
	if err != nil {
		return nil, errors.Join(err, m.fab.Close(), m.buffer.Close())
	}
	go func() { m.done <- m.copy() }()
	return m, nil
}

func (m *master) wait() error {
	ev, err := m.stream.Record()
	if err != nil {
		return err
	}
	<-ev.Done()
	return ev.Err()
}

// copy keeps two batches in the stream's queue, so that it never idles.
func (m *master) copy() error {
	var before nvlink.Event
	for {
		select {
		case <-m.quit:
			return m.wait()
		default:
		}
		pieces := m.batch()
		if err := m.stream.CopyBatch(pieces); err != nil {
			return err
		}
		ev, err := m.stream.Record()
		if err != nil {
			return err
		}
		if before != nil {
			<-before.Done()
			if err := before.Err(); err != nil {
				return err
			}
			m.moved.Add(bufferBytes)
		}
		before = ev
	}
}

// batch is the next buffer's worth of layer blocks, wherever units lie.
func (m *master) batch() []nvlink.Copy {
	m.n++
	var out []nvlink.Copy
	for off := int64(0); off < bufferBytes; off += pieceBytes {
		far := nvlink.Span{Arena: m.w.arena, Off: m.next(), Len: pieceBytes}
		near := nvlink.Span{Arena: m.buffer, Off: off, Len: pieceBytes}
		c := nvlink.Copy{Dst: near, Src: far}
		if m.n%(loadsPerStore+1) == 0 {
			c = nvlink.Copy{Dst: far, Src: near}
		}
		out = append(out, c)
	}
	return out
}

// next walks through the lent memory in pieces. A piece may reach into the next
// unit, if that one is lent as well: what is lent is taken to be contiguous.
func (m *master) next() int64 {
	first := m.w.firstLent()
	if m.at+pieceBytes > m.w.lentBytes {
		m.at = 0
	}
	off := first + m.at
	m.at += pieceBytes
	return off
}

// stop ends the traffic and says how many bytes were copied.
func (m *master) stop() (int64, error) {
	close(m.quit)
	err := <-m.done
	return m.moved.Load(), errors.Join(err, m.fab.Close(), m.buffer.Close())
}
