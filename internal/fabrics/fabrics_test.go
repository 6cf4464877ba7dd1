package fabrics

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/nvlink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a system on a fabric: fabric is YAML.
func server(t *testing.T, fabric, more string) *configs.Config {
	t.Helper()
	cfg, err := configs.Parse([]byte(`version: 1
fabric: {`+fabric+`}
devices: [{name: gpu0}, {name: gpu1}, {name: host}]
links: [{from: gpu0, to: gpu1, bandwidth: 1GB/s}, {from: gpu0, to: host, bandwidth: 1GB/s}, {from: gpu1, to: host, bandwidth: 1GB/s}]
models:
  - {name: m, source: builtin:atlas, role: master, device: gpu0, arena: 4MiB`+more+`}
  - {name: w, source: builtin:birch, role: worker, device: gpu1, arena: 6528KiB}
`), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func open(t *testing.T, o Options) Fabric {
	t.Helper()
	o.Log = hclog.NewNullLogger()
	f, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// handDown gives a descriptor of an arena as another process would get it.
func handDown(t *testing.T, o *Owned) int {
	t.Helper()
	if o.File == nil {
		return -1
	}
	fd, err := unix.FcntlInt(o.File.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func closeArena(t *testing.T, a nvlink.Arena) {
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}

// crossing creates an arena in one fabric, opens it in another, and copies host
// memory there and back.
func crossing(t *testing.T, cfg *configs.Config) (*Owned, Fabric) {
	t.Helper()
	const size = 64 << 10
	made := open(t, Options{Config: cfg})
	o, err := made.Create("w", "gpu1", size)
	if err != nil {
		t.Fatal(err)
	}
	closeArena(t, o)
	used := open(t, Options{Config: cfg, Device: "gpu0"})
	a, err := used.Open(o.Handle, handDown(t, o), "w", "gpu1", size)
	if err != nil {
		t.Fatal(err)
	}
	closeArena(t, a)
	var host [2]nvlink.Arena
	for i := range host {
		if host[i], err = used.Host("h", "", size); err != nil {
			t.Fatal(err)
		}
		closeArena(t, host[i])
	}
	for i := range host[0].Bytes() {
		host[0].Bytes()[i] = byte(i*7 + i>>8)
	}
	s, err := used.NewStream("gpu0", "test")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]nvlink.Arena{{a, host[0]}, {host[1], a}} {
		if err := s.CopyBatch([]nvlink.Copy{{Dst: nvlink.Span{Arena: c[0], Len: size}, Src: nvlink.Span{Arena: c[1], Len: size}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(host[0].Bytes(), host[1].Bytes()) {
		t.Error("what came back is not what was sent")
	}
	return o, used
}

func TestHostMemory(t *testing.T) {
	for _, fabric := range []string{"kind: shm", "kind: shm, pace: true"} {
		o, f := crossing(t, server(t, fabric, ", host: {device: host}"))
		if o.Handle != "" || o.File == nil || o.Bytes() == nil {
			t.Errorf("handle %q, file %v", o.Handle, o.File)
		}
		if f.Emulated() != strings.Contains(fabric, "pace") {
			t.Errorf("%s: Emulated is %v", fabric, f.Emulated())
		}
		if _, err := f.Open("vmm:1:2:3", handDown(t, o), "w", "gpu1", 64<<10); err == nil || !strings.Contains(err.Error(), "another fabric") {
			t.Errorf("a handle of another fabric: %v", err)
		}
		if _, err := f.Open("", handDown(t, o), "w", "gpu1", 1); err == nil {
			t.Error("an arena of another size was opened")
		}
	}
}

// TestWhatThisBuildCannotServe is said before anything starts.
func TestWhatThisBuildCannotServe(t *testing.T) {
	cfg := server(t, "kind: cuda", "")
	if err := Check(cfg); haveCUDA && err != nil || !haveCUDA && (err == nil || !strings.Contains(err.Error(), "tools/cuda/setup")) {
		t.Errorf("cuda: %v", err)
	}
	if err := Check(server(t, "kind: shm", "")); err != nil {
		t.Errorf("shm: %v", err)
	}
	if !haveCUDA {
		if _, err := Open(Options{Config: cfg}); err == nil {
			t.Error("a build without cuda opened its fabric")
		}
		return
	}
	cfg = server(t, "kind: cuda", ", overflow: {devices: [{name: d, path: /nowhere/d, size: 1GiB}]}")
	if err := Check(cfg); err == nil || !strings.Contains(err.Error(), "models[0] (m).overflow.devices") {
		t.Errorf("disks: %v", err)
	}
	cfg = server(t, "kind: cuda", "")
	cfg.Lending.LinkBudget = 1e9
	if err := Check(cfg); err == nil || !strings.Contains(err.Error(), "lending.link_budget: 1GB/s") {
		t.Errorf("a budget: %v", err)
	}
}
