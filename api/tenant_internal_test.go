package api

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestTenantsDiffer: two tenants whose parts differ in any way, also in where
// one part ends and the next begins, have different roots and salts.
func TestTenantsDiffer(t *testing.T) {
	type parts struct {
		kind, name string
		keys       []string
	}
	// Few characters, so that concatenations are often alike.
	text := rapid.StringOfN(rapid.SampledFrom([]rune{'a', 'b', 0, '/', '#'}), 0, 4, -1)
	draw := rapid.Custom(func(t *rapid.T) parts {
		p := parts{rapid.SampledFrom([]string{"named", "key"}).Draw(t, "kind"), text.Draw(t, "name"), rapid.SliceOfN(text, 0, 3).Draw(t, "keys")}
		slices.Sort(p.keys)
		return p
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		same := a.kind == b.kind && a.name == b.name && slices.Equal(a.keys, b.keys)
		ta, tb := newTenant(a.kind, a.name, 0, a.keys), newTenant(b.kind, b.name, 0, b.keys)
		if (ta.root == tb.root) != same {
			t.Fatalf("%q and %q: roots %x and %x", a, b, ta.root, tb.root)
		}
		sa, sb := text.Draw(t, "salt of a"), text.Draw(t, "salt of b")
		if bytes.Equal(ta.salt(&sa), tb.salt(&sb)) != (same && sa == sb) {
			t.Fatalf("%q with salt %q and %q with salt %q", a, sa, b, sb)
		}
		if bytes.Equal(ta.salt(nil), ta.salt(&sa)) {
			t.Fatalf("no salt is the salt %q", sa)
		}
	})
}

// TestKeysOrder: the order of a tenant's keys changes nothing.
func TestKeysOrder(t *testing.T) {
	a, b := newTenant("named", "t", 0, []string{"x", "y"}), newTenant("named", "t", 0, []string{"y", "x"})
	if a.root != b.root {
		t.Error("the order of keys matters")
	}
}
