// Package logq writes a process's log without ever waiting for whoever reads
// it. Log lines are written while locks are held; a terminal that is stopped
// (Ctrl-S) or a pager that nobody scrolls must not stop the system with them.
package logq

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Limits of what waits to be written. Beyond either, messages are lost.
const (
	MaxMessages = 4096
	MaxBytes    = 1 << 20
)

// Writer hands messages to another writer, in order, from a goroutine of its
// own. Its methods may be called concurrently.
//
// When too much waits, new messages are lost until half of it is written, so
// that a slow reader gets few gaps; each gap is reported where it is. What
// waits is also lost when the process dies without Close.
type Writer struct {
	out  io.Writer
	wake chan struct{} // holds one: something waits, or Close was called
	done chan struct{} // closed when nothing more is written

	mu     sync.Mutex
	queue  []entry
	count  int // messages in queue
	bytes  int // their length
	full   bool
	closed bool
	report func(w io.Writer, lost int)
}

// entry is a message, or, if that is nil, a gap of so many lost ones.
type entry struct {
	message []byte
	lost    int
}

// New returns a Writer to out, which may block. Close ends its goroutine.
func New(out io.Writer) *Writer {
	w := &Writer{out: out, wake: make(chan struct{}, 1), done: make(chan struct{}), report: plainReport}
	go w.run()
	return w
}

func plainReport(w io.Writer, lost int) {
	fmt.Fprintf(w, "log messages lost, nobody read them: %d\n", lost)
}

// OnLost sets how a gap is reported, by default as a line of plain text.
// f must write to w, the underlying writer, not to the Writer.
func (w *Writer) OnLost(f func(w io.Writer, lost int)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report = f
}

// Write takes one message, or loses it if too much waits; it never blocks and
// fails only after Close. Errors of the underlying writer are dropped: there is
// no better place to report them.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, os.ErrClosed
	}
	if w.count == MaxMessages || w.bytes+len(p) > MaxBytes {
		w.full = true
	}
	if w.full {
		w.lose()
	} else {
		w.queue = append(w.queue, entry{message: append(make([]byte, 0, len(p)), p...)})
		w.count++
		w.bytes += len(p)
	}
	w.signal()
	return len(p), nil
}

// lose counts a lost message in the gap at the end of the queue.
func (w *Writer) lose() {
	if n := len(w.queue); n > 0 && w.queue[n-1].message == nil {
		w.queue[n-1].lost++
		return
	}
	w.queue = append(w.queue, entry{lost: 1})
}

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Close takes no more messages and waits until the waiting ones are written, at
// most for the given time; what then still waits is lost. It may be called
// again.
func (w *Writer) Close(most time.Duration) {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-w.done:
	case <-t.C:
		w.mu.Lock()
		w.queue = nil
		w.mu.Unlock()
	}
}

func (w *Writer) run() {
	defer close(w.done)
	for range w.wake {
		for {
			e, report, ok := w.next()
			if !ok {
				break
			}
			if e.message == nil {
				report(w.out, e.lost)
				continue
			}
			w.out.Write(e.message) // one call per message: processes share a pipe
		}
		if w.finished() {
			return
		}
	}
}

// next takes the oldest entry from the queue.
func (w *Writer) next() (e entry, report func(io.Writer, int), ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		w.queue = nil
		return entry{}, nil, false
	}
	e = w.queue[0]
	w.queue[0] = entry{}
	w.queue = w.queue[1:]
	if e.message != nil {
		w.count--
		w.bytes -= len(e.message)
	}
	if w.count <= MaxMessages/2 && w.bytes <= MaxBytes/2 {
		w.full = false
	}
	return e, w.report, true
}

func (w *Writer) finished() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed && len(w.queue) == 0
}
