package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store/simdev"
)

// refused wants a RefusedError of this kind.
func refused(t *testing.T, err error, want Found, detail string) {
	t.Helper()
	var r *RefusedError
	if !errors.As(err, &r) {
		t.Fatalf("got %v, want a RefusedError", err)
	}
	if r.Found != want || !strings.Contains(r.Error(), detail) {
		t.Errorf("got %q (%s), want %s with %q", r, r.Found, want, detail)
	}
}

func TestForeignDevicesAreRefusedUntouched(t *testing.T) {
	ctx := context.Background()
	size := sizeOf(small())
	type mark struct {
		off  int64
		mark string
		want string
	}
	marks := []mark{
		{0, "\x01", "unknown data at byte 0"},
		{777777, "x", "unknown data at byte 777777"},
		{headerBytes - 1, "x", "unknown data at byte 1048575"},
		{size - 512, "EFI PART", "backup of a GPT"},
		{size - 4096, "EFI PART", "backup of a GPT"},
		{size - 8192, "\xfc\x4e\x2b\xa9", "Linux software RAID"},
		{size - 70000, "x", "data at byte"}, // a single byte at the end
		{headerBytes, strings.Repeat("x", 1<<20), "data at byte"},
	}
	for _, s := range signatures {
		marks = append(marks, mark{int64(s.off), s.mark, s.name})
	}
	for _, m := range marks {
		t.Run(fmt.Sprintf("%s at %d", m.want, m.off), func(t *testing.T) {
			dev := simdev.New(simdev.Options{Name: "d", Size: size})
			dev.Poke(m.off, []byte(m.mark))
			refused(t, Format(ctx, dev, small()), Foreign, m.want)
			_, _, err := Open(ctx, dev, small())
			if m.off < headerBytes {
				refused(t, err, Foreign, m.want)
			} else {
				refused(t, err, Blank, "blank")
			}
			if dev.Steps() > 0 {
				t.Fatal("a foreign device was written to")
			}
			o := small()
			o.Force = true
			if err := Format(ctx, dev, o); err != nil {
				t.Fatal(err)
			}
			open(t, dev, small())
			got := make([]byte, len(m.mark))
			if dev.Peek(m.off, got); m.off > 5000 && string(got) == m.mark {
				t.Error("the mark is still there after Format with Force")
			}
		})
	}
}

func TestOtherStoresAreRefused(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name   string
		change func(*Options)
		want   Found
		detail string
	}{
		{"layers", func(o *Options) { o.Layers = 3 }, OtherGeometry, "2 layers, not 3"},
		{"bytes", func(o *Options) { o.LayerBytes = 4096 }, OtherGeometry, "5000 bytes of a layer block, not 4096"},
		{"tokens", func(o *Options) { o.BlockTokens = 16 }, OtherGeometry, "3 tokens of a block, not 16"},
		{"identity", func(o *Options) { o.Identity = []byte("others") }, OtherIdentity, `formatted for "test" with identity`},
		{"same", func(*Options) {}, Ours, "a kvlend store"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev := formatted(t, small())
			steps := dev.Steps()
			o := small()
			c.change(&o)
			refused(t, Format(ctx, dev, o), c.want, c.detail)
			if c.want != Ours {
				_, _, err := Open(ctx, dev, o)
				refused(t, err, c.want, c.detail)
			}
			if dev.Steps() != steps {
				t.Error("it was written to")
			}
		})
	}
	t.Run("whatever it is", func(t *testing.T) {
		s, _ := open(t, formatted(t, small()), Options{})
		if i := s.Info(); i.Label != "test" || i.Layers != 2 || i.Slots != 40 || i.UUID != [16]byte{1} {
			t.Errorf("%+v", i)
		}
	})
}

// damage changes bytes of both copies of the superblock.
func damage(dev *simdev.Device, at int64, b []byte, fix bool) {
	for _, off := range []int64{0, secondCopy} {
		dev.Poke(off+at, b)
		if fix {
			c := make([]byte, superBytes)
			dev.Peek(off, c)
			var sum [8]byte
			le64(sum[:], superSum(c))
			dev.Poke(off+16, sum[:])
		}
	}
}

func le64(b []byte, v uint64) {
	for i := range 8 {
		b[i] = byte(v >> (8 * i))
	}
}

func TestDamagedAndNewerStoresAreRefusedUntouched(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name   string
		at     int64
		b      []byte
		fix    bool // the checksum is right
		want   Found
		detail string
	}{
		{"version", 8, []byte{2}, false, OtherVersion, "version 2"},
		{"version and checksum", 8, []byte{9}, true, OtherVersion, "version 9"},
		{"bit", 100, []byte{1}, false, Damaged, "checksum"},
		{"shape", 152, []byte{0, 0, 0, 0}, true, Damaged, "shape"},
		{"slots", 176, []byte{3}, true, Damaged, "3 slots"},
		{"many slots", 176, []byte{0, 0, 0, 0, 0, 1}, true, Damaged, "slots"},
		{"area", 184, []byte{2}, true, Damaged, "outside the log"},
		{"head", 200, []byte{255}, true, Damaged, "outside the log"},
		{"page size", 168, []byte{0, 32}, true, OtherVersion, "laid out"},
		{"a kind of region", regionTable + 2*regionBytes, []byte{9}, true, OtherVersion, "laid out"},
		{"more regions", 172, []byte{4}, true, OtherVersion, "laid out"},
		{"far too many regions", 172, []byte{255, 255, 255, 255}, true, Damaged, "regions"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev := formatted(t, small())
			damage(dev, c.at, c.b, c.fix)
			steps := dev.Steps()
			_, _, err := Open(ctx, dev, small())
			refused(t, err, c.want, c.detail)
			refused(t, Format(ctx, dev, small()), c.want, c.detail)
			in, err := Inspect(ctx, dev)
			if err != nil || in.Found != c.want {
				t.Errorf("Inspect: %+v, %v", in, err)
			}
			if dev.Steps() != steps {
				t.Error("it was written to")
			}
		})
	}
}

func TestAFilesystemMadeOverAStoreIsForeign(t *testing.T) {
	ctx := context.Background()
	dev := formatted(t, small())
	// mkfs.ext4 leaves the first 1024 bytes, and our second copy, alone.
	dev.Poke(0x438, []byte("\x53\xef"))
	_, _, err := Open(ctx, dev, small())
	refused(t, err, Foreign, "ext4 filesystem, written over a kvlend store")

	dev = formatted(t, small())
	dev.Poke(65536+64, []byte("_BHRfS_M"))
	_, _, err = Open(ctx, dev, small())
	refused(t, err, Foreign, "btrfs")

	dev = formatted(t, small())
	dev.Poke(secondCopy-1, []byte("x"))
	_, _, err = Open(ctx, dev, small())
	refused(t, err, Foreign, "unknown data at byte 524287")
}

func TestOneGoodSuperblockIsEnough(t *testing.T) {
	for _, off := range []int64{0, secondCopy} {
		dev := formatted(t, small())
		dev.Poke(off+300, []byte("rot"))
		s, _ := open(t, dev, small())
		store(t, dev, s, 1)
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, superBytes)
		dev.Peek(off, b)
		if _, found, _ := parseSuper(b); found != Ours {
			t.Errorf("the copy at %d was not repaired: %s", off, found)
		}
		if _, r := open(t, dev, small()); r.Entries != 1 {
			t.Errorf("%+v", r)
		}
	}
}

func TestADeviceThatShrank(t *testing.T) {
	ctx := context.Background()
	dev := formatted(t, small())
	less := simdev.New(simdev.Options{Name: "less", Size: sizeOf(small()) - device.Align})
	b := heapMemory(headerBytes)
	dev.Peek(0, b)
	less.Poke(0, b)
	_, _, err := Open(ctx, less, small())
	refused(t, err, Damaged, "the device only")
	tiny := simdev.New(simdev.Options{Name: "tiny", Size: 8192})
	if _, _, err := Open(ctx, tiny, small()); err == nil {
		t.Error("a device of 8 KiB was opened")
	}
	if err := Format(ctx, less, small()); err == nil {
		t.Error("formatted over a store")
	}
}

func TestFormatSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.Layers = 0 }, "Layers is 0, must be in [1, 4096]"},
		{func(o *Options) { o.LayerBytes = -1 }, "LayerBytes is -1"},
		{func(o *Options) { o.BlockTokens = 5000 }, "BlockTokens is 5000"},
		{func(o *Options) { o.Run = 65 }, "Run is 65, must be in [0, 64]"},
		{func(o *Options) { o.Label = strings.Repeat("x", 65) }, "len(Label) is 65"},
		{func(o *Options) { o.LayerBytes = 1 << 20 }, "the device has"},
	} {
		o := small()
		dev := simdev.New(simdev.Options{Name: "d", Size: sizeOf(o)})
		c.change(&o)
		if err := Format(context.Background(), dev, o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func TestLayoutFillsTheDevice(t *testing.T) {
	for range 300 {
		o := Options{
			Layers: 1 + rand.IntN(80), LayerBytes: 1 + rand.IntN(1<<18), BlockTokens: 1 + rand.IntN(64), Run: rand.IntN(65),
		}
		size := int64(1<<20) + rand.Int64N(1<<42)
		l, err := newLayout(&o, size)
		if err != nil {
			continue
		}
		if l.end() > size {
			t.Fatalf("%+v on %d bytes ends at %d", l, size, l.end())
		}
		more := l
		if more.place(l.Slots/l.Run+1) <= size {
			t.Fatalf("%+v: one more segment fits %d bytes", l, size)
		}
		if l.Off(Slot(l.Slots-1), l.Layers-1)+l.Stride != l.end() {
			t.Fatalf("%+v: the last layer block does not end at the end", l)
		}
		if full := (l.Slots-1)/l.entriesPerPage() + 1; full >= l.areaPages {
			t.Fatalf("%+v: a checkpoint of %d pages leaves no room", l, full)
		}
	}
}

func TestOffIsLayerMajorInSegments(t *testing.T) {
	o := small()
	l, _ := newLayout(&o, sizeOf(o))
	seen := map[int64]bool{}
	for s := range Slot(l.Slots) {
		for layer := range l.Layers {
			off := l.Off(s, layer)
			if seen[off] || off < l.Base || off+l.Stride > l.end() || off%device.Align != 0 {
				t.Fatalf("slot %d layer %d lies at %d", s, layer, off)
			}
			seen[off] = true
			if l.Adjacent(s, s+1) && l.Off(s+1, layer) != off+l.Stride {
				t.Errorf("layer %d of slot %d does not follow that of slot %d", layer, s+1, s)
			}
		}
	}
	if !l.Adjacent(0, 1) || l.Adjacent(3, 4) || l.Adjacent(1, 0) {
		t.Error("Adjacent is wrong")
	}
}

func TestCrashWhileFormatting(t *testing.T) {
	ctx := context.Background()
	o := small()
	o.Force, o.UUID, o.Label = true, [16]byte{2}, "new"
	for _, kind := range []string{"blank", "store", "ext4"} {
		for at := range 10 {
			for seed := range uint64(20 / less) {
				dev := simdev.New(simdev.Options{Name: "d", Size: sizeOf(o), MaxIO: 64 << 10})
				switch kind {
				case "store":
					dev = formatted(t, small())
					s, _ := open(t, dev, small())
					store(t, dev, s, 1)
					if err := s.Close(ctx); err != nil {
						t.Fatal(err)
					}
				case "ext4":
					dev.Poke(0x438, []byte("\x53\xef"))
				}
				dev.CrashAt(at)
				err := Format(ctx, dev, o)
				dev = dev.Crash(simdev.Random, rand.New(rand.NewPCG(seed, uint64(at))))
				s, r, openErr := Open(ctx, dev, small())
				if openErr != nil {
					var re *RefusedError
					if err == nil || !errors.As(openErr, &re) {
						t.Fatalf("%s, crash at %d: format %v, open %v", kind, at, err, openErr)
					}
					continue
				}
				if isNew := s.Info().UUID == o.UUID; isNew != (r.Entries == 0) {
					t.Errorf("%s, crash at %d: new %v, %+v", kind, at, isNew, r)
				}
				s.Close(ctx)
			}
		}
	}
}
