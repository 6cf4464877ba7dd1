package session

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvlend/kvlend/coordinator/transport"
	"github.com/kvlend/kvlend/coordinator/wire"
)

func socketDir(t testing.TB) *transport.Dir {
	t.Helper()
	path, err := os.MkdirTemp("", "kv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(path) })
	d, err := transport.OpenDir(path, transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func zmqOptions(t testing.TB, d *transport.Dir, server bool) func(*Options) {
	t.Helper()
	var err error
	return func(o *Options) {
		if server {
			o.Self.Model = "server"
			o.Listener, err = d.Listen("server", "client")
		} else {
			o.Self.Model = "client"
			o.Dialer, err = d.Dialer("server", "client")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestZMQ runs real sockets: traffic both ways while the server's process is
// replaced twice.
func TestZMQ(t *testing.T) {
	d := socketDir(t)
	client := open(t, zmqOptions(t, d, false))
	for round := uint64(1); round <= 3; round++ {
		server := open(t, zmqOptions(t, d, true))
		resets := round - 1
		up := make(chan struct{})
		go func() {
			defer close(up)
			// Messages of the server reach whoever is the client.
			server.number(t, 1, 2000)
		}()
		<-up
		flush(t, server.Link)
		if got := client.Status().Resets; got != resets {
			t.Fatalf("round %d: %d resets", round, got)
		}
		client.number(t, 1, 2000)
		flush(t, client.Link)
		wantGot(t, "server", server, sequence(1, 2000))
		server.Close()
	}
	want := slices.Concat(sequence(1, 2000), sequence(1, 2000), sequence(1, 2000))
	wantGot(t, "client", client, want)
}

// TestZMQLargeAndSmall mixes sizes so that batches are cut at every limit.
func TestZMQLargeAndSmall(t *testing.T) {
	d := socketDir(t)
	var mu sync.Mutex
	var sizes []int
	server := &end{}
	link, err := Open(server.options(func(o *Options) {
		zmqOptions(t, d, true)(o)
		o.OnMessage = func(m wire.Message) {
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, len(m.(*wire.Submit).Tokens))
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	client := open(t, zmqOptions(t, d, false))
	var want []int
	for i := range 15 {
		n := []int{1, 10, 1000, 100_000, 1_000_000}[i%5]
		want = append(want, n)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if err := client.Send(ctx, &wire.Submit{ID: "x", Tokens: make([]int32, n)}); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	flush(t, client.Link)
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(sizes, want) {
		t.Errorf("sizes %v, want %v", sizes, want)
	}
}

func BenchmarkZMQ(b *testing.B) {
	d := socketDir(b)
	answers := make(chan struct{}, 1)
	var server *Link
	opened := make(chan struct{})
	echo := true
	so := (&end{}).options(func(o *Options) {
		zmqOptions(b, d, true)(o)
		o.OnMessage = func(m wire.Message) {
			<-opened
			if echo {
				_ = server.TrySend(m)
			}
		}
	})
	server, err := Open(so)
	if err != nil {
		b.Fatal(err)
	}
	close(opened)
	defer server.Close()
	client, err := Open((&end{}).options(func(o *Options) {
		zmqOptions(b, d, false)(o)
		o.OnMessage = func(wire.Message) { answers <- struct{}{} }
	}))
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	ask := func() {
		if err := client.Send(b.Context(), &wire.Renew{ID: 1}); err != nil {
			b.Fatal(err)
		}
		<-answers
	}
	ask()
	b.Run("roundtrip", func(b *testing.B) {
		var took []time.Duration
		for b.Loop() {
			start := time.Now()
			ask()
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2])/1e3, "p50-us")
		b.ReportMetric(float64(took[len(took)*99/100])/1e3, "p99-us")
	})
	echo = false
	b.Run("stream", func(b *testing.B) {
		chunk := &wire.Chunk{ID: "chatcmpl-0123456789abcdef", First: 3, Tokens: []int32{1234}, Logprobs: []float32{-1}}
		for b.Loop() {
			if err := client.Send(b.Context(), chunk); err != nil {
				b.Fatal(err)
			}
		}
		if err := client.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	})
}
