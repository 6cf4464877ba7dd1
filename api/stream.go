package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
)

// flushBytes is how much may gather before it is written even though more
// events wait.
const flushBytes = 32 << 10

// eventStream writes server-sent events. The status line goes out with the
// first flush, so that a request which fails before its first token still gets
// a proper HTTP status.
type eventStream struct {
	c       *gin.Context
	rc      *http.ResponseController
	timeout time.Duration
	buf     bytes.Buffer
	enc     *json.Encoder
	started bool
	err     error // of the first write that failed
}

func newEventStream(c *gin.Context, timeout time.Duration) *eventStream {
	var w http.ResponseWriter = c.Writer
	// Below gin's writer a flush says whether it failed.
	if u, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
		w = u.Unwrap()
	}
	s := &eventStream{c: c, rc: http.NewResponseController(w), timeout: timeout}
	s.enc = json.NewEncoder(&s.buf)
	s.enc.SetEscapeHTML(false)
	return s
}

// send queues one event. After a failed write it drops it, so that nothing
// gathers for a client that is gone.
func (s *eventStream) send(v any) {
	s.started = true
	if s.err != nil {
		return
	}
	s.buf.WriteString("data: ")
	if err := s.enc.Encode(v); err != nil {
		panic("BUG: an event did not encode: " + err.Error())
	}
	s.buf.WriteByte('\n') // Encode wrote the first one
	if s.buf.Len() >= flushBytes {
		// The error is kept and comes again with the next flush.
		_ = s.flush()
	}
}

// done queues the end marker and flushes. The client may be gone: by now
// nobody needs to know.
func (s *eventStream) done() {
	s.buf.WriteString("data: [DONE]\n\n")
	_ = s.flush()
}

// flush writes what is queued, within the write timeout.
func (s *eventStream) flush() error {
	if s.err != nil || s.buf.Len() == 0 {
		return s.err
	}
	if !s.c.Writer.Written() {
		h := s.c.Writer.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // proxies shall not gather events
		s.c.Status(http.StatusOK)
	}
	// Writers under test may have no deadlines; they do not block either.
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.timeout))
	if _, s.err = s.c.Writer.Write(s.buf.Bytes()); s.err == nil {
		s.err = s.rc.Flush()
	}
	s.buf.Reset()
	return s.err
}
