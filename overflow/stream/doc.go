// Package stream makes a device of the overflow pool look like a far arena, so
// that whatever copies spans with nvlink.Stream (the layer stream cache, moves
// in the background) works on DRAM modules and SSDs unchanged.
//
// An Arena is a device; a span of it is a range of the device. A Stream copies
// between such arenas and arenas that the host can address, in the order in
// which it was told to, by asynchronous I/O through staging buffers.
//
// # Plan of a batch
//
// CopyBatch sorts the pieces by device and offset and joins neighbours into
// extents of at most MaxRead bytes: one I/O each. The extents of a device go
// there in one Submit, as far as there are staging buffers; where they are
// scarce, devices take turns in proportion to their shares of the batch, so that
// all of them work until the end.
//
// # Order
//
// What a stream does becomes visible strictly in the order of its calls:
// destinations in host memory are written, functions run and events complete
// one after another. I/O runs ahead of that order:
//
//   - A read starts as soon as it is enqueued and there is a staging buffer,
//     also before earlier batches have completed and while earlier Calls run. Its
//     bytes wait in the buffer for their turn. What a Call does to a device by
//     other ways is therefore not seen by the reads behind it; enqueue WaitEvent
//     of an event recorded behind the Call, or the reads only afterwards.
//   - A write takes its source's bytes when all reads and calls before it are
//     over, and may fly together with the writes before it.
//   - Extents start in order: what cannot start yet (a write behind reads, a read
//     that overlaps a write before it, a wait for an event that is not complete)
//     holds back what is behind it.
//   - Nothing passes a WaitEvent: I/O behind it starts when that event is done.
//
// A batch with reads and writes does its reads first.
//
// # Failures
//
// The extents of a batch live or die one by one: after an error the others are
// transferred all the same. With Options.Timeout an I/O that the device does not
// answer is cancelled and counts as failed, and with it what was enqueued so far
// for that device and is not under way yet. If not even that brings it back, the
// stream abandons it: its buffer stays out until the device lets go of it, and as
// long as it has not, every further I/O of this stream to that device fails at
// once with ErrAbandoned. So a device that is stuck costs each stream one
// Timeout (and a quarter), whatever was queued, and others go on: order makes
// batches behind wait that long and no longer.
//
// A write that was abandoned may still reach the device, at any later time: its
// range must not be given to anyone else before the device was closed.
//
// # Staging
//
// A stream uses at most Options.Staging bytes of buffers, and takes them in the
// order of its extents, so that what runs ahead never starves what is due. When
// the pool of buffers is empty because others hold it, a stream goes on with one
// extent at a time in a buffer of its own: streams cannot deadlock over buffers.
// Submit waits while the engine is full, and with it a stream that submits: the
// engine's bound on bytes in flight should be at least the sum of the streams'
// Staging, so that no stuck device ever fills it.
package stream
