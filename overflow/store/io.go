package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlend/kvlend/overflow/device"
)

const defaultTimeout = 30 * time.Second

// disk does I/O on a device and waits for it, but not for ever.
type disk struct {
	dev     device.Device
	timeout time.Duration
	memory  func(int) []byte
}

func newDisk(dev device.Device, o *Options) disk {
	d := disk{dev: dev, timeout: o.IOTimeout, memory: o.Memory}
	if d.timeout <= 0 {
		d.timeout = defaultTimeout
	}
	if d.memory == nil {
		d.memory = heapMemory
	}
	return d
}

// batch is I/O in flight.
type batch struct {
	ios     []*device.IO
	pending atomic.Int64
	done    chan struct{}
}

// start submits reads or writes of buf in pieces that the device likes. An
// error means that nothing is in flight.
func (d *disk) start(write bool, off int64, buf []byte) (*batch, error) {
	piece := int64(len(buf))
	if m := d.dev.Info().MaxIO / device.Align * device.Align; m > 0 {
		piece = min(piece, m)
	}
	b := &batch{done: make(chan struct{})}
	finished := func(*device.IO) {
		if b.pending.Add(-1) == 0 {
			close(b.done)
		}
	}
	for at := int64(0); at < int64(len(buf)); at += piece {
		end := min(at+piece, int64(len(buf)))
		b.ios = append(b.ios, &device.IO{Write: write, Off: off + at, Buf: buf[at:end:end], Done: finished})
	}
	b.pending.Store(int64(len(b.ios)))
	return b, d.dev.Submit(b.ios)
}

// wait waits for a batch. When the context ends or the device does not answer
// in time, the I/O is abandoned: its buffer must not be used again.
func (d *disk) wait(ctx context.Context, b *batch) error {
	timer := time.NewTimer(d.timeout)
	defer timer.Stop()
	var stop error
	select {
	case <-b.done:
		for _, io := range b.ios {
			if io.Err != nil {
				return io.Err
			}
		}
		return nil
	case <-ctx.Done():
		stop = ctx.Err()
	case <-timer.C:
		stop = fmt.Errorf("store: device %s has not answered for %v", d.dev.Info().Name, d.timeout)
	}
	for _, io := range b.ios {
		d.dev.Cancel(io)
	}
	return stop
}

func (d *disk) transfer(ctx context.Context, write bool, off int64, buf []byte) error {
	b, err := d.start(write, off, buf)
	if err != nil {
		return err
	}
	return d.wait(ctx, b)
}

func (d *disk) read(ctx context.Context, off int64, buf []byte) error {
	return d.transfer(ctx, false, off, buf)
}

func (d *disk) write(ctx context.Context, off int64, buf []byte) error {
	return d.transfer(ctx, true, off, buf)
}

func (d *disk) sync(ctx context.Context) error {
	c, cancel := context.WithTimeoutCause(ctx, d.timeout,
		fmt.Errorf("store: device %s has not synced for %v", d.dev.Info().Name, d.timeout))
	defer cancel()
	err := d.dev.Sync(c)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return context.Cause(c)
	}
	return err
}
