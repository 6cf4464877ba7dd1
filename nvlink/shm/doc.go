// Package shm is the default fabric: memory that processes of one server
// really share, and streams that copy between arenas with the CPU.
//
// # Memory
//
// An arena is a memfd, sealed so that nobody can shrink or grow it. The
// supervisor creates it and hands the file down; it has no name in any file
// system, so nothing can leak: the memory is gone with the last process that
// holds it. Open takes the file in another process and believes nothing about
// it that it has not checked.
//
// # Ordering between processes
//
// All mappings of an arena show the same physical pages, which the hardware
// keeps coherent. A stream's copy is a plain memory copy: it has no order
// against anything but the stream's own events. An event that completed
// happens after the bytes were written (Go's channel close and receive). To
// hand bytes to another process, wait for the event and then do something
// that both processes see as synchronisation: an atomic store to a shared
// Region that the other side loads atomically, or a message through a socket.
// Both imply the barriers that amd64 and arm64 need. Bytes that a peer
// overwrites during a copy arrive torn; guards (package lsc) detect that.
//
// # Pacing
//
// With Config.Pace a copy between devices takes at least the latency plus the
// bytes over the bandwidth of its link, from when it was enqueued: the stream's
// goroutine wakes later than a copy engine would. A link is shared by all streams of
// this Fabric: batches cross it one after another, in the order in which they
// become runnable. Batches in two processes do not see each other.
package shm
