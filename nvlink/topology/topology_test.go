package topology

import (
	"strings"
	"testing"
	"time"
)

func TestRefusals(t *testing.T) {
	two := []string{"a", "b"}
	for _, c := range []struct {
		want    string
		devices []string
		links   []Link
	}{
		{"devices is empty", nil, nil},
		{"devices[1] is empty", []string{"a", ""}, nil},
		{`"a" is listed twice`, []string{"a", "b", "a"}, nil},
		{`links[0]: unknown device "c"`, two, []Link{{From: "a", To: "c", BytesPerSec: 1}}},
		{`joins "a" to itself`, two, []Link{{From: "a", To: "a", BytesPerSec: 1}}},
		{"bandwidth 0 B/s", two, []Link{{From: "a", To: "b"}}},
		{"latency -1ns", two, []Link{{From: "a", To: "b", BytesPerSec: 1, Latency: -1}}},
		{"links[1]: \"a\" to \"b\" is given twice", two, []Link{{From: "a", To: "b", BytesPerSec: 1}, {From: "a", To: "b", BytesPerSec: 2}}},
	} {
		if _, err := New(c.devices, c.links); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%q, %v): %v, want %q", c.devices, c.links, err, c.want)
		}
	}
}

func TestLinksHaveDirections(t *testing.T) {
	top, err := New([]string{"a", "b"}, []Link{{From: "a", To: "b", BytesPerSec: 2e9, Latency: time.Microsecond}})
	if err != nil {
		t.Fatal(err)
	}
	l, ok := top.Link("a", "b")
	if !ok || l.Time(4000) != 3*time.Microsecond {
		t.Errorf("a to b: %v, %v, 4000 bytes in %v", l, ok, l.Time(4000))
	}
	if _, ok := top.Link("b", "a"); ok {
		t.Error("a link works in both directions")
	}
	mesh, err := FullMesh([]string{"a", "b", "c"}, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(mesh.Links()); n != 6 {
		t.Errorf("full mesh of three has %d links", n)
	}
}
