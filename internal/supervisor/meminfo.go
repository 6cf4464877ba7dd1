package supervisor

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/kvlend/kvlend/configs"
)

// checkMemory refuses arenas that this machine cannot hold. Their pages appear
// when they are first used, so that too much would be noticed only under load.
// Devices refuse by themselves.
func (s *Supervisor) checkMemory() error {
	if s.opt.Fabric.Kind() != "shm" {
		return nil
	}
	free, err := availableMemory("/proc/meminfo")
	if err != nil {
		return nil // a kernel that does not say; nothing to compare with
	}
	var sum int64
	for _, m := range s.opt.System.Models {
		sum += m.AllocBytes()
	}
	if sum > free {
		return fmt.Errorf("models: their arenas and tails add up to %s, this machine has %s to spare (MemAvailable)",
			configs.Bytes(sum>>20<<20), configs.Bytes(free>>20<<20))
	}
	return nil
}

// availableMemory reads MemAvailable, in bytes.
func availableMemory(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		rest, ok := strings.CutPrefix(sc.Text(), "MemAvailable:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		return kib << 10, err
	}
	return 0, fmt.Errorf("%s has no MemAvailable", path)
}
