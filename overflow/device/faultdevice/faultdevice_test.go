package faultdevice_test

import (
	"bytes"
	"context"
	"errors"
	"math/bits"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/device/devicetest"
	"github.com/kvlend/kvlend/overflow/device/faultdevice"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T) (*faultdevice.Faulty, *device.Memory) {
	t.Helper()
	e, err := device.NewEngine(device.EngineOptions{InFlight: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	d, err := device.OpenDRAM(e, device.DRAMOptions{Name: "dram", Size: devicetest.MinSize})
	if err != nil {
		t.Fatal(err)
	}
	return faultdevice.NewFaulty(d, 1), e.Memory()
}

func TestWithoutFaultsItIsADevice(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) devicetest.Subject {
		f, m := open(t)
		return devicetest.Subject{Device: f, Memory: m, Allocates: true}
	})
}

func TestScript(t *testing.T) {
	const n = 4 * device.Align
	for _, c := range []struct {
		fault faultdevice.Fault
		write bool
		err   error
		wrote int // bytes of the write that have their effect; -1: unknown
	}{
		{faultdevice.Fault{Kind: faultdevice.IOError}, false, device.ErrIO, 0},
		{faultdevice.Fault{Kind: faultdevice.IOError}, true, device.ErrIO, -1},
		{faultdevice.Fault{Kind: faultdevice.Short}, false, device.ErrShort, 0},
		{faultdevice.Fault{Kind: faultdevice.Short}, true, device.ErrShort, n / 2},
		{faultdevice.Fault{Kind: faultdevice.Gone}, false, device.ErrGone, 0},
		{faultdevice.Fault{Kind: faultdevice.Gone}, true, device.ErrGone, 0},
		{faultdevice.Fault{Kind: faultdevice.Full}, true, device.ErrFull, 0},
		{faultdevice.Fault{Kind: faultdevice.Lost}, true, nil, 0},
		{faultdevice.Fault{Kind: faultdevice.Torn}, true, nil, n / 2},
		{faultdevice.Fault{Kind: faultdevice.Delay, Delay: time.Millisecond}, true, nil, n},
	} {
		t.Run(string(c.fault.Kind), func(t *testing.T) {
			f, mem := open(t)
			defer f.Close()
			buf := mem.TryGet(n)
			defer mem.Put(buf)
			devicetest.Fill(buf, 1)
			old := bytes.Clone(buf)
			if err := devicetest.Do(f, &device.IO{Write: true, Off: n, Buf: buf}); err != nil {
				t.Fatal(err)
			}
			devicetest.Fill(buf, 2)
			fresh := bytes.Clone(buf)
			c.fault.Off, c.fault.Len = 2*n-1, 1 // the last byte
			f.Script(c.fault)
			io := &device.IO{Write: c.write, Off: n, Buf: buf}
			err := devicetest.Do(f, io)
			var e *device.Error
			if !errors.Is(err, c.err) || err != nil && (!errors.As(err, &e) || e.Off != n || e.Len != n) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			if got := f.Injected()[c.fault.Kind]; got != 1 {
				t.Fatalf("%d faults were counted, not 1", got)
			}
			f.Clear()
			if err := devicetest.Do(f, &device.IO{Off: n, Buf: buf}); err != nil {
				t.Fatal(err)
			}
			want := append(bytes.Clone(fresh[:max(0, c.wrote)]), old[max(0, c.wrote):]...)
			if c.wrote >= 0 && !bytes.Equal(buf, want) {
				t.Fatalf("not the first %d bytes were written", c.wrote)
			}
		})
	}
}

func TestWrongFlipsOneBit(t *testing.T) {
	f, mem := open(t)
	defer f.Close()
	buf := mem.TryGet(device.Align)
	defer mem.Put(buf)
	clear(buf)
	f.Script(faultdevice.Fault{Kind: faultdevice.Wrong, After: 1, Times: 1})
	for i, want := range []int{0, 1, 0} {
		if err := devicetest.Do(f, &device.IO{Buf: buf}); err != nil {
			t.Fatal(err)
		}
		ones := 0
		for _, b := range buf {
			ones += bits.OnesCount8(b)
		}
		if ones != want {
			t.Fatalf("read %d has %d wrong bits, not %d", i, ones, want)
		}
	}
}

func TestStuck(t *testing.T) {
	f, mem := open(t)
	buf := mem.TryGet(2 * device.Align)
	defer mem.Put(buf)
	f.Script(faultdevice.Fault{Kind: faultdevice.Stuck, Times: 2}, faultdevice.Fault{Kind: faultdevice.Stuck, Ops: faultdevice.Syncs})
	done := make(chan *device.IO, 2)
	ios := []*device.IO{
		{Buf: buf[:device.Align], Done: func(io *device.IO) { done <- io }},
		{Off: device.Align, Buf: buf[device.Align:], Done: func(io *device.IO) { done <- io }},
	}
	if err := f.Submit(ios); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	synced := make(chan error)
	go func() { synced <- f.Sync(ctx) }()
	f.Cancel(ios[0])
	if io := <-done; io != ios[0] || !errors.Is(io.Err, device.ErrCancelled) {
		t.Fatalf("after Cancel: %v", io.Err)
	}
	cancel()
	if err := <-synced; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	select {
	case <-done:
		t.Fatal("a stuck I/O ended by itself")
	default:
	}
	closed := make(chan error)
	go func() { closed <- f.Close() }()
	if n := f.Release(); n < 1 || f.Stuck() != 0 {
		t.Fatalf("%d released, %d left", n, f.Stuck())
	}
	if io := <-done; io != ios[1] || io.Err != nil {
		t.Fatalf("after Release: %v", io.Err)
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
}

func TestRandomFollowsFromTheSeed(t *testing.T) {
	run := func() map[faultdevice.Kind]int {
		f, mem := open(t)
		defer f.Close()
		buf := mem.TryGet(device.Align)
		defer mem.Put(buf)
		f.Random(0.2, faultdevice.Fault{Kind: faultdevice.IOError, Ops: faultdevice.Reads})
		f.Random(0.1, faultdevice.Fault{Kind: faultdevice.Wrong})
		failed := 0
		for range 500 {
			if devicetest.Do(f, &device.IO{Buf: buf}) != nil {
				failed++
			}
		}
		got := f.Injected()
		if failed != got[faultdevice.IOError] || failed < 50 || failed > 150 || got[faultdevice.Wrong] == 0 {
			t.Errorf("%d reads failed, injected %v", failed, got)
		}
		return got
	}
	a, b := run(), run()
	for k, n := range a {
		if b[k] != n {
			t.Errorf("the same seed gave %v and %v", a, b)
		}
	}
}

func TestGoneStays(t *testing.T) {
	f, mem := open(t)
	defer f.Close()
	buf := mem.TryGet(device.Align)
	defer mem.Put(buf)
	f.Script(faultdevice.Fault{Kind: faultdevice.Gone, After: 1})
	for i, want := range []error{nil, device.ErrGone, device.ErrGone} {
		if err := devicetest.Do(f, &device.IO{Buf: buf}); !errors.Is(err, want) {
			t.Errorf("read %d: %v, want %v", i, err, want)
		}
	}
	if err := f.Sync(context.Background()); !errors.Is(err, device.ErrGone) {
		t.Errorf("sync: %v", err)
	}
}
