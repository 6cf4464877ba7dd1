package device_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/device/devicetest"
)

const mib = 1 << 20

func TestCreateWritesEveryByte(t *testing.T) {
	e := engine(t, device.EngineOptions{})
	path := filepath.Join(t.TempDir(), "f")
	var last, total int64
	d, err := device.Open(context.Background(), e, device.Options{
		Path: path, Size: 9 * mib, Create: true, Progress: func(done, n int64) { last, total = done, n },
	})
	if err != nil {
		t.Fatal(err)
	}
	if i := d.Info(); i.Size != 9*mib || i.Name != path || i.Kind != device.File || last != total || total != 9*mib {
		t.Errorf("%+v, progress %d of %d", i, last, total)
	}
	buf := e.Memory().TryGet(9 * mib)
	defer e.Memory().Put(buf)
	if err := devicetest.Do(d, &device.IO{Buf: buf}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(buf[:device.Blank], make([]byte, device.Blank)) {
		t.Error("the beginning is not blank")
	}
	seen := map[string]bool{}
	for at := device.Blank; at < len(buf); at += device.Align {
		seen[string(buf[at:at+device.Align])] = true
	}
	if len(seen) != (len(buf)-device.Blank)/device.Align || seen[string(make([]byte, device.Align))] {
		t.Errorf("%d different pages", len(seen))
	}
	if n, err := d.(interface {
		Unwritten(off, n int64) (int64, error)
	}).Unwritten(0, 9*mib); n != 0 || err != nil {
		t.Errorf("%d bytes were not written, %v", n, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCreateGoesOn: a file that is too short or has holes is completed, and
// keeps what it holds.
func TestCreateGoesOn(t *testing.T) {
	e := engine(t, device.EngineOptions{})
	path := filepath.Join(t.TempDir(), "f")
	kept := bytes.Repeat([]byte("kept"), 1500) // ends within a page
	if err := os.WriteFile(path, kept, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{unix.Fallocate(int(f.Fd()), 0, 0, 2*mib), f.Truncate(3 * mib), f.Sync(), f.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	d, err := device.Open(context.Background(), e, device.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if i := d.Info(); i.Size != 3*mib || !strings.Contains(i.Degraded, "never written") {
		t.Errorf("a file with holes: %+v", i)
	}
	_, err = device.Measure(context.Background(), d, device.MeasureOptions{Written: true})
	if err == nil || !strings.Contains(err.Error(), "never written") {
		t.Errorf("measuring reads of holes: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := device.Open(ctx, e, device.Options{Path: path, Size: 8 * mib, Create: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("Create with a cancelled context: %v", err)
	}
	d, err = device.Open(context.Background(), e, device.Options{Path: path, Size: 8 * mib, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if i := d.Info(); i.Size != 8*mib || strings.Contains(i.Degraded, "never written") {
		t.Errorf("%+v", i)
	}
	buf := e.Memory().TryGet(3 * mib)
	defer e.Memory().Put(buf)
	if err := devicetest.Do(d, &device.IO{Buf: buf}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(buf, append(kept, make([]byte, 3*mib-len(kept))...)) {
		t.Error("what the file held has changed")
	}
}

func TestOpenRefuses(t *testing.T) {
	e := engine(t, device.EngineOptions{})
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    device.Options
		want string
	}{
		"no path":       {device.Options{}, "no Path"},
		"missing":       {device.Options{Path: filepath.Join(dir, "none")}, "no such file"},
		"no size":       {device.Options{Path: filepath.Join(dir, "none"), Create: true}, "Size must say"},
		"a directory":   {device.Options{Path: dir}, "neither a file nor"},
		"too small":     {device.Options{Path: path, Size: 2 * mib}, "1048576 bytes, 2097152 are wanted"},
		"odd size":      {device.Options{Path: path, Size: 5}, "Size 5"},
		"contradiction": {device.Options{Path: path, Size: mib, Create: true, ReadOnly: true}, "contradict"},
		"depth":         {device.Options{Path: path, Depth: -1}, "Depth -1"},
		"max I/O":       {device.Options{Path: path, MaxIO: 5}, "MaxIO 5"},
	} {
		var typed *device.Error
		_, err := device.Open(context.Background(), e, c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &typed) || typed.Op != "open" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, o := range map[string]device.DRAMOptions{
		"Name": {Size: mib}, "Size": {Name: "x", Size: 5}, "NUMANode": {Name: "x", Size: mib, NUMANode: -1},
	} {
		if _, err := device.OpenDRAM(e, o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := device.OpenNVMe(context.Background(), e, device.NVMeOptions{Path: path}); err == nil {
		t.Error("a file was opened as an NVMe namespace")
	}
}

func TestOneProcessOwnsIt(t *testing.T) {
	e, other := engine(t, device.EngineOptions{}), engine(t, device.EngineOptions{Portable: true})
	d := file(t, e, mib)
	path := d.Info().Path
	ro := device.Options{Name: "reader", Path: path, ReadOnly: true}
	for name, o := range map[string]device.Options{"write": {Path: path}, "read": ro, "create": {Path: path, Size: mib, Create: true}} {
		if _, err := device.Open(context.Background(), other, o); !errors.Is(err, device.ErrInUse) {
			t.Errorf("a second opening to %s: %v", name, err)
		}
	}
	if _, err := device.OpenDRAM(e, device.DRAMOptions{Name: d.Info().Name, Size: mib}); !errors.Is(err, device.ErrInUse) {
		t.Errorf("a second device of the same name: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	// Readers get along, and cannot write.
	a, err := device.Open(context.Background(), e, ro)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := device.Open(context.Background(), other, ro)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	buf := e.Memory().TryGet(device.Align)
	defer e.Memory().Put(buf)
	if err := devicetest.Do(a, &device.IO{Write: true, Buf: buf}); !errors.Is(err, device.ErrReadOnly) {
		t.Errorf("a write to a device opened for reading: %v", err)
	}
	if err := devicetest.Do(a, &device.IO{Buf: buf}); err != nil {
		t.Error(err)
	}
}

// TestShrunkFileIsGone: what ends before an I/O does is an error, never zeros.
func TestShrunkFileIsGone(t *testing.T) {
	for name, o := range engines {
		t.Run(name, func(t *testing.T) {
			e := engine(t, o)
			d := file(t, e, 2*mib)
			if err := os.Truncate(d.Info().Path, mib+8192); err != nil {
				t.Fatal(err)
			}
			buf := e.Memory().TryGet(mib)
			defer e.Memory().Put(buf)
			var typed *device.Error
			err := devicetest.Do(d, &device.IO{Off: mib, Buf: buf})
			if !errors.Is(err, device.ErrGone) || !errors.As(err, &typed) || typed.Off != mib || typed.Len != mib || typed.Op != "read" {
				t.Error(err)
			}
			if s := d.(device.Metered).Meter().Stats(); s.Errors != 1 {
				t.Errorf("%d errors were counted", s.Errors)
			}
		})
	}
}

func TestDegradedIsSaid(t *testing.T) {
	e := engine(t, device.EngineOptions{Portable: true, Threads: 3})
	d := file(t, e, mib)
	if !strings.Contains(d.Info().Degraded, "pread in 3 threads") || e.Stats().Degraded == "" {
		t.Errorf("%q, %q", d.Info().Degraded, e.Stats().Degraded)
	}
	path := d.Info().Path
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d, err := device.Open(context.Background(), e, device.Options{Path: path, Buffered: true})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(d.Info().Degraded, "page cache") {
		t.Errorf("%q", d.Info().Degraded)
	}
}

// TestBlockDevice runs the suite on a loop device, where one can be had.
func TestBlockDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, make([]byte, devicetest.MinSize), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", path).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device: %v: %s", err, out)
	}
	loop := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", loop).CombinedOutput(); err != nil {
			t.Errorf("detach %s: %v: %s", loop, err, out)
		}
	})
	devicetest.Run(t, func(t *testing.T) devicetest.Subject {
		e := engine(t, device.EngineOptions{InFlight: 2 * mib})
		d, err := device.Open(context.Background(), e, device.Options{Name: "block", Path: loop, Create: true})
		if err != nil {
			t.Fatal(err)
		}
		if i := d.Info(); i.Kind != device.Block || i.Size != devicetest.MinSize {
			t.Errorf("%+v", i)
		}
		if _, err := device.Open(context.Background(), e, device.Options{Name: "again", Path: loop}); !errors.Is(err, device.ErrInUse) {
			t.Errorf("a second opening: %v", err)
		}
		return devicetest.Subject{Device: d, Memory: e.Memory()}
	})
}

func TestDRAMIsMapped(t *testing.T) {
	e := engine(t, device.EngineOptions{})
	d, err := device.OpenDRAM(e, device.DRAMOptions{Name: "m", Size: mib, NUMANode: 1})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Logf("memory cannot be placed here: %v", err)
		d, err = device.OpenDRAM(e, device.DRAMOptions{Name: "m", Size: mib})
	}
	if err != nil {
		t.Fatal(err)
	}
	buf := e.Memory().TryGet(device.Align)
	defer e.Memory().Put(buf)
	devicetest.Fill(buf, 1)
	if err := devicetest.Do(d, &device.IO{Write: true, Off: 8192, Buf: buf}); err != nil {
		t.Fatal(err)
	}
	mem := d.(device.Mapped).Bytes()
	if len(mem) != mib || !bytes.Equal(mem[8192:8192+device.Align], buf) {
		t.Errorf("%d bytes, or not what was written", len(mem))
	}
}

func TestMeasure(t *testing.T) {
	for name, o := range engines {
		t.Run(name, func(t *testing.T) {
			e := engine(t, o)
			d := file(t, e, 8*mib)
			p, err := device.Measure(context.Background(), d, device.MeasureOptions{
				Off: mib, Len: 4 * mib, Writes: true, Sizes: []int{4096, 1 << 20}, Depths: []int{1, 4, 8}, PerPoint: 1, Memory: e.Memory(),
			})
			if err != nil {
				t.Fatal(err)
			}
			// 8 of 1 MiB do not fit 4 MiB.
			if len(p.Read) != 5 || len(p.Write) != 5 || p.Device != "file" || p.Kind != device.File {
				t.Fatalf("%+v", p)
			}
			for _, x := range append(p.Read, p.Write...) {
				if x.Rate <= 0 || x.Latency <= 0 || x.P99 < x.Latency/100 {
					t.Errorf("%+v", x)
				}
			}
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if _, err := device.Measure(ctx, d, device.MeasureOptions{Written: true}); !errors.Is(err, context.Canceled) {
				t.Errorf("with a cancelled context: %v", err)
			}
			for _, o := range []device.MeasureOptions{{}, {Written: true, Len: 5}, {Written: true, Sizes: []int{1}}, {Written: true, Depths: []int{0}}, {Written: true, Len: 4096, Sizes: []int{8192}}} {
				if _, err := device.Measure(context.Background(), d, o); err == nil {
					t.Errorf("%+v was not refused", o)
				}
			}
		})
	}
}

func TestEngineCloses(t *testing.T) {
	e, err := device.NewEngine(device.EngineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := file(t, e, mib)
	buf := e.Memory().For("forgotten").TryGet(device.Align)
	io := &device.IO{Buf: buf}
	if err := devicetest.Do(d, io); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err == nil || !strings.Contains(err.Error(), "forgotten (4096 bytes)") {
		t.Errorf("Close with a buffer outside: %v", err)
	}
	buf[0]++ // it is still there
	if err := d.Submit([]*device.IO{io}); !errors.Is(err, device.ErrClosed) {
		t.Errorf("Submit after the engine's Close: %v", err)
	}
	if _, err := device.OpenDRAM(e, device.DRAMOptions{Name: "m", Size: mib}); !errors.Is(err, device.ErrClosed) {
		t.Errorf("opening after the engine's Close: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestEngineRefuses(t *testing.T) {
	for name, o := range map[string]device.EngineOptions{
		"Memory": {Memory: 5}, "InFlight": {InFlight: 1}, "Threads": {Threads: -1}, "CopyThreads": {CopyThreads: -1}, "Entries": {Entries: 3},
	} {
		if e, err := device.NewEngine(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
}

// TestOneEngineManyDevices: a batch for each of several devices of all kinds.
func TestOneEngineManyDevices(t *testing.T) {
	e := engine(t, device.EngineOptions{InFlight: mib})
	var devices []device.Device
	for i := range 6 {
		var d device.Device
		var err error
		name := string(rune('a' + i))
		if i%2 == 0 {
			d, err = device.OpenDRAM(e, device.DRAMOptions{Name: name, Size: 8 * mib})
		} else {
			d, err = device.Open(context.Background(), e, device.Options{
				Name: name, Path: filepath.Join(t.TempDir(), "f"), Size: 8 * mib, Create: true, Depth: 4,
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		devices = append(devices, d)
	}
	var wg sync.WaitGroup
	for n, d := range devices {
		wg.Go(func() {
			mem, err := e.Memory().Get(context.Background(), 4*mib)
			if err != nil {
				t.Error(err)
				return
			}
			defer e.Memory().Put(mem)
			devicetest.Fill(mem, uint64(n))
			want := bytes.Clone(mem)
			for _, write := range []bool{true, false} {
				var ios []*device.IO
				for at := 0; at < len(mem); at += 64 << 10 {
					ios = append(ios, &device.IO{Write: write, Off: int64(at), Buf: mem[at : at+64<<10]})
				}
				if err := devicetest.Do(d, ios...); err != nil {
					t.Error(err)
				}
				if write {
					clear(mem)
				}
			}
			if !bytes.Equal(mem, want) {
				t.Errorf("device %d read back differently", n)
			}
		})
	}
	wg.Wait()
}
