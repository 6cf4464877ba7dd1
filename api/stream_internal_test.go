package api

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
)

// gone is the connection of a client that left.
type gone struct{ *httptest.ResponseRecorder }

var errGone = errors.New("broken pipe")

func (gone) Write([]byte) (int, error) { return 0, errGone }

// TestNothingGathersForOneWhoIsGone: events after a failed write are dropped,
// however many come before the handler learns of it.
func TestNothingGathersForOneWhoIsGone(t *testing.T) {
	c, _ := gin.CreateTestContext(gone{httptest.NewRecorder()})
	s := newEventStream(c, time.Second)
	text := strings.Repeat("x", 1000)
	for range 10_000 {
		s.send(text)
	}
	if n := s.buf.Cap(); n > 4*flushBytes {
		t.Errorf("%d bytes gathered", n)
	}
	if err := s.flush(); !errors.Is(err, errGone) {
		t.Errorf("the flush after a failed write says %v", err)
	}
}
