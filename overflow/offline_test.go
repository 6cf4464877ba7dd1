package overflow

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/overflow/admission"
	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store"
	"github.com/kvlend/kvlend/prefix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const fileSize = 12 << 20

func sums([16]byte) func(*store.Entry, int, []byte) uint64 { return layerSum }

func layerSum(e *store.Entry, layer int, data []byte) uint64 {
	return xxh3.HashSeed(data, e.Key.Lo+uint64(layer))
}

// rig is a pool of one file.
func rig(t *testing.T) (Options, DeviceOptions) {
	t.Helper()
	d := DeviceOptions{Name: "d0", Path: filepath.Join(t.TempDir(), "pool"), Size: fileSize}
	return Options{
		Devices: []DeviceOptions{d},
		Store:   store.Options{Layers: 3, LayerBytes: 8192, BlockTokens: 4, Identity: []byte("weights")},
		Engine:  device.EngineOptions{Memory: 8 << 20}, Timeout: 5 * time.Second,
		Measure: device.MeasureOptions{Sizes: []int{16 << 10, 64 << 10}, Depths: []int{1, 4}, PerPoint: 5 * time.Millisecond},
	}, d
}

func format(t *testing.T, o Options, d DeviceOptions) *Formatted {
	t.Helper()
	f, err := Format(t.Context(), o, d, false)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// with opens the pool and closes it after f.
func with(t *testing.T, o Options, f func(*Pool)) {
	t.Helper()
	p, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range p.Out {
		t.Errorf("%s: %v", name, err)
	}
	f(p)
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// put stores n blocks, a chain, and makes them durable.
func put(t *testing.T, p *Pool, n int) (last store.Entry) {
	t.Helper()
	d := p.Devices[0]
	g := d.Store.Geometry()
	parent := prefix.Root()
	for i, slot := range d.Store.Alloc(nil, n) {
		e := store.Entry{Slot: slot, Parent: parent, Root: i == 0, Tokens: []int32{1, 2, 3, int32(i)}, Sums: make([]uint64, g.Layers)}
		e.Key = prefix.Key{Hi: 7, Lo: uint64(i + 1)}
		for l := range g.Layers {
			data := bytes.Repeat([]byte{byte(i), byte(l), 3, 4}, g.LayerBytes/4)
			e.Sums[l] = layerSum(&e, l, data)
			overwrite(t, p, d.Store.Off(slot, l), data)
		}
		if _, err := d.Store.Commit(&e); err != nil {
			t.Fatal(err)
		}
		parent, last = e.Key, e
	}
	if err := d.Store.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return last
}

func overwrite(t *testing.T, p *Pool, off int64, data []byte) {
	t.Helper()
	mem := p.engine.Memory().For("test")
	buf, err := mem.Get(t.Context(), len(data))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Put(buf)
	copy(buf, data)
	done := make(chan struct{})
	io := &device.IO{Write: true, Off: off, Buf: buf, Done: func(*device.IO) { close(done) }}
	if err := p.Devices[0].Submit([]*device.IO{io}); err != nil {
		t.Fatal(err)
	}
	if <-done; io.Err != nil {
		t.Fatal(io.Err)
	}
}

// TestFormat: a device is made, measured with its writes, and opens without being
// measured again.
func TestFormat(t *testing.T) {
	o, d := rig(t)
	made := int64(0)
	o.Progress = func(_ string, done, _ int64) { made = done }
	f := format(t, o, d)
	if made != fileSize || f.Before != store.Blank || f.Store.Slots == 0 || f.Store.Label != "d0" || f.Device.Size != fileSize {
		t.Errorf("%d bytes written, %+v", made, f)
	}
	if len(f.Profile.Read) == 0 || len(f.Profile.Write) == 0 {
		t.Errorf("profile %+v", f.Profile)
	}
	with(t, o, func(p *Pool) {
		if got := p.Devices[0].Profile; !got.Taken.Equal(f.Profile.Taken) || p.Devices[0].Rate() <= 0 {
			t.Errorf("taken %s, want %s", got.Taken, f.Profile.Taken)
		}
		put(t, p, 5)
	})
	var refused *store.RefusedError
	if _, err := Format(t.Context(), o, d, false); !errors.As(err, &refused) || refused.Found != store.Ours {
		t.Errorf("a store is there: %v", err)
	}
	if err := os.Truncate(d.Path, fileSize/2); err != nil {
		t.Fatal(err)
	}
	if _, err := Format(t.Context(), o, d, false); !errors.As(err, &refused) || refused.Found != store.Damaged {
		t.Errorf("half a store is there: %v", err)
	}
	if info, err := os.Stat(d.Path); err != nil || info.Size() != fileSize/2 {
		t.Errorf("it was made longer: %d, %v", info.Size(), err)
	}
	f, err := Format(t.Context(), o, d, true)
	if err != nil || f.Before != store.Ours {
		t.Fatalf("%+v, %v", f, err)
	}
	with(t, o, func(p *Pool) {
		if p.Devices[0].Recovery.Entries != 0 {
			t.Error("blocks are left")
		}
	})
}

// TestForeignFiles: nothing is done to a file that is somebody else's, neither by
// Format nor by a start, unless Format is forced.
func TestForeignFiles(t *testing.T) {
	ext4 := make([]byte, 2<<20)
	copy(ext4[0x438:], "\x53\xef")
	for name, c := range map[string]struct {
		data []byte
		what string
	}{
		"short text": {[]byte("dear diary"), "10 bytes"},
		"filesystem": {ext4, "ext4"},
		"long text":  {bytes.Repeat([]byte("x"), 3<<20+5), "unknown data at byte 0"},
	} {
		t.Run(name, func(t *testing.T) {
			o, d := rig(t)
			if err := os.WriteFile(d.Path, c.data, 0o600); err != nil {
				t.Fatal(err)
			}
			var refused *store.RefusedError
			if _, err := Format(t.Context(), o, d, false); !errors.As(err, &refused) || !strings.Contains(err.Error(), c.what) {
				t.Errorf("%v, want %q", err, c.what)
			}
			o.Create = true
			p, err := Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Out["d0"]; !errors.As(err, &refused) {
				t.Errorf("a start: %v", err)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(d.Path); err != nil || !bytes.Equal(got, c.data) {
				t.Errorf("the file has changed: %d bytes, %v", len(got), err)
			}
			f, err := Format(t.Context(), o, d, true)
			if err != nil || name == "filesystem" && (f.Before != store.Foreign || !strings.Contains(f.Detail, "ext4")) {
				t.Errorf("forced: %+v, %v", f, err)
			}
		})
	}
}

// TestInterruptedFormat: the making of a file goes on where it was stopped.
func TestInterruptedFormat(t *testing.T) {
	o, d := rig(t)
	ctx, cancel := context.WithCancel(t.Context())
	o.Progress = func(_ string, done, _ int64) {
		if done >= fileSize/2 {
			cancel()
		}
	}
	if _, err := Format(ctx, o, d, false); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	info, err := os.Stat(d.Path)
	if err != nil || info.Size() == 0 || info.Size() >= fileSize {
		t.Fatalf("%v, %v", info.Size(), err)
	}
	first := int64(0)
	o.Progress = func(_ string, done, _ int64) {
		if first == 0 {
			first = done
		}
	}
	if format(t, o, d); first <= info.Size() {
		t.Errorf("it began again at %d of %d", first, info.Size())
	}
}

func TestCheck(t *testing.T) {
	o, d := rig(t)
	check := func(deep bool) *Checked {
		t.Helper()
		c, err := Check(t.Context(), o, d, deep, sums)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if _, err := Check(t.Context(), o, d, false, sums); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no file: %v", err)
	}
	format(t, o, d)
	if c := check(true); !c.OK() || c.Report.Live != 0 {
		t.Errorf("an empty store: %+v", c)
	}
	var last store.Entry
	var off int64
	with(t, o, func(p *Pool) {
		last = put(t, p, 6)
		off = p.Devices[0].Store.Off(last.Slot, 1)
		if _, err := Check(t.Context(), o, d, false, sums); !errors.Is(err, device.ErrInUse) {
			t.Errorf("while it is open: %v", err)
		}
		if _, err := Format(t.Context(), o, d, true); !errors.Is(err, device.ErrInUse) {
			t.Errorf("formatted while it is open: %v", err)
		}
	})
	if c := check(true); !c.OK() || c.Report.Verified != 6 || c.Recovery.Entries != 6 {
		t.Errorf("%+v", c)
	}
	f, err := os.OpenFile(d.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{99}, off+5); err != nil {
		t.Fatal(err)
	}
	if c := check(false); !c.OK() {
		t.Errorf("without reading data: %+v", c)
	}
	c := check(true)
	if c.OK() || c.Report.Verified != 5 || len(c.Report.Bad) != 1 || c.Report.Bad[0].Layer != 1 || c.Report.Bad[0].Slot != last.Slot {
		t.Errorf("a wrong byte: %+v", c)
	}
	o.Store.Layers++
	if c := check(true); c.OK() || c.Found != store.OtherGeometry || c.Detail == "" {
		t.Errorf("another shape: %+v", c)
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte("x"), 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	if c := check(true); c.OK() || c.Found != store.Foreign {
		t.Errorf("foreign data: %+v", c)
	}
}

// TestBench: data stays as it is, what was measured before of writes too.
func TestBench(t *testing.T) {
	o, d := rig(t)
	var refused *store.RefusedError
	format(t, o, d)
	b, err := Bench(t.Context(), o, d, true)
	if err != nil || len(b.Profile.Write) == 0 || b.Blocks != 0 {
		t.Fatalf("an empty store: %+v, %v", b, err)
	}
	with(t, o, func(p *Pool) { put(t, p, 4) })
	if b, err = Bench(t.Context(), o, d, true); err != nil || b.Profile.Write != nil || len(b.Profile.Read) == 0 || b.Blocks != 4 {
		t.Fatalf("with blocks: %+v, %v", b, err)
	}
	with(t, o, func(p *Pool) {
		if got := p.Devices[0].Profile; !got.Taken.Equal(b.Profile.Taken) || len(got.Write) == 0 {
			t.Errorf("remembered: %+v", got)
		}
	})
	if c, err := Check(t.Context(), o, d, true, sums); err != nil || c.Report.Verified != 4 {
		t.Errorf("after it: %+v, %v", c, err)
	}
	if err := os.WriteFile(d.Path, make([]byte, fileSize), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Bench(t.Context(), o, d, true); !errors.As(err, &refused) || refused.Found != store.Blank {
		t.Errorf("a blank file: %v", err)
	}
}

// TestMemory: there is nothing to format or to check.
func TestMemory(t *testing.T) {
	o, d := rig(t)
	d.Path = MemoryPath
	if _, err := Format(t.Context(), o, d, true); !errors.Is(err, ErrMemory) {
		t.Errorf("format: %v", err)
	}
	if _, err := Check(t.Context(), o, d, true, sums); !errors.Is(err, ErrMemory) {
		t.Errorf("check: %v", err)
	}
	if b, err := Bench(t.Context(), o, d, true); err != nil || len(b.Profile.Read) == 0 || len(b.Profile.Write) == 0 {
		t.Errorf("bench: %+v, %v", b, err)
	}
}

// TestDrift: a profile that reads contradict is dropped at the end, and the
// budget is not.
func TestDrift(t *testing.T) {
	o, d := rig(t)
	o.Devices[0].Budget = admission.BudgetOptions{PerDay: 1 << 40}
	format(t, o, d)
	var budget admission.Usage
	var wrong device.Profile
	with(t, o, func(p *Pool) {
		dev := p.Devices[0]
		if !dev.Budget.Take(1 << 20) {
			t.Fatal("no budget")
		}
		budget = dev.Budget.Usage()
		if ratio, drifted := dev.Drifted(); ratio != 0 || drifted {
			t.Errorf("before anything was read: %v, %v", ratio, drifted)
		}
		// Reads of these sizes, and a profile that says a tenth.
		m := device.MeasureOptions{Off: dev.Store.Geometry().Base, Len: 4 << 20, Written: true, Sizes: []int{64 << 10}, Depths: []int{4}, PerPoint: time.Second}
		got, err := device.Measure(t.Context(), dev.Device, m)
		if err != nil {
			t.Fatal(err)
		}
		wrong = got
		wrong.Read[0].Rate /= 10
		if dev.Profile = wrong; dev.Profile.Read == nil {
			t.Fatal("nothing measured")
		}
		if ratio, drifted := dev.Drifted(); !drifted || ratio < driftFactor {
			t.Errorf("ratio %v, drifted %v", ratio, drifted)
		}
		dev.Profile.Read[0].Size = 4 << 20
		if ratio, drifted := dev.Drifted(); drifted || ratio != 0 {
			t.Errorf("of other sizes: ratio %v, drifted %v", ratio, drifted)
		}
		dev.Profile.Read[0].Size = 64 << 10
	})
	with(t, o, func(p *Pool) {
		dev := p.Devices[0]
		if dev.Profile.Read == nil || !dev.Profile.Taken.After(wrong.Taken) {
			t.Errorf("it was not measured again: %+v", dev.Profile)
		}
		if got := dev.Budget.Usage(); got.Written != budget.Written {
			t.Errorf("the budget: %+v, want %+v", got, budget)
		}
	})
}

// TestUsedFiles: zeros at the beginning do not make a file unused. Files may be large
// and sparse, and what kvlend itself fills files with is nothing.
func TestUsedFiles(t *testing.T) {
	const large = 1 << 40
	for _, c := range []struct {
		name string
		at   int64
		data string
	}{
		{"one byte far behind", large/2 + 12345, "x"},
		{"at the end", large - 1, "x"},
		{"right behind the first MiB", device.Blank, "x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, d := rig(t)
			f, err := os.Create(d.Path)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(f.Truncate(large), func() error { _, err := f.WriteAt([]byte(c.data), c.at); return err }(), f.Close()); err != nil {
				t.Skipf("no sparse file of %d bytes here: %v", int64(large), err)
			}
			d.Size = 0
			began := time.Now()
			_, err = Format(t.Context(), o, d, false)
			var refused *store.RefusedError
			if !errors.As(err, &refused) || refused.Found != store.Foreign || !strings.Contains(refused.Detail, "looked at the first MiB and at") {
				t.Errorf("%v, want foreign data", err)
			}
			o.Devices, o.Create = []DeviceOptions{d}, true
			p, err := Open(t.Context(), o)
			if err != nil || !errors.As(p.Out["d0"], &refused) {
				t.Errorf("Open: %v, %v", err, p)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
	o, d := rig(t)
	format(t, o, d)
	with(t, o, func(p *Pool) { put(t, p, 40) })
	f, err := os.OpenFile(d.Path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, device.Blank), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var refused *store.RefusedError
	if _, err := Format(t.Context(), o, d, false); !errors.As(err, &refused) {
		t.Errorf("a store without its beginning: %v", err)
	}
	if _, err := Format(t.Context(), o, d, true); err != nil {
		t.Error(err)
	}
}

// TestOtherModel: check and bench say whose a device is, and name both.
func TestOtherModel(t *testing.T) {
	o, d := rig(t)
	o.Model = "atlas"
	format(t, o, d)
	if c, err := Check(t.Context(), o, d, true, sums); err != nil || !c.OK() {
		t.Fatalf("%+v, %v", c, err)
	}
	o.Model, o.Store.Identity = "birch", []byte("other weights")
	want := []string{`"atlas/d0"`, `"birch/d0"`}
	says := func(what, text string) {
		t.Helper()
		for _, s := range want {
			if !strings.Contains(text, s) {
				t.Errorf("%s says %q, want %s in it", what, text, s)
			}
		}
	}
	c, err := Check(t.Context(), o, d, true, sums)
	if err != nil || c.OK() || c.Found != store.OtherIdentity || c.Report.Slots == 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	says("check", c.Detail)
	b, err := Bench(t.Context(), o, d, false)
	if err != nil {
		t.Fatal(err)
	}
	says("bench", b.Other)
	o.Devices = []DeviceOptions{d}
	p, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	says("open", p.Out["d0"].Error())
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestBudgetOverCrash: what was granted is remembered on the device, also when its
// process is killed.
func TestBudgetOverCrash(t *testing.T) {
	o, d := rig(t)
	d.Budget = admission.BudgetOptions{PerDay: 1 << 40}
	o.Devices, o.Create = []DeviceOptions{d}, true
	p, err := Open(t.Context(), o)
	if err != nil || len(p.Devices) != 1 {
		t.Fatal(err, p.Out)
	}
	dev := p.Devices[0]
	if !dev.Take(dev.saveEach / 2) {
		t.Fatal("refused")
	}
	if n := len(dev.Store.Note()); n == 0 {
		t.Error("nothing was remembered at the start")
	}
	before := string(dev.Store.Note())
	dev.Take(dev.saveEach)
	for string(dev.Store.Note()) == before { // the test hangs where it is not saved
		runtime.Gosched()
	}
	image, err := os.ReadFile(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(d.Path, image, 0o600), os.Remove(d.Path+".state")); err != nil {
		t.Fatal(err)
	}
	with(t, o, func(p *Pool) {
		if got := p.Devices[0].Budget.Usage().Written; got != dev.saveEach/2+dev.saveEach {
			t.Errorf("%d bytes are remembered, %d were granted", got, dev.saveEach/2+dev.saveEach)
		}
	})
}
