// Package cuda is the fabric on NVIDIA GPUs: arenas in device memory that
// processes share, and streams that copy between them over NVLink or PCIe. It is
// part of builds with the tag "cuda" and cgo; tools/cuda/setup installs the
// headers that it needs. Without the tag it is empty.
//
// # The driver
//
// Everything goes through the driver API. The library, libcuda.so.1, is opened
// at run time and its functions are kept in a table (driver.c), so that one
// binary starts on machines with and without a GPU and can say what is missing,
// and so that tests put a fake driver in its place. That is also why there is no
// binding of others underneath: gorgonia.org/cu links libcuda, and ends the
// process when it finds no GPU.
//
// # Threads
//
// Each device has one goroutine, locked to its thread, that owns the primary
// context: it makes and ends it, allocates, opens and frees, compiles kernels. A
// stream has a goroutine that issues its operations and one that waits for them;
// their calls make the context current in the same crossing into C, so that
// they need no thread of their own and no hop to another one. Functions given
// to Stream.Call run on the issuing goroutine once all before them has ended.
// Host functions of CUDA are not used: they may not call the driver, which
// functions given to Call do, and do not run at all after an error.
//
// # Memory
//
// An arena of one process is opened in others through a Handle. There are two
// kinds of memory. VMM memory is exported as a file descriptor that travels over
// a Unix socket or is inherited; who opens it needs no context on the device
// that holds it, and it lives until the last process has closed it. Where the
// driver has none, memory is exported by CUDA IPC: 64 bytes, valid as long as
// the exporting process lives and keeps the arena, opened once per process, in
// a context on the arena's own device. Memory of new arenas is zero.
//
// Host arenas are pinned memory that all devices reach, allocated here or
// registered over memory that others made, say the shm fabric.
//
// # Copies
//
// Neighbouring pieces of a list become runs. Runs shorter than the crossover are
// copied by one kernel that reads a list in pinned memory; longer ones by the
// copy engine, all in one call where the driver has cuMemcpyBatchAsync. The
// crossover is measured once per device, between two ranges of its own memory,
// or set.
//
// A stream copies on its own device when that device reaches both ends; else on
// one that does; else through pinned buffers: gathered by the device at one
// end, scattered by the one at the other. Fabric.Paths says which pairs reach
// each other and why the others do not, and Config.Notice hears of the first
// copy that takes a detour.
//
// # Ordering between processes
//
// An event that completed happens after the bytes were written, for every
// device and the host. To hand bytes to another process, wait for the event and
// then tell that process; see package shm. Nothing orders a copy against those
// of other processes: guards (package lsc) detect torn blocks.
package cuda
