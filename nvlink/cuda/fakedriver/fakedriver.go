// Package fakedriver builds a libcuda.so.1 that works on host memory, so that
// the host side of the CUDA fabric runs in tests without a GPU. libcuda/fake.h
// says what it does and which environment variables configure it.
package fakedriver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// ErrUnavailable is the reason of Build where a compiler or the headers are
// missing: tests skip, saying so.
var ErrUnavailable = errors.New("the fake driver cannot be built here")

// Build compiles the fake driver into dir and returns the library's path. It
// needs a C compiler ($CC or cc), NVIDIA's headers (tools/cuda/setup, or an -I
// in $CGO_CFLAGS) and the repository's sources.
func Build(dir string) (string, error) {
	_, self, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(self) {
		return "", fmt.Errorf("%w: the sources are not known (built with -trimpath?)", ErrUnavailable)
	}
	src := filepath.Join(filepath.Dir(self), "libcuda")
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if _, err := exec.LookPath(cc); err != nil {
		return "", fmt.Errorf("%w: no C compiler: %v", ErrUnavailable, err)
	}
	includes := includeFlags(filepath.Join(src, "..", "..", "..", ".."))
	if !hasHeader(includes) {
		return "", fmt.Errorf("%w: cuda.h is not in %q: run tools/cuda/setup", ErrUnavailable, includes)
	}
	lib := filepath.Join(dir, "libcuda.so.1")
	args := append([]string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"}, includes...)
	args = append(args, "-o", lib)
	for _, name := range []string{"fake.c", "memory.c", "stream.c"} {
		args = append(args, filepath.Join(src, name))
	}
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("fake driver: %w\n%s", err, out)
	}
	return lib, nil
}

// includeFlags are the places where the cuda build looks for headers.
func includeFlags(root string) []string {
	flags := []string{"-I" + filepath.Join(root, ".cache", "cuda", "include")}
	for _, f := range strings.Fields(os.Getenv("CGO_CFLAGS")) {
		if strings.HasPrefix(f, "-I") {
			flags = append(flags, f)
		}
	}
	return append(flags, "-I/usr/local/cuda/include")
}

func hasHeader(flags []string) bool {
	for _, f := range flags {
		if _, err := os.Stat(filepath.Join(strings.TrimPrefix(f, "-I"), "cuda.h")); err == nil {
			return true
		}
	}
	return false
}
