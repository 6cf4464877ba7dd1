package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/zeebo/blake3"
)

// tailBytes is how much of a device's end Format looks at: where GPT and some
// RAIDs keep their tables.
const tailBytes = 128 << 10

// Info is what a store says of itself.
type Info struct {
	Geometry
	UUID       [16]byte
	Label      string
	Identity   [32]byte // BLAKE3 of Options.Identity
	Generation uint64
}

// Inspection is what Inspect found.
type Inspection struct {
	Found  Found
	Detail string
	// Info is valid if Found is Ours.
	Info Info
}

// Inspect says what a device holds. It writes nothing. Of a store it knows
// neither the shape nor the data that the caller wants: it says Ours to all
// that Open could open.
func Inspect(ctx context.Context, dev device.Device) (Inspection, error) {
	d := newDisk(dev, &Options{})
	f, err := d.find(ctx)
	if err != nil {
		return Inspection{}, err
	}
	in := Inspection{Found: f.found, Detail: f.detail}
	if f.found == Ours {
		in.Info = f.super.info()
	}
	return in, nil
}

func (s *superblock) info() Info {
	return Info{s.Geometry, s.uuid, s.label, s.identity, s.generation}
}

// finding is what the first bytes of a device are.
type finding struct {
	found  Found
	detail string
	super  superblock
	copy   int // which of the two super is
}

// find reads the header of a device.
func (d *disk) find(ctx context.Context) (finding, error) {
	size := d.dev.Info().Size
	if size < headerBytes {
		return finding{}, fmt.Errorf("store: device %s has %d bytes, a store has at least %d", d.dev.Info().Name, size, headerBytes)
	}
	head := d.memory(headerBytes)
	if err := d.read(ctx, 0, head); err != nil {
		return finding{}, err
	}
	return classify(head, size), nil
}

// classify says what a header is. It trusts nothing but a valid copy of the
// superblock in a header that is otherwise empty, since a filesystem made
// later may have left our copies as they were. It overwrites head.
func classify(head []byte, size int64) finding {
	var supers [2]superblock
	var found [2]Found
	var detail [2]string
	best := -1
	for i, off := range []int{0, secondCopy} {
		supers[i], found[i], detail[i] = parseSuper(head[off:])
		if found[i] == Ours && (best < 0 || supers[i].generation > supers[best].generation) {
			best = i
		}
	}
	for i := range 2 {
		if found[i] == OtherVersion {
			return finding{found: OtherVersion, detail: detail[i]}
		}
	}
	// What is ours is no evidence of something else.
	rest := head
	for i, off := range []int{0, secondCopy} {
		if found[i] == Ours {
			clear(rest[off : off+superBytes])
		}
	}
	what := signature(rest)
	if best < 0 {
		for i := range 2 {
			if found[i] == Damaged && what == "" {
				return finding{found: Damaged, detail: detail[i]}
			}
		}
		return stranger(rest, what)
	}
	for i, off := range []int{0, secondCopy} {
		if what == "" && found[i] != Ours { // torn
			clear(rest[off : off+superBytes])
		}
	}
	if f := stranger(rest, what); f.found != Blank {
		f.detail += ", written over a kvlend store"
		return f
	}
	s := supers[best]
	if s.end() > size {
		return finding{found: Damaged, detail: fmt.Sprintf("the store has %d bytes, the device only %d: want the size that it was made with, or to format it anew with --force", s.end(), size)}
	}
	return finding{found: Ours, super: s, copy: best}
}

// stranger says what a header without a store is.
func stranger(head []byte, what string) finding {
	if what != "" {
		return finding{found: Foreign, detail: what}
	}
	if i := firstNonzero(head); i >= 0 {
		return finding{found: Foreign, detail: fmt.Sprintf("unknown data at byte %d", i)}
	}
	return finding{found: Blank}
}

func firstNonzero(b []byte) int {
	var zeros [4096]byte
	for at := 0; at < len(b); at += len(zeros) {
		part := b[at:min(at+len(zeros), len(b))]
		if bytes.Equal(part, zeros[:len(part)]) {
			continue
		}
		for i, c := range part {
			if c != 0 {
				return at + i
			}
		}
	}
	return -1
}

// signatures are marks of formats at fixed places, the more telling first.
var signatures = []struct {
	off  int
	mark string
	name string
}{
	{0, "LUKS\xba\xbe", "LUKS encrypted volume"},
	{0x4000, "SKUL\xba\xbe", "LUKS encrypted volume"},
	{0, "XFSB", "XFS filesystem"},
	{0x438, "\x53\xef", "ext2, ext3 or ext4 filesystem"},
	{0x10040, "_BHRfS_M", "btrfs filesystem"},
	{0x400, "\x10\x20\xf5\xf2", "F2FS filesystem"},
	{0x1018, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "bcache"},
	{0, "bluestore block device", "Ceph BlueStore"},
	{0, "LABELONE", "LVM physical volume"},
	{512, "LABELONE", "LVM physical volume"},
	{1024, "LABELONE", "LVM physical volume"},
	{1536, "LABELONE", "LVM physical volume"},
	{0, "\xfc\x4e\x2b\xa9", "Linux software RAID"},
	{4096, "\xfc\x4e\x2b\xa9", "Linux software RAID"},
	{4086, "SWAPSPACE2", "swap space"},
	{4086, "SWAP-SPACE", "swap space"},
	{65526, "SWAPSPACE2", "swap space"},
	{0x8001, "CD001", "ISO 9660 filesystem"},
	{0, "hsqs", "squashfs filesystem"},
	{3, "NTFS    ", "NTFS filesystem"},
	{3, "EXFAT   ", "exFAT filesystem"},
	{512, "EFI PART", "GPT partition table"},
	{4096, "EFI PART", "GPT partition table"},
	{510, "\x55\xaa", "MBR partition table or boot sector"},
}

// signature names what the first bytes of a device are known for; empty:
// nothing.
func signature(head []byte) string {
	for _, s := range signatures {
		if len(head) >= s.off+len(s.mark) && string(head[s.off:s.off+len(s.mark)]) == s.mark {
			return s.name
		}
	}
	return ""
}

// tailSignature names what the last bytes of a device are known for. Unknown
// bytes are no reason to refuse: files are prewritten with noise.
func tailSignature(tail []byte) string {
	for _, sector := range []int{512, 4096} {
		if bytes.HasPrefix(tail[len(tail)-sector:], []byte("EFI PART")) {
			return "backup of a GPT partition table"
		}
	}
	for at := 0; at+4 <= len(tail); at += 4096 {
		if binary.LittleEndian.Uint32(tail[at:]) == 0xa92b4efc {
			return "Linux software RAID"
		}
	}
	return ""
}

// Digest is what a store keeps of Options.Identity.
func Digest(identity []byte) [32]byte { return blake3.Sum256(identity) }

// matches compares a store with what the caller wants of it.
func (s *superblock) matches(o *Options) (Found, string) {
	for _, c := range []struct {
		name      string
		want, has int
	}{
		{"layers", o.Layers, s.Layers},
		{"bytes of a layer block", o.LayerBytes, s.LayerBytes},
		{"tokens of a block", o.BlockTokens, s.BlockTokens},
	} {
		if c.want != 0 && c.want != c.has {
			return OtherGeometry, fmt.Sprintf("it has %d %s, not %d", c.has, c.name, c.want)
		}
	}
	if o.Identity == nil {
		return Ours, ""
	}
	if want := Digest(o.Identity); want != s.identity {
		return OtherIdentity, fmt.Sprintf("it was formatted for %q with identity %x; %q has identity %x", s.label, s.identity[:6], o.Label, want[:6])
	}
	return Ours, ""
}
