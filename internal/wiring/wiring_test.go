package wiring

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/nvlink/topology"
	"github.com/kvlend/kvlend/planner"
)

// server has a master on gpu0 and workers on gpu1 and gpu2.
func server(t *testing.T, fabric, links string) *configs.Config {
	t.Helper()
	text := `version: 1
fabric: {` + fabric + `}
devices: [{name: gpu0}, {name: gpu1}, {name: gpu2, gpu: GPU-22222222}, {name: host}]
links: [` + links + `]
models:
  - {name: m, source: builtin:atlas, role: master, device: gpu0, arena: 4MiB}
  - {name: one, source: builtin:birch, role: worker, device: gpu1, arena: 6528KiB}
  - {name: two, source: builtin:cedar, role: worker, device: gpu2, arena: 10880KiB}
`
	cfg, err := configs.Parse([]byte(text), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// gpus are three, of which 0 and 1 have two links and the others only slots.
func gpus() *topology.Inventory {
	link := func(peer string) []topology.NVLink {
		return []topology.NVLink{{Active: true, Peer: peer, BytesPerSec: 25e9}, {Index: 1, Active: true, Peer: peer, BytesPerSec: 25e9}}
	}
	slot := topology.PCIe{Gen: 3, Width: 10} // 9.85 GB/s
	inv := &topology.Inventory{GPUs: []topology.GPU{
		{Index: 0, UUID: "GPU-00000000", PCI: "a", PCIe: slot, NVLinks: link("b")},
		{Index: 1, UUID: "GPU-11111111", PCI: "b", PCIe: slot, NVLinks: link("a")},
		{Index: 2, UUID: "GPU-22222222", PCI: "c", PCIe: slot},
	}}
	inv.Pairs = topology.Connect(inv.GPUs, func(int, int) (topology.P2P, string) { return topology.P2P{}, "" })
	return inv
}

func driver(inv *topology.Inventory, err error) Reader {
	return func(context.Context) (*topology.Inventory, error) { return inv, err }
}

// loads shows the links to gpu0.
func loads(w *Wiring) string {
	var out []string
	for _, from := range []string{"gpu1", "gpu2", "host"} {
		for _, l := range w.Links {
			if l.From == from && l.To == "gpu0" {
				out = append(out, from+" "+configs.Rate(l.BytesPerSec).String()+" "+string(l.Source))
			}
		}
	}
	return strings.Join(out, ", ")
}

const measured = `{"version": 1, "fabric": "FABRIC", "taken": "2026-01-02T03:04:05Z", "links": [
	{"from": "gpu1", "to": "gpu0", "bytes_per_sec": 3e9},
	{"from": "GPU-22222222", "to": "GPU-00000000", "bytes_per_sec": 7e9, "latency_ns": 9000},
	{"from": "GPU-99999999", "to": "GPU-00000000", "bytes_per_sec": 1e9}]}`

func measuredFile(t *testing.T, fabric string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "links.json")
	if err := os.WriteFile(path, []byte(strings.Replace(measured, "FABRIC", fabric, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWhichCounts(t *testing.T) {
	const written = "{from: gpu0, to: gpu1, bandwidth: 1GB/s}, {from: gpu0, to: host, bandwidth: 2GB/s}"
	file, shm := measuredFile(t, "cuda"), measuredFile(t, "shm")
	none := errors.New("no driver")
	for _, c := range []struct {
		name, fabric, links string
		read                Reader
		want                string
		notes               int
	}{
		{"shm asks no driver", "kind: shm", written, nil, "gpu1 1GB/s config, host 2GB/s config", 0},
		{"config asks no driver", "kind: cuda, topology: config", written, nil, "gpu1 1GB/s config, host 2GB/s config", 0},
		{"auto fills in", "kind: cuda", written, driver(gpus(), nil), "gpu1 1GB/s config, gpu2 9850MB/s nvml, host 2GB/s config", 0},
		{"auto without links", "kind: cuda", "", driver(gpus(), nil), "gpu1 50GB/s nvml, gpu2 9850MB/s nvml", 0},
		{"auto without a driver", "kind: cuda", written, driver(nil, none), "gpu1 1GB/s config, host 2GB/s config", 1},
		{"nvml has the last word on GPUs", "kind: cuda, topology: nvml", written, driver(gpus(), nil), "gpu1 50GB/s nvml, gpu2 9850MB/s nvml, host 2GB/s config", 0},
		{"measured above all", "kind: cuda, topology: nvml, measured: " + file, written, driver(gpus(), nil), "gpu1 3GB/s measured, gpu2 7GB/s measured, host 2GB/s config", 1},
		{"measured by selector", "kind: cuda, topology: config, measured: " + file, written, nil, "gpu1 3GB/s measured, host 2GB/s config", 1},
		{"measured of another fabric", "kind: shm, measured: " + file, written, nil, "gpu1 1GB/s config, host 2GB/s config", 1},
		{"measured without GPUs", "kind: shm, measured: " + shm, "", nil, "gpu1 3GB/s measured", 1},
	} {
		w, err := Load(t.Context(), server(t, c.fabric, c.links), c.read, nil)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := loads(w); got != c.want || len(w.Notes) != c.notes {
			t.Errorf("%s: %s, notes %q\nwant %s", c.name, got, w.Notes, c.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	lost := gpus()
	lost.GPUs[1].Fault = "fallen off"
	few := &topology.Inventory{GPUs: gpus().GPUs[:2]}
	broken := filepath.Join(t.TempDir(), "links.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		fabric string
		read   Reader
		want   string
	}{
		{"kind: cuda, topology: nvml", driver(nil, errors.New("no driver")), "the driver does not describe the GPUs: no driver"},
		{"kind: cuda, topology: nvml", driver(few, nil), `devices[2] (gpu2): no GPU "GPU-22222222"`},
		{"kind: cuda, topology: nvml", driver(lost, nil), "devices[1] (gpu1): GPU 1 is not usable: fallen off"},
		{"kind: shm, measured: " + broken, nil, "fabric.measured"},
		{"kind: shm, measured: /none/links.json", nil, "no such file"},
	} {
		if _, err := Load(t.Context(), server(t, c.fabric, ""), c.read, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.fabric, err, c.want)
		}
	}
	// With auto the same GPUs are notes.
	w, err := Load(t.Context(), server(t, "kind: cuda", ""), driver(few, nil), nil)
	if err != nil || len(w.Notes) != 1 || len(w.GPUs) != 2 {
		t.Errorf("%+v, %v", w, err)
	}
}

// TestApply: what is applied survives the way to the other processes, and ranks
// lenders there.
func TestApply(t *testing.T) {
	cfg := server(t, "kind: cuda", "{from: gpu0, to: host, bandwidth: 2GB/s, latency: 3us}")
	inv := gpus()
	order := func(c *configs.Config) (names []string) {
		s, err := planner.Resolve(c, configs.CatalogGeometry)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range s.Model("m").Lenders {
			names = append(names, l.Worker.Config.Name)
		}
		return names
	}
	for i, want := range [][]string{{"one", "two"}, {"two", "one"}} {
		if i == 1 { // the links of 0 and 1 are gone
			inv.GPUs[0].NVLinks, inv.GPUs[1].NVLinks = nil, nil
			inv.GPUs[1].PCIe.Width = 4
			inv.Pairs = topology.Connect(inv.GPUs, func(int, int) (topology.P2P, string) { return topology.P2P{}, "" })
		}
		w, err := Load(t.Context(), cfg, driver(inv, nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := w.Apply(cfg).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		there, err := configs.Parse(text, "supervisor")
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for j, want := range []string{"GPU-00000000", "GPU-11111111", "GPU-22222222", ""} {
			if got := there.Devices[j].GPU; got != want {
				t.Errorf("%s is on GPU %q, want %q", there.Devices[j].Name, got, want)
			}
		}
		if cfg.Devices[0].GPU != "" {
			t.Error("the configuration itself was changed")
		}
		if got := order(there); !slices.Equal(got, want) {
			t.Errorf("lenders %q, want %q", got, want)
		}
		again, err := Resolve(there, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if loads(again) != loads(w) {
			t.Errorf("%s became %s", loads(w), loads(again))
		}
	}
	plain := server(t, "kind: shm", "{from: gpu0, to: gpu1, bandwidth: 2GB/s}")
	if w, err := Load(t.Context(), plain, nil, nil); err != nil || w.Apply(plain) != plain {
		t.Errorf("a configuration's own links changed it: %v", err)
	}
}

// TestMeasuredWithoutNVML: whose the links of a file are is known from a list of
// GPUs, which has nothing else.
func TestMeasuredWithoutNVML(t *testing.T) {
	list := gpus()
	for i := range list.GPUs {
		list.GPUs[i] = topology.GPU{Index: i, UUID: list.GPUs[i].UUID}
	}
	list.Pairs = nil
	cfg := server(t, "kind: cuda, topology: config, measured: "+measuredFile(t, "cuda"), "")
	for want, read := range map[string]Reader{
		"gpu1 3GB/s measured, gpu2 7GB/s measured": driver(list, nil),
		"gpu1 3GB/s measured":                      driver(nil, errors.New("no driver")),
	} {
		w, err := Load(t.Context(), cfg, nil, read)
		if err != nil {
			t.Fatal(err)
		}
		if got := loads(w); got != want {
			t.Errorf("%s, notes %q; want %s", got, w.Notes, want)
		}
	}
}
