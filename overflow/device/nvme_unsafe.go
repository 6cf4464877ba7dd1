package device

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/overflow/ring"
)

// nvmeIdentify fills data (identifySize bytes) with what the controller says.
//
// unsafe: command and data are reachable until the call is over; the command's
// 72 bytes are struct nvme_passthru_cmd, which the request's number demands.
func nvmeIdentify(fd int, nsid, what uint32, data []byte) error {
	c := ring.Command{
		Opcode: nvmeAdminIdentify, NSID: nsid, CDW10: what,
		Addr: uint64(address(data)), DataLen: uint32(len(data)),
	}
	cmd := make([]byte, ring.CommandSize)
	c.Encode(cmd)
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), nvmeIoctlAdmin, uintptr(unsafe.Pointer(&cmd[0])))
	runtime.KeepAlive(data)
	if errno != 0 {
		return errno
	}
	if status != 0 {
		return nvmeError(uint32(status))
	}
	return nil
}
