package prefix

import (
	"bytes"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

// Keys outlive processes: they name blocks on disk. These values may only change
// together with whatever has been stored under them.
func TestKeysAreStable(t *testing.T) {
	root := Root([]byte("model"), []byte("salt"))
	for _, c := range []struct {
		name      string
		got, want Key
	}{
		{"root of nothing", Root(), Key{0xaf1349b9f5f9a1a6, 0xa0404dea36dcc949}},
		{"root", root, Key{0x9ebe39055ad9a4c6, 0xb3cd0fc7bdcd1a17}},
		{"no tokens", root.Next(nil), Key{0xd9d8cb7245dfbf04, 0xce963bfa96f2f1c4}},
		{"one token", root.Next([]int32{7}), Key{0x16565b4141ca6b99, 0x6e32c812d2f16388}},
		{"16 tokens", root.Next(count(16)), Key{0x38ea8464fed8e506, 0x8cf96d3028b44c17}},
		{"64 tokens", root.Next(count(64)), Key{0xe59df417b197c0ae, 0xac0473d127f42ac5}},
		{"65 tokens", root.Next(count(65)), Key{0x330d17115d422411, 0xd41f75e858e700aa}},
		{"1000 tokens", root.Next(count(1000)), Key{0xa5adb4cf9f0921aa, 0x71d9f6886930e077}},
	} {
		if c.got != c.want {
			t.Errorf("%s: Key{%#x, %#x}, want Key{%#x, %#x}", c.name, c.got.Hi, c.got.Lo, c.want.Hi, c.want.Lo)
		}
	}
}

func TestKeyIsPrintedInFull(t *testing.T) {
	if got, want := (Key{0x1, 0xabc}).String(), "00000000000000010000000000000abc"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// count is 0, 1, -2, 3, 4, -5, ...: n tokens whose sign bit is not always clear.
func count(n int) []int32 {
	t := make([]int32, n)
	for i := range t {
		t[i] = int32(i)
		if i%3 == 2 {
			t[i] = -t[i]
		}
	}
	return t
}

func TestNextIsTheHashOfItsDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := Key{rapid.Uint64().Draw(t, "hi"), rapid.Uint64().Draw(t, "lo")}
		tokens := rapid.SliceOfN(rapid.Int32(), 0, 300).Draw(t, "tokens")
		var b []byte
		for _, w := range []uint64{k.Hi, k.Lo} {
			for i := range 8 {
				b = append(b, byte(w>>(8*i)))
			}
		}
		for _, w := range tokens {
			for i := range 4 {
				b = append(b, byte(uint32(w)>>(8*i)))
			}
		}
		want := xxh3.Hash128(b)
		if got := k.Next(tokens); got != (Key{want.Hi, want.Lo}) {
			t.Fatalf("Next: %x, hashed at once: %x", got, want)
		}
	})
}

func TestRootsDiffer(t *testing.T) {
	lists := [][][]byte{
		nil,
		{nil},
		{nil, nil},
		{[]byte("ab")},
		{[]byte("a"), []byte("b")},
		{[]byte("ab"), nil},
		{nil, []byte("ab")},
		{{1, 0, 0, 0, 0, 0, 0, 0}, nil},
		{bytes.Repeat([]byte{0}, 8)},
	}
	seen := map[Key]int{{}: -1}
	for i, l := range lists {
		if j, ok := seen[Root(l...)]; ok {
			t.Errorf("lists %d and %d have one root", i, j)
		}
		seen[Root(l...)] = i
	}
}

func TestNextDoesNotAllocate(t *testing.T) {
	for _, n := range []int{1, 16, 64, 65, 1000} {
		tokens := count(n)
		k := Root([]byte("model"))
		if a := testing.AllocsPerRun(100, func() { k = k.Next(tokens) }); a != 0 {
			t.Errorf("%d tokens: %v allocations", n, a)
		}
	}
}
