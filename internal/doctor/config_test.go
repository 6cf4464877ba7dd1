package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/nvlink/topology"
)

func disk(d configs.Disk) func(*configs.Config) {
	return func(c *configs.Config) {
		if d.Name == "" {
			d.Name = "ssd"
		}
		if d.NUMANode == 0 {
			d.NUMANode = -1
		}
		c.Models[0].Overflow.Devices = append(c.Models[0].Overflow.Devices, d)
	}
}

func stat(paths map[string]info) func(string) (fs.FileInfo, error) {
	return func(p string) (fs.FileInfo, error) {
		if i, ok := paths[p]; ok {
			return i, nil
		}
		return nil, fs.ErrNotExist
	}
}

func denied(path string, err error) func(string, bool) error {
	return func(p string, _ bool) error {
		if p == path {
			return err
		}
		return nil
	}
}

func TestConfiguration(t *testing.T) {
	regular := configs.Disk{Path: "/data/ssd", Size: 1 << 30}
	for _, c := range []struct {
		name  string
		edit  func(*configs.Config)
		host  func(*Host)
		what  string
		level Level
		words []string
	}{
		{"weights are missing", nil, func(h *Host) { h.Model = func(*configs.Model) error { return errors.New("no weights") } }, "model m", Problem, []string{"no weights", "kvlend model verify"}},
		{"all complete", nil, nil, "models", OK, []string{"2, all complete"}},
		{"all well", nil, nil, "host memory", OK, []string{"MiB", "16 GiB are available"}},
		{"arenas too large", func(c *configs.Config) { c.Models[0].Host.Bytes = 17 << 30 }, nil, "host memory", Problem, []string{"17", "16 GiB"}},
		{"a group too small", nil, func(h *Host) {
			h.Root = plain.with(files{"sys/fs/cgroup/memory.max": "1048576", "sys/fs/cgroup/memory.current": "0"}).fs()
		}, "host memory", Problem, []string{"1 MiB are left to the control group"}},
		{"port taken", nil, func(h *Host) { h.Listen = func(string) error { return unix.EADDRINUSE } }, "gateway", Problem, []string{"127.0.0.1:8000 is in use", "ss -ltnp"}},
		{"port forbidden", nil, func(h *Host) { h.Listen = func(string) error { return unix.EACCES } }, "gateway", Problem, []string{"1023"}},
		{"no such address", nil, func(h *Host) { h.Listen = func(string) error { return unix.EADDRNOTAVAIL } }, "gateway", Problem, nil},
		{"no key", func(c *configs.Config) { c.Gateway.APIKeys = []configs.APIKey{{File: "/none/key"}} }, nil, "API keys", Problem, []string{"/none/key"}},
		{"run directory for all", nil, func(h *Host) { h.Stat = stat(map[string]info{"/run/kv": {fs.ModeDir | 0o755, 0}}) }, "run directory", Problem, []string{"chmod 700"}},
		{"run directory is a file", nil, func(h *Host) { h.Stat = stat(map[string]info{"/run/kv": {0o600, 0}}) }, "run directory", Problem, nil},
		{"run directory not ours", nil, func(h *Host) {
			h.Stat, h.Access = stat(map[string]info{"/run/kv": {fs.ModeDir | 0o700, 0}}), denied("/run/kv", unix.EACCES)
		}, "run directory", Problem, []string{"permission denied"}},
		{"run directory to be made", nil, func(h *Host) { h.Access = denied("/run", unix.EROFS) }, "run directory", Problem, []string{"/run cannot be written"}},
		{"read-only", nil, func(h *Host) { h.Space = func(string) (Filesystem, error) { return Filesystem{ReadOnly: true}, nil } }, "run directory", Problem, []string{"read-only"}},
		{"audit", func(c *configs.Config) { c.Audit.Dir = "/var/a" }, func(h *Host) { h.Access = denied("/var", unix.EACCES) }, "audit", Problem, nil},
		{"threads", func(c *configs.Config) { c.Models[0].Threads, c.Models[1].Threads = 6, 6 }, nil, "threads", Warning, []string{"12", "8 cores"}},
		{"open to all", func(c *configs.Config) { c.Gateway.Listen = "0.0.0.0:80" }, nil, "gateway.listen", Warning, nil},
		{"disk", disk(regular), nil, "m/ssd", OK, []string{"/data", "O_DIRECT"}},
		{"disk full", disk(regular), func(h *Host) { h.Space = func(string) (Filesystem, error) { return Filesystem{Free: 1 << 20}, nil } }, "m/ssd", Problem, []string{"1 GiB", "1 MiB are free"}},
		{"disk without O_DIRECT", disk(regular), func(h *Host) { h.Direct = func(string) error { return unix.EINVAL } }, "m/ssd", Warning, []string{"page cache"}},
		{"disk that is there", disk(regular), func(h *Host) { h.Stat = stat(map[string]info{"/data/ssd": {0o600, 1 << 30}}) }, "m/ssd", OK, []string{"pool check"}},
		{"disk that is there, not ours", disk(regular), func(h *Host) {
			h.Stat, h.Access = stat(map[string]info{"/data/ssd": {0o600, 1 << 30}}), denied("/data/ssd", unix.EACCES)
		}, "m/ssd", Problem, nil},
		{"disk half made", disk(regular), func(h *Host) {
			h.Stat = stat(map[string]info{"/data/ssd": {0o600, 1<<30 - 1<<20}})
			h.Space = func(string) (Filesystem, error) { return Filesystem{Type: "xfs", Free: 2 << 20}, nil }
		}, "m/ssd", OK, []string{"xfs"}},
		{"disk in no directory", disk(regular), func(h *Host) { h.Access = denied("/data", unix.ENOENT) }, "m/ssd", Problem, []string{"/data cannot be written"}},
		{"disk is a directory", disk(regular), func(h *Host) { h.Stat = stat(map[string]info{"/data/ssd": {fs.ModeDir | 0o700, 0}}) }, "m/ssd", Problem, nil},
		{"disk out of reach", disk(regular), func(h *Host) { h.Stat = func(string) (fs.FileInfo, error) { return nil, unix.EACCES } }, "m/ssd", Problem, nil},
		{"no such device", disk(configs.Disk{Path: "/dev/nvme9n1"}), nil, "m/ssd", Problem, []string{"lsblk"}},
		{"device not ours", disk(configs.Disk{Path: "/dev/nvme0n1"}), func(h *Host) {
			h.Stat, h.Access = stat(map[string]info{"/dev/nvme0n1": {fs.ModeDevice | 0o660, 0}}), denied("/dev/nvme0n1", unix.EACCES)
		}, "m/ssd", Problem, []string{"disk"}},
		{"device", disk(configs.Disk{Path: "/dev/nvme0n1"}), func(h *Host) { h.Stat = stat(map[string]info{"/dev/nvme0n1": {fs.ModeDevice | 0o660, 0}}) }, "m/ssd", OK, nil},
		{"memory on no node", disk(configs.Disk{Path: "dram", Size: 1 << 30, NUMANode: 5}), nil, "m/ssd", Problem, []string{"no NUMA node 5"}},
		{"buffers that cannot be locked", disk(regular), func(h *Host) { h.Rlimit = limitOf(unix.RLIMIT_MEMLOCK, 1<<20) }, "locked memory", Warning, []string{"32 MiB"}},
		{"no buffers to lock", nil, func(h *Host) { h.Rlimit = limitOf(unix.RLIMIT_MEMLOCK, 1<<20) }, "locked memory", OK, nil},
	} {
		h := machine(plain)
		if c.host != nil {
			c.host(h)
		}
		r := examine(t, h, Options{System: system(t, "", c.edit), RunDir: "/run/kv"})
		expect(t, c.name, r, c.what, c.level, c.words...)
		if r.OK != (r.Problems == 0) || c.level == Problem && r.OK {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}

// TestFilesShareADisk: what fits alone need not fit together.
func TestFilesShareADisk(t *testing.T) {
	h := machine(plain)
	h.Space = func(string) (Filesystem, error) { return Filesystem{Type: "ext4", Free: 3 << 30}, nil }
	r := examine(t, h, Options{RunDir: "/run/kv", System: system(t, "", func(c *configs.Config) {
		disk(configs.Disk{Name: "a", Path: "/data/a", Size: 2 << 30})(c)
		disk(configs.Disk{Name: "b", Path: "/data/b", Size: 2 << 30})(c)
	})})
	expect(t, "first", r, "m/a", OK)
	expect(t, "second", r, "m/b", Problem, "with the files before it 4 GiB")
}

func TestRunning(t *testing.T) {
	h := machine(plain)
	h.Listen = func(string) error { return unix.EADDRINUSE }
	h.Stat = stat(map[string]info{"/run/kv": {fs.ModeDir | 0o700, 0}})
	r := examine(t, h, Options{System: system(t, "", func(c *configs.Config) { c.Models[0].Host.Bytes = 17 << 30 }), RunDir: "/run/kv", Running: true})
	if !r.OK {
		t.Errorf("%+v", r)
	}
	expect(t, "running", r, "gateway", OK, "a running system")
	expect(t, "running", r, "host memory", OK, "a running system")
}

func TestCUDAConfiguration(t *testing.T) {
	small := func(inv *topology.Inventory) { inv.GPUs[1].MemoryFree = 1 << 20 }
	for _, c := range []struct {
		name   string
		fabric string
		edit   func(*topology.Inventory)
		conf   func(*configs.Config)
		what   string
		level  Level
		words  []string
	}{
		{"all well", "", nil, nil, "gpu1 to gpu0", OK, []string{"50 GB/s (nvml)"}},
		{"device", "", nil, nil, "device gpu1", OK, []string{"GPU 1, H100"}},
		{"memory", "", nil, nil, "memory of GPU 1", OK, []string{"70 GiB of 80 GiB"}},
		{"host memory", "", nil, nil, "host memory", OK, []string{"layers that are computed", "up to 4 MiB"}},
		{"memory taken", "", small, nil, "memory of GPU 1", Problem, []string{"1 MiB of 80 GiB are free"}},
		{"no such GPU", "", func(inv *topology.Inventory) { inv.GPUs = inv.GPUs[:1] }, nil, "device gpu1", Problem, []string{"no GPU 1"}},
		{"no such GPU, nvml", ", topology: nvml", func(inv *topology.Inventory) { inv.GPUs = inv.GPUs[:1] }, nil, "links", Problem, []string{"no GPU 1"}},
		{"lost", "", func(inv *topology.Inventory) { inv.GPUs[1].Fault = "gone" }, nil, "device gpu1", Problem, []string{"gone"}},
		{"MIG", "", func(inv *topology.Inventory) { inv.GPUs[1].MIG = topology.On }, nil, "device gpu1", Warning, []string{"MIG"}},
		{"less memory than written", "", nil, func(c *configs.Config) { c.Devices[1].Memory = 141e9 }, "device gpu1", Warning, []string{"80 GiB", "141"}},
		{"nothing says which", "", nil, func(c *configs.Config) { c.Devices[1].Name, c.Models[1].Device = "big", "big" }, "device big", Problem, nil},
		{"no peer access", "", func(inv *topology.Inventory) { connect(inv, topology.P2P{Write: "not supported"}) }, nil, "gpu1 to gpu0", Warning, []string{"not supported", "PCIe"}},
		{"nothing known of the link", ", topology: config", nil, nil, "gpu1 to gpu0", Note, []string{"asked last"}},
		{"what GPUs cannot have", "", nil, func(c *configs.Config) { c.Lending.LinkBudget = 1e9 }, "fabric", Problem, []string{"lending.link_budget"}},
		{"one GPU for two devices", "", small, func(c *configs.Config) { c.Devices[1].GPU = "GPU-00000000" }, "memory of GPU 0", OK, nil},
	} {
		inv := inventory()
		if c.edit != nil {
			c.edit(inv)
		}
		h := machine(withGPUs)
		h.GPUs = says(inv, nil)
		r := examine(t, h, Options{Build: Build{CUDA: true}, System: system(t, "fabric: {kind: cuda"+c.fabric+"}", c.conf), RunDir: "/run/kv"})
		expect(t, c.name, r, c.what, c.level, c.words...)
	}
	r := examine(t, machine(plain), Options{System: system(t, "fabric: {kind: cuda}", nil), RunDir: "/run/kv"})
	expect(t, "pure Go", r, "fabric", Problem, "-tags cuda")
	expect(t, "pure Go", r, "devices", Problem)
	expect(t, "pure Go", r, "links", Note, "only the links of the configuration")
}

// TestMeasuredLinks shows which bandwidths count.
func TestMeasuredLinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "links.json")
	if err := os.WriteFile(path, []byte(`{"version":1,"fabric":"cuda","taken":"2026-01-02T03:04:05Z","links":[{"from":"GPU-11111111","to":"GPU-00000000","bytes_per_sec":4.2e10}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	h := machine(withGPUs)
	h.GPUs = says(inventory(), nil)
	r := examine(t, h, Options{Build: Build{CUDA: true}, System: system(t, "fabric: {kind: cuda, measured: "+path+"}", nil), RunDir: "/run/kv"})
	expect(t, "measured", r, "gpu1 to gpu0", OK, "42 GB/s (measured)")
	want := []Link{{"gpu1", "gpu0", 4.2e10, topology.FromMeasured}, {"gpu0", "gpu1", 50e9, topology.FromNVML}}
	if !slices.Equal(r.Links, want) {
		t.Errorf("%+v, want %+v", r.Links, want)
	}
}

// TestWeights counts the files of models.
func TestWeights(t *testing.T) {
	h := machine(plain.with(files{"models/x/a.safetensors": "12345", "models/x/b.safetensors": "123", "models/x/config.json": "1"}))
	d := &doctor{Host: h, Options: Options{System: system(t, "", func(c *configs.Config) {})}}
	if d.weights() != 0 {
		t.Error("built-in models have files")
	}
	cfg := *d.System.Config
	cfg.Models = slices.Clone(cfg.Models)
	cfg.Models[0].Source, cfg.Models[1].Source = "/models/x", "/models/x"
	d.System.Config = &cfg
	if n := d.weights(); n != 8 {
		t.Errorf("%d bytes, want 8", n)
	}
}
