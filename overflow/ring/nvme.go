package ring

import "encoding/binary"

// NVMe opcodes of the I/O command set.
const (
	NVMeFlush = 0x00
	NVMeWrite = 0x01
	NVMeRead  = 0x02
)

// CommandSize is the size of an encoded Command, in bytes.
const CommandSize = 72

// Command is the kernel's struct nvme_uring_cmd: an NVMe command without the
// fields that the kernel fills in itself.
type Command struct {
	Opcode    uint8
	Flags     uint8
	NSID      uint32
	CDW2      uint32
	CDW3      uint32
	Addr      uint64 // of the data; NVMe sets it
	DataLen   uint32 // bytes
	CDW10     uint32
	CDW11     uint32
	CDW12     uint32
	CDW13     uint32
	CDW14     uint32
	CDW15     uint32
	TimeoutMS uint32 // 0: the kernel's
}

// Transfer is the read or write of blocks logical blocks (1 to 65536) of size
// blockSize from block first on.
func Transfer(write bool, nsid uint32, first uint64, blocks, blockSize int) Command {
	op := uint8(NVMeRead)
	if write {
		op = NVMeWrite
	}
	return Command{
		Opcode:  op,
		NSID:    nsid,
		DataLen: uint32(blocks * blockSize),
		CDW10:   uint32(first),
		CDW11:   uint32(first >> 32),
		CDW12:   uint32(blocks-1) & 0xffff, // counted from 0
	}
}

// Flush makes durable what the namespace's volatile cache holds.
func Flush(nsid uint32) Command { return Command{Opcode: NVMeFlush, NSID: nsid} }

// Encode writes c into the first CommandSize bytes of b.
func (c Command) Encode(b []byte) {
	le := binary.LittleEndian
	clear(b[:CommandSize])
	b[0], b[1] = c.Opcode, c.Flags
	le.PutUint32(b[4:], c.NSID)
	le.PutUint32(b[8:], c.CDW2)
	le.PutUint32(b[12:], c.CDW3)
	// 16: metadata, none
	le.PutUint64(b[24:], c.Addr)
	// 32: length of metadata, none
	le.PutUint32(b[36:], c.DataLen)
	for i, w := range []uint32{c.CDW10, c.CDW11, c.CDW12, c.CDW13, c.CDW14, c.CDW15, c.TimeoutMS} {
		le.PutUint32(b[40+4*i:], w)
	}
}
