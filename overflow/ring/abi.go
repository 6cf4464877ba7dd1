package ring

// The kernel's interface: linux/io_uring.h.

const (
	setupSQPoll       = 1 << 1
	setupSQAff        = 1 << 2
	setupCQSize       = 1 << 3
	setupClamp        = 1 << 4
	setupSubmitAll    = 1 << 7
	setupCoopTaskrun  = 1 << 8
	setupSQE128       = 1 << 10
	setupCQE32        = 1 << 11
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13

	featSingleMmap = 1 << 0
	featNoDrop     = 1 << 1
	featExtArg     = 1 << 8
	featMinTimeout = 1 << 15

	enterGetEvents = 1 << 0
	enterSQWakeup  = 1 << 1
	enterExtArg    = 1 << 3

	sqNeedWakeup = 1 << 0
	cqeMore      = 1 << 1

	registerOpBuffers     = 0
	registerOpFiles       = 2
	registerOpFilesUpdate = 6
	registerOpProbe       = 8

	opFsync       = 3
	opReadFixed   = 4
	opWriteFixed  = 5
	opPollAdd     = 6
	opAsyncCancel = 14
	opRead        = 22
	opWrite       = 23
	opUringCmd    = 46

	sqeFixedFile = 1 << 0

	fsyncDatasync    = 1 << 0
	pollAddMulti     = 1 << 0
	uringCmdFixed    = 1 << 0
	probeOpSupported = 1 << 0

	offSQRing = 0
	offSQEs   = 0x10000000

	nvmeURingCmdIO = 0xC0484E80 // _IOWR('N', 0x80, struct nvme_uring_cmd)
)

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	_                                                                      [3]uint32
	sqOff                                                                  sqOffsets
	cqOff                                                                  cqOffsets
}

type sqOffsets struct {
	head, tail, ringMask, ringEntries, flags, dropped, array, _ uint32
	_                                                           uint64
}

type cqOffsets struct {
	head, tail, ringMask, ringEntries, overflow, cqes, flags, _ uint32
	_                                                           uint64
}

// sqe is struct io_uring_sqe; in a ring for passthrough another 64 bytes follow.
type sqe struct {
	opcode      uint8
	flags       uint8
	ioprio      uint16
	fd          int32
	off         uint64
	addr        uint64
	len         uint32
	opFlags     uint32
	user        uint64
	bufIndex    uint16
	personality uint16
	spliceFD    int32
	tail        [16]byte // of a command: its first bytes
}

// cqe is struct io_uring_cqe; in a ring for passthrough another 16 bytes follow.
type cqe struct {
	user  uint64
	res   int32
	flags uint32
}

// getEventsArg is struct io_uring_getevents_arg.
type getEventsArg struct {
	sigmask     uint64
	sigmaskSize uint32
	minWaitUsec uint32
	ts          uint64
}

// timespec is struct __kernel_timespec.
type timespec struct{ sec, nsec int64 }

// filesUpdate is struct io_uring_files_update.
type filesUpdate struct {
	offset, _ uint32
	fds       uint64
}

// probeTable is struct io_uring_probe with all its entries.
type probeTable struct {
	lastOp, opsLen uint8
	_              uint16
	_              [3]uint32
	ops            [256]struct {
		op, _ uint8
		flags uint16
		_     uint32
	}
}
