package logq

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gate is a reader that reads nothing until it is opened.
type gate struct {
	open chan struct{}
	bytes.Buffer
}

func newGate() *gate { return &gate{open: make(chan struct{})} }

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	return g.Buffer.Write(p)
}

func write(t *testing.T, w io.Writer, format string, args ...any) {
	t.Helper()
	s := fmt.Sprintf(format, args...)
	if n, err := io.WriteString(w, s); n != len(s) || err != nil {
		t.Fatalf("Write(%q) = %d, %v", s, n, err)
	}
}

func TestOrderAndFlush(t *testing.T) {
	var out, want bytes.Buffer
	w := New(&out)
	for i := range MaxMessages {
		write(t, w, "line %d\n", i)
		fmt.Fprintf(&want, "line %d\n", i)
	}
	w.Close(time.Minute)
	if out.String() != want.String() {
		t.Errorf("got %d bytes, want %d in order", out.Len(), want.Len())
	}
	if _, err := w.Write([]byte("late\n")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Write after Close: %v", err)
	}
	w.Close(time.Minute)
}

// The caller may use its buffer again, as hclog does.
func TestMessageIsCopied(t *testing.T) {
	g := newGate()
	w := New(g)
	b := []byte("one\n")
	write(t, w, "zero\n")
	w.Write(b)
	copy(b, "two\n")
	close(g.open)
	w.Close(time.Minute)
	if got := g.String(); got != "zero\none\n" {
		t.Errorf("got %q", got)
	}
}

func TestLostMessagesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		w := New(g)
		var want strings.Builder
		write(t, w, "stuck\n")
		want.WriteString("stuck\n")
		synctest.Wait() // the goroutine now holds this line
		for i := range MaxMessages {
			write(t, w, "%d\n", i)
			fmt.Fprintf(&want, "%d\n", i)
		}
		for range 17 {
			write(t, w, "lost\n")
		}
		want.WriteString("log messages lost, nobody read them: 17\n")
		close(g.open)
		synctest.Wait() // all is written, nothing was written meanwhile
		if g.String() != want.String() {
			t.Errorf("%q ends unlike %q", tail(g.String()), tail(want.String()))
		}
		write(t, w, "after\n")
		w.Close(time.Minute)
		if got := tail(g.String()); !strings.HasSuffix(got, ": 17\nafter\n") {
			t.Errorf("ends with %q", got)
		}
	})
}

func tail(s string) string { return s[max(0, len(s)-80):] }

func TestBytesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		w := New(g)
		w.OnLost(func(w io.Writer, lost int) { fmt.Fprintf(w, "[%d]", lost) })
		write(t, w, "stuck")
		synctest.Wait()
		big := strings.Repeat("x", MaxBytes/2+1)
		write(t, w, "%s", big)
		write(t, w, "%s", big) // too much
		write(t, w, "small")   // would fit, but comes after the gap began
		close(g.open)
		synctest.Wait()
		write(t, w, "%s", big+big) // never fits
		synctest.Wait()
		write(t, w, "end")
		w.Close(time.Minute)
		if got := strings.ReplaceAll(g.String(), big, "X"); got != "stuckX[2][1]end" {
			t.Errorf("got %q", tail(got))
		}
	})
}

// A reader that never reads delays the exit by the bound, not more.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		w := New(g)
		write(t, w, "stuck\n")
		write(t, w, "waits\n")
		start := time.Now()
		w.Close(200 * time.Millisecond)
		if d := time.Since(start); d != 200*time.Millisecond {
			t.Errorf("Close took %s", d)
		}
		close(g.open)
		<-w.done
		if got := g.String(); got != "stuck\n" {
			t.Errorf("written after Close gave up: %q", got)
		}
	})
}
