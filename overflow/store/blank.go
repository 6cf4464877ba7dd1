package store

import (
	"context"
	"errors"
	"fmt"
	"math/bits"

	"github.com/kvlend/kvlend/overflow/device"
)

const (
	// samplePlaces is how many pages Format looks at between the header and the
	// end, spread over the device; sampleBatch of them are read at once.
	samplePlaces = 512
	sampleBatch  = 32
)

// Places are the offsets of the pages that are looked at in size bytes from off on,
// before it is believed that they were never used: one at a pseudo-random place of
// each of samplePlaces equal parts, or all.
func Places(off, size int64) []int64 {
	pages := size / device.Align
	n := min(pages, samplePlaces)
	out := make([]int64, n)
	for i := range n {
		from, to := i*pages/n, (i+1)*pages/n
		hash, _ := bits.Mul64(uint64(i+1)*0x9e3779b97f4a7c15, uint64(to-from))
		out[i] = off + (from+int64(hash))*device.Align
	}
	return out
}

// Used is what is said of data that Format did not expect.
func Used(at int64, places int) string {
	return fmt.Sprintf("data at byte %d, which kvlend did not write; looked at the first MiB and at %d places of %d bytes", at, places, device.Align)
}

// used looks for data behind the header. Empty: it has found none.
func (d *disk) used(ctx context.Context) (detail string, err error) {
	fresh, err := device.NewUntouched()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, fresh.Close()) }()
	size := roundDown(d.dev.Info().Size)
	places := Places(headerBytes, size-headerBytes-tailBytes)
	for at := max(size-tailBytes, headerBytes); at < size; at += device.Align {
		places = append(places, at)
	}
	buf := d.memory(sampleBatch * device.Align)
	for done := 0; done < len(places); done += sampleBatch {
		some := places[done:min(done+sampleBatch, len(places))]
		flying := make([]*batch, 0, len(some))
		for i, off := range some {
			b, err := d.start(false, off, buf[i*device.Align:(i+1)*device.Align])
			if err != nil {
				return "", errors.Join(err, d.waitAll(ctx, flying))
			}
			flying = append(flying, b)
		}
		if err := d.waitAll(ctx, flying); err != nil {
			return "", err
		}
		for i, off := range some {
			if !fresh.Is(off, buf[i*device.Align:(i+1)*device.Align]) {
				return Used(off, len(places)), nil
			}
		}
	}
	return "", nil
}

func (d *disk) waitAll(ctx context.Context, flying []*batch) error {
	var errs []error
	for _, b := range flying {
		errs = append(errs, d.wait(ctx, b))
	}
	return errors.Join(errs...)
}
