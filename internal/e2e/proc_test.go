package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// processState is the state of a process in a word, "" if it is gone. A zombie
// is gone: it waits for whoever adopted it.
func processState(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// pid (name, which may hold anything) state ...
	rest := raw[bytes.LastIndexByte(raw, ')')+1:]
	f := bytes.Fields(rest)
	if len(f) == 0 || string(f[0]) == "Z" || string(f[0]) == "X" {
		return ""
	}
	return string(f[0])
}

// sharedMemory is the inodes of the memfds that a process maps or holds.
func sharedMemory(pid int) map[uint64]bool {
	out := map[uint64]bool{}
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		if len(f) > 5 && strings.HasPrefix(f[5], "/memfd:kvlend") {
			if inode, err := strconv.ParseUint(f[4], 10, 64); err == nil {
				out[inode] = true
			}
		}
	}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err != nil || !strings.HasPrefix(to, "/memfd:kvlend") {
			continue
		}
		var st syscall.Stat_t
		if syscall.Stat(fd, &st) == nil {
			out[st.Ino] = true
		}
	}
	return out
}

// holders lists the processes that hold any of the memory.
func holders(memory map[uint64]bool) []int {
	var out []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		for inode := range sharedMemory(pid) {
			if memory[inode] {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}

// unixSockets lists the Unix sockets with a path below dir.
func unixSockets(t testing.TB, dir string) []string {
	t.Helper()
	raw, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if p := f[len(f)-1]; strings.HasPrefix(p, dir+"/") {
			out = append(out, p)
		}
	}
	return out
}

// resident is a process's resident set in bytes (/proc/PID/smaps_rollup).
func resident(t testing.TB, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == "Rss:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no Rss in /proc/%d/smaps_rollup", pid)
	return 0
}
