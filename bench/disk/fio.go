package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tuning is one way to run fio.
type tuning struct {
	Name         string
	submit, reap int // I/Os handed over at once, I/Os waited for; 0: one
	needsDepth   int // below it the tuning is the same as another
	extra        []string
}

// tunings are the settings that fio's best is chosen from, at each point. All
// use io_uring, registered buffers in huge pages, registered files, and no
// latency clocks.
var tunings = []tuning{
	{Name: "plain"},
	{Name: "batches of 4", submit: 4, reap: 1, needsDepth: 8},
	{Name: "batches of 8", submit: 8, reap: 1, needsDepth: 16},
	{Name: "waits for 8", submit: 8, reap: 8, needsDepth: 16},
}

func tuningsAt(depth int) []tuning {
	return slices.DeleteFunc(slices.Clone(tunings), func(t tuning) bool { return t.needsDepth > depth })
}

// sample is one measurement of reads or writes.
type sample struct {
	bytesPerSec float64
	cpuPerGB    float64 // seconds per 1e9 bytes
	calls       float64 // submission calls per I/O; 0: not known
	allocs      float64 // per I/O; 0 for fio
	median, p99 float64 // latency in seconds; 0 for fio
}

// fioMemory has the C library ask for transparent huge pages, as our engine does.
const fioMemory = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"

// fioArgs is the command line for l on path.
func fioArgs(path string, l load, run time.Duration, t tuning) []string {
	args := []string{
		"--name=kvlend", "--filename=" + path, "--rw=" + l.fioName(), "--norandommap", "--randrepeat=0", "--fallocate=none",
		"--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1", "--nonvectored=1",
		"--mem_align=2m", "--gtod_reduce=1", "--thread", "--output-format=json",
		"--bs=" + strconv.FormatInt(l.block, 10), "--iodepth=" + strconv.Itoa(l.depth), "--size=" + strconv.FormatInt(l.span, 10),
		"--time_based", fmt.Sprintf("--runtime=%dms", run.Milliseconds()),
	}
	if !l.write {
		args = append(args, "--readonly")
	}
	if l.syncEvery > 0 {
		args = append(args, "--fdatasync="+strconv.Itoa(l.syncEvery))
	}
	if t.submit > 0 {
		args = append(args, fmt.Sprintf("--iodepth_batch_submit=%d", t.submit),
			fmt.Sprintf("--iodepth_batch_complete_min=%d", t.reap), fmt.Sprintf("--iodepth_batch_complete_max=%d", l.depth))
	}
	return append(args, t.extra...)
}

// fioName is what fio calls it.
func (l load) fioName() string {
	name := "read"
	if l.write {
		name = "write"
	}
	if l.sequential {
		return name
	}
	return "rand" + name
}

func runFio(ctx context.Context, path string, l load, run time.Duration, t tuning) (sample, error) {
	cmd := exec.CommandContext(ctx, "fio", fioArgs(path, l, run, t)...)
	cmd.Env = append(os.Environ(), fioMemory)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return sample{}, fmt.Errorf("fio: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return parseFio(out, l.write)
}

// fioVersion also says whether there is one.
func fioVersion(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "fio", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("fio is the yardstick and cannot be run (Debian: apt-get install fio): %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func parseFio(out []byte, write bool) (sample, error) {
	// fio may put notes before the JSON.
	if i := strings.IndexByte(string(out), '{'); i > 0 {
		out = out[i:]
	}
	type direction struct {
		IOBytes float64 `json:"io_bytes"`
		Runtime float64 `json:"runtime"` // milliseconds
	}
	var r struct {
		Jobs []struct {
			Error      int       `json:"error"`
			Read       direction `json:"read"`
			Write      direction `json:"write"`
			JobRuntime float64   `json:"job_runtime"` // milliseconds
			User       float64   `json:"usr_cpu"`     // percent of the runtime
			System     float64   `json:"sys_cpu"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return sample{}, fmt.Errorf("fio's output: %w", err)
	}
	if len(r.Jobs) != 1 {
		return sample{}, fmt.Errorf("fio reports %d jobs, want 1", len(r.Jobs))
	}
	j := r.Jobs[0]
	did := j.Read
	if write {
		did = j.Write
	}
	if j.Error != 0 || did.IOBytes <= 0 || did.Runtime <= 0 {
		return sample{}, errors.New("fio read or wrote nothing")
	}
	cpu := (j.User + j.System) / 100 * j.JobRuntime / 1e3
	return sample{bytesPerSec: did.IOBytes / did.Runtime * 1e3, cpuPerGB: cpu / did.IOBytes * 1e9}, nil
}
