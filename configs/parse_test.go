package configs

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/elastic"
	"pgregory.net/rapid"
)

// small is a valid file for tests to break.
const small = `version: 1
devices:
  - {name: gpu0, memory: 80GB}
  - {name: gpu1}
models:
  - name: big
    source: builtin:random-atlas
    role: master
    device: gpu0
    arena: 4MiB
  - name: little
    source: builtin:random-birch
    role: worker
    device: gpu1
    arena: 4MiB
`

func TestViolations(t *testing.T) {
	for _, c := range []struct {
		name string
		old  string // of small, replaced by
		new  string
		want []string // one substring for each violation, in order
	}{
		{"valid", "", "", nil},
		{"misspelt key", "    device: gpu1", "    devcie: gpu1", []string{
			"x:11:5: models[1].device: is missing", `x:14:5: models[1].devcie: unknown key, did you mean "device"?`}},
		{"unknown key", "version: 1", "version: 1\nzzz: 1", []string{"x:2:1: zzz: unknown key; want one of version, run_dir"}},
		{"duplicate key", "    arena: 4MiB\n  - name: little", "    arena: 4MiB\n    arena: 5MiB\n  - name: little", []string{"x:11:5: models[0].arena: duplicate key, first on line 10"}},
		{"no version", "version: 1\n", "", []string{"version: is missing; want a whole number from 1 to 1"}},
		{"next version", "version: 1", "version: 2", []string{`x:1:10: version: "2": too large`}},
		{"many at once", "arena: 4MiB\n  - name", "arena: 4Mb\n    threads: -1\n    block_tokens: 24\n    kv_dtype: fp16\n  - name", []string{
			`models[0].arena: "4Mb"`, `models[0].threads: "-1": too small`, `models[0].block_tokens: "24": not a multiple of 16; want a whole number from 16 to 1024, a multiple of 16`,
			`models[0].kv_dtype: "fp16": unknown, did you mean "f16"?; want one of bf16, f32, f16`}},
		{"wrong kinds", "devices:\n", "log: text\ngateway: {api_keys: 7, listen: [], max_body: }\nfabric: {pace: 1}\ndevices:\n", []string{
			`log: "text": is a single value; want a mapping with the keys level, format`, "gateway.api_keys: is a single value; want a list",
			"gateway.listen: is a list; want a string", "gateway.max_body: has no value", `fabric.pace: "1": is not true or false`}},
		{"unknown device", "device: gpu1", "device: gpu11", []string{`models[1].device: "gpu11": no such device, did you mean "gpu1"?; want one of gpu0, gpu1`}},
		{"same names", "name: little", "name: big", []string{`models[1].name: "big": the name of models[0] as well`}},
		{"bad name", "name: little", "name: a b", []string{`models[1].name: "a b": not a usable name`}},
		{"same devices", "{name: gpu1}", "{name: gpu0}", []string{`devices[1].name: "gpu0": the name of devices[0]`, `models[1].device: "gpu1": no such device`}},
		{"no models", small[strings.Index(small, "models:"):], "models: []", []string{`models: no models; want at least one`}},
		{"null models", small[strings.Index(small, "models:"):], "models:", []string{`models: no models`}},
		{"f16 to be served", "arena: 4MiB\n  - name", "arena: 4MiB\n    kv_dtype: f16\n  - name", []string{`models[0].kv_dtype: "f16": the engine has no f16 KV cache`}},
		{"keys of other roles", small[strings.Index(small, "    role: master"):], "    role: worker\n    device: gpu0\n    arena: 4MiB\n    lsc: {buffers: 1}\n    borrow_from: []\n  - {name: l, source: builtin:random-birch, role: local, device: gpu1, arena: 1MiB, floor: 0}", []string{
			`models[0].lsc: only a master has this, and "big" is a worker`, "models[0].borrow_from: only a master", `models[1].floor: only a worker has this, and "l" is a local`}},
		{"three buffers", "arena: 4MiB\n  - name", "arena: 4MiB\n    lsc: {buffers: 3}\n  - name", []string{`models[0].lsc.buffers: "3": too large`}},
		{"zero_on_return of others", "    role: master\n", "    role: master\n    zero_on_return: true\n", []string{`models[0].zero_on_return: only a worker has this`}},
		{"shares of others", "    role: master\n", "    role: master\n    shares: [{master: big}]\n", []string{`models[0].shares: only a worker has this`}},
		{"shares", "    device: gpu1\n", "    device: gpu1\n    shares: [{master: bgi}, {master: big, weight: 0}, {master: big, quota: 0%}, {weight: 2}, {master: big, quota: 3}]\n", []string{
			`shares[1].weight: "0": too small; want a whole number from 1 to 1000`, `shares[3].master: is missing`, `shares[4].quota: "3": must end in "%"`}},
		{"shares again", "    device: gpu1\n", "    device: gpu1\n    shares: [{master: bgi}, {master: big}, {master: big, quota: 0%}, {master: little}]\n", []string{
			`shares[0].master: "bgi": no such master that borrows from little, did you mean "big"?`, `shares[2].master: "big": named twice`,
			`shares[2].quota: "0%": could never borrow anything; want more than 0%, or borrow_from without little`, `shares[3].master: "little"`}},
		{"verify", "models:\n", "lending: {verify: some}\nmodels:\n", []string{`lending.verify: "some": unknown; want one of off, sample, all`}},
		{"floor", "    device: gpu1\n", "    device: gpu1\n    floor: 5MiB\n", []string{`models[1].floor: "5MiB": larger than the arena; want at most 4MiB`}},
		{"batch below block", "    device: gpu1\n", "    device: gpu1\n    block_tokens: 32\n    max_batch_tokens: 16\n", []string{`models[1].max_batch_tokens: "16": smaller than one block; want at least block_tokens, 32`}},
		{"batch below running", "    device: gpu1\n", "    device: gpu1\n    max_running: 300\n", []string{`models[1].max_batch_tokens: "256": smaller than one token for each`}},
		{"small arena", "device: gpu1\n    arena: 4MiB", "device: gpu1\n    arena: 20KiB", []string{`models[1].arena: "20KiB": holds not even one full block; want at least 24KiB`}},
		{"unknown builtin", "builtin:random-birch", "builtin:brich", []string{`models[1].source: "builtin:brich": no model "builtin:brich", did you mean "builtin:birch"?`}},
		{"unknown catalog", "builtin:random-birch", "catalog:qwen3-8b", []string{`did you mean "catalog:Qwen3-8B"?`}},
		{"borrow from nobody", "arena: 4MiB\n  - name", "arena: 4MiB\n    borrow_from: [litle, little, little, big]\n  - name", []string{
			`borrow_from[0]: "litle": no such worker, did you mean "little"?`, `borrow_from[2]: "little": named twice`, `borrow_from[3]: "big": is a master and lends nothing`}},
		{"links", "models:\n", "links:\n  - {from: gpu0, to: gpu0, bandwidth: 1GB/s}\n  - {from: gpu0, to: gpu1, bandwidth: 0B/s}\n  - {from: gpu0, to: gpu9, bandwidth: 1GB/s, oneway: true}\nmodels:\n", []string{
			`links[1].bandwidth: "0B/s": too small`}},
		{"links again", "models:\n", "links:\n  - {from: gpu0, to: gpu0, bandwidth: 1GB/s}\n  - {from: gpu0, to: gpu1, bandwidth: 1GB/s}\n  - {from: gpu1, to: gpu0, bandwidth: 1GB/s, oneway: true}\n  - {from: gpu0, to: gpu9, bandwidth: 1GB/s}\nmodels:\n", []string{
			`links[0].to: "gpu0": a link from a device to itself`, "links[2]: links[1] is between the same devices already", `links[3].to: "gpu9": no such device`}},
		{"both ways", "models:\n", "links:\n  - {from: gpu0, to: gpu1, bandwidth: 1GB/s, oneway: true}\n  - {from: gpu1, to: gpu0, bandwidth: 2GB/s, oneway: true}\nmodels:\n", nil},
		{"pace without links", "models:\n", "fabric: {pace: true}\nmodels:\n", []string{`fabric.pace: "true": no link leads from "gpu0" to "gpu1", between "big" and "little"`, `no link leads from "gpu1" to "gpu0"`}},
		{"pace on cuda", "models:\n", "fabric: {pace: true, kind: cuda}\nlinks: [{from: gpu0, to: gpu1, bandwidth: 1GB/s}]\nmodels:\n", []string{"only the shm fabric emulates links"}},
		{"device memory", "memory: 80GB", "memory: 3MiB", []string{`models[0].arena: "4MiB": the arenas on "gpu0" together are larger than devices[0].memory`}},
		{"listen", "models:\n", "gateway: {listen: localhost}\nmodels:\n", []string{`gateway.listen: "localhost": not an address to listen on`}},
		{"port", "models:\n", "gateway: {listen: '127.0.0.1:65536'}\nmodels:\n", []string{`gateway.listen: "127.0.0.1:65536"`}},
		{"run dir", "models:\n", "run_dir: here\nmodels:\n", []string{`run_dir: "here": not an absolute path`}},
		{"keys", "models:\n", "gateway: {api_keys: [geheim, geheim, '', \"ge heim\", {file: /k, x: 1}, {}, {file: ''}]}\nmodels:\n", []string{
			"api_keys[2]: is not a key; want a string, {file: PATH} or {key: STRING}", "api_keys[4].x: unknown key",
			"api_keys[5]: needs either a key or a file", "api_keys[6]: needs either a key or a file"}},
		{"keys again", "models:\n", "gateway: {api_keys: [geheim, {key: geheim, tenant: t}, \"ge heim\"]}\nmodels:\n", []string{
			"api_keys[1]: the same key as gateway.api_keys[0]", "api_keys[2]: holds characters that no HTTP header can carry"}},
		{"key and file", "models:\n", "gateway: {api_keys: [{key: geheim, file: /k}, {key: k, max_inflight: -1}]}\nmodels:\n", []string{
			"api_keys[0]: needs either a key or a file", `api_keys[1].max_inflight: "-1": too small`}},
		{"tenants", "models:\n", "gateway: {api_keys: [{key: a, tenant: 't t'}, {key: b, tenant: u, max_inflight: 2}, {key: c, tenant: u}, {key: d, tenant: u, max_inflight: 3}]}\nmodels:\n", []string{
			`api_keys[0].tenant: "t t": not a usable name`, `api_keys[3].max_inflight: "3": gateway.api_keys[1] says 2 for the same tenant; want one limit per tenant`}},
		{"a model called auto", "name: little", "name: auto", []string{`models[1].name: "auto": the name by which clients leave the choice of the model to the gateway`}},
		{"deadline", "models:\n", "lending: {lease: 1s}\nmodels:\n", []string{`lending.reclaim_deadline: "2s": not shorter than the lease`}},
		{"waste", "models:\n", "lending: {unit: {max_waste: 100%}}\nmodels:\n", []string{`max_waste: "100%": would let the whole unit be padding`}},
		{"parameters of others", "models:\n", "lending: {scale_down: {policy: floor, window: 9s, quantile: 3%}}\nmodels:\n", []string{
			`scale_down.window: has no meaning with policy floor; want one of the policies ["window" "quantile"]`, "scale_down.quantile: has no meaning"}},
		{"marks", "models:\n", "lending: {scale_down: {policy: hysteresis, low: 80%}}\nmodels:\n", []string{`low: "80%": not below high`}},
		{"zero quantile", "models:\n", "lending: {scale_down: {policy: quantile, quantile: 0%}}\nmodels:\n", []string{`quantile: "0%": no request would fit`}},
		{"no unit fits", "models:\n", "lending: {unit: {policy: padded, max_waste: 0.0000001%}}\nmodels:\n", nil},
		{"two documents", "devices:\n", "---\ndevices:\n", []string{"models: is missing", "a second YAML document"}},
		{"not YAML", "devices:\n", "devices: [\n", []string{"not YAML: "}},
		{"tab", "devices:\n", "\tdevices:\n", []string{"x:2:1: not YAML: found a tab character"}},
		{"strange key", "version: 1", "version: 1\n\"a\\nb\": 1\n? [x]\n: 1", []string{`x:2:1: "a\nb": unknown key`, "x:3:3: ?: unknown key"}},
		{"list", small, "- 1", []string{"is a list; want a mapping with the keys version"}},
		{"alias", small[strings.Index(small, "  - name: little"):], "  - &b {name: little, source: builtin:random-birch, role: worker, device: gpu1, arena: 1MiB}\n  - *b", []string{`the name of models[1] as well`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(small, c.old, c.new, 1)
			if c.old != c.new && text == small {
				t.Fatal("nothing was replaced")
			}
			_, err := Parse([]byte(text), "x")
			wantViolations(t, err, c.want)
		})
	}
}

func wantViolations(t *testing.T, err error, want []string) {
	t.Helper()
	if len(want) == 0 {
		if err != nil {
			t.Fatalf("refused:\n%v", err)
		}
		return
	}
	var errs Errors
	if !errors.As(err, &errs) {
		t.Fatalf("error is %v, want Errors", err)
	}
	if len(errs) != len(want) {
		t.Fatalf("%d violations, want %d:\n%v", len(errs), len(want), err)
	}
	lines := strings.Split(err.Error(), "\n")
	for i, w := range want {
		if !strings.Contains(lines[i], w) {
			t.Errorf("violation %d is\n%s\nwant\n%s", i, lines[i], w)
		}
		if strings.Contains(lines[i], "geheim") || strings.Contains(lines[i], "ge heim") {
			t.Errorf("a key is shown: %s", lines[i])
		}
		if errs[i].File != "x" || errs[i].Line < 1 || errs[i].Column < 1 {
			t.Errorf("no place: %+v", errs[i])
		}
	}
}

func TestHostileYAML(t *testing.T) {
	for name, text := range map[string]string{
		"empty":        "",
		"comment":      "# nothing\n",
		"null":         "null",
		"alias bomb":   "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nmodels: &c [*b,*b,*b,*b,*b,*b,*b]\n",
		"wide aliases": "models:\n- &m {borrow_from: [" + strings.Repeat("a,", 5000) + "]}\n" + strings.Repeat("- *m\n", 5000),
		"self alias":   "models: &a [*a]",
		"deep":         strings.Repeat("[", 20000),
		"deep mapping": strings.Repeat("models: [", 2000),
		"merge key":    "<<: {version: 1}",
		"big":          strings.Repeat("#", maxInput+1),
		"binary":       "\x00\x01\xff",
		"complex key":  "? [a, b]\n: 1",
	} {
		if _, err := Parse([]byte(text), "x"); !errors.As(err, new(Errors)) {
			t.Errorf("%s: %v", name, err)
		} else if name != "wide aliases" && len(err.Error()) > 20_000 {
			t.Errorf("%s: a message of %d bytes", name, len(err.Error()))
		} else if name == "wide aliases" && !strings.Contains(err.Error(), "too many values once aliases are expanded") {
			t.Errorf("%s: expanded without limit", name)
		}
	}
}

// TestScaleDownDefaults: each policy gets its own parameters, and only those.
func TestScaleDownDefaults(t *testing.T) {
	for text, want := range map[string]ScaleDown{
		"{}":                                      {Policy: "floor"},
		"{policy: window}":                        {Policy: "window", Window: defaultWindow},
		"{policy: window, window: 5s}":            {Policy: "window", Window: Duration(5 * time.Second)},
		"{policy: quantile}":                      {Policy: "quantile", Window: defaultWindow, Quantile: 99},
		"{policy: hysteresis}":                    {Policy: "hysteresis", Low: 40, High: 80},
		"{policy: hysteresis, low: 0%}":           {Policy: "hysteresis", Low: 0, High: 80},
		"{policy: hysteresis, high: 9%, low: 1%}": {Policy: "hysteresis", Low: 1, High: 9},
		"{policy: floor}":                         {Policy: "floor"},
	} {
		c, err := Parse([]byte(strings.Replace(small, "models:", "lending: {scale_down: "+text+"}\nmodels:", 1)), "x")
		if err != nil {
			t.Error(err)
			continue
		}
		if c.Lending.ScaleDown != want {
			t.Errorf("%s: %+v, want %+v", text, c.Lending.ScaleDown, want)
		}
		if _, err := elastic.NewScalePolicy(c.Lending.ScaleDown.Options()); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		roundTrip(t, c)
	}
}

// TestCheckGeometry: a directory is unknown to Parse, and checked when
// somebody who knows it asks.
func TestCheckGeometry(t *testing.T) {
	c, err := Parse([]byte(strings.Replace(small, "builtin:random-birch", "/models/large", 1)), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CheckGeometry(CatalogGeometry); err != nil {
		t.Errorf("an unknown directory: %v", err)
	}
	large := func(source string) (g geometry, err error) {
		if source == "/models/large" {
			return geometry{Layers: 80, KVHeads: 8, HeadDim: 128}, nil
		}
		return CatalogGeometry(source)
	}
	wantViolations(t, c.CheckGeometry(large), []string{`models[1].arena: "4MiB": holds not even one full block; want at least 5MiB`})
	broken := func(string) (geometry, error) { return geometry{}, errors.New("config.json is damaged") }
	wantViolations(t, c.CheckGeometry(broken), []string{"models[0].source", "config.json is damaged"})
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"none", "", "", ""},
		{"no worker", "role: worker", "role: local", "big has no worker to borrow from"},
		{"no master", "role: master", "role: local", "no master borrows from little"},
		{"never lends", "    device: gpu1\n", "    device: gpu1\n    floor: 4MiB\n", "little can never lend"},
		{"one device", "device: gpu1", "device: gpu0", "big borrows from little on its own device"},
		{"open to all", "models:\n", "gateway: {listen: ':8000'}\nmodels:\n", "anyone who can reach"},
		{"open on IPv4", "models:\n", "gateway: {listen: '0.0.0.0:8000'}\nmodels:\n", "anyone who can reach"},
		{"loopback", "models:\n", "gateway: {listen: '[::1]:8000'}\nmodels:\n", ""},
		{"open, with key", "models:\n", "gateway: {listen: ':8000', api_keys: [k]}\nmodels:\n", ""},
	} {
		cfg, err := Parse([]byte(strings.Replace(small, c.old, c.new, 1)), "x")
		if err != nil {
			t.Fatal(c.name, err)
		}
		var lines []string
		for _, w := range cfg.Warnings(CatalogGeometry) {
			lines = append(lines, w.String())
		}
		if all := strings.Join(lines, "\n"); (c.want == "") != (all == "") || !strings.Contains(all, c.want) {
			t.Errorf("%s: %q, want %q", c.name, all, c.want)
		}
	}
}

// TestRoundTrip: what Marshal prints parses to the same configuration.
func TestRoundTrip(t *testing.T) {
	for _, name := range ExampleNames() {
		c, err := Parse(mustExample(name), name)
		if err != nil {
			t.Fatal(err)
		}
		roundTrip(t, c)
	}
}

func roundTrip(t rapid.TB, c *Config) {
	t.Helper()
	text, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(text, "printed")
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	second, err := again.Marshal()
	if err != nil || string(second) != string(text) {
		t.Fatalf("printed twice:\n%s\n%s", text, second)
	}
	if c.Hash() != again.Hash() {
		t.Fatal("the hash changed")
	}
	for _, m := range []*Config{c, again} {
		for i := range m.Models {
			if len(m.Models[i].BorrowFrom) == 0 {
				m.Models[i].BorrowFrom = nil // [] and nothing mean the same
			}
			if len(m.Models[i].Shares) == 0 {
				m.Models[i].Shares = nil
			}
		}
		if len(m.Links) == 0 {
			m.Links = nil
		}
	}
	a, b := *c, *again
	a.source, b.source = nil, nil
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("%+v\n%+v", a, b)
	}
}

func TestSecrets(t *testing.T) {
	text := strings.Replace(small, "models:\n", "gateway: {api_keys: [geheim, {key: geheim2, tenant: acme, max_inflight: 4}, {file: /etc/key}]}\nmodels:\n", 1)
	c, err := Parse([]byte(text), "x")
	if err != nil {
		t.Fatal(err)
	}
	shown, err := c.Redacted().Marshal()
	if err != nil || strings.Contains(string(shown), "geheim") || !strings.Contains(string(shown), "/etc/key") || !strings.Contains(string(shown), "tenant: acme") {
		t.Errorf("%v\n%s", err, shown)
	}
	again, err := Parse(shown, "shown")
	if err != nil {
		t.Fatal(err)
	}
	if k := again.Gateway.APIKeys[1]; k.Tenant != "acme" || k.MaxInflight != 4 || k.Value != "hidden-1" {
		t.Errorf("what is shown reads as %#v", k)
	}
	if c.Gateway.APIKeys[0].Value != "geheim" {
		t.Error("Redacted changed its receiver")
	}
	other, err := Parse([]byte(strings.Replace(text, "geheim", "anders", 1)), "x")
	if err != nil || other.Hash() != c.Hash() {
		t.Error("the hash depends on a secret")
	}
	if other, err = Parse([]byte(strings.Replace(text, "80GB", "81GB", 1)), "x"); err != nil || other.Hash() == c.Hash() {
		t.Error("the hash does not depend on the config")
	}
}

func TestKeys(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	two := write("two", "  two\n")
	g := Gateway{APIKeys: []APIKey{{Value: "one", Tenant: "t"}, {File: two}}}
	if keys, err := g.Keys(); err != nil || !slices.Equal(keys, []APIKey{{Value: "one", Tenant: "t"}, {Value: "two", File: two}}) {
		t.Errorf("%v, %v", keys, err)
	}
	if g.APIKeys[1].Value != "" {
		t.Error("Keys wrote a secret into the configuration")
	}
	for name, path := range map[string]string{
		"missing": filepath.Join(dir, "none"), "empty": write("empty", "\n"), "lines": write("lines", "a\nb\n"), "long": write("long", strings.Repeat("k", maxKey+1)),
	} {
		bad := Gateway{APIKeys: []APIKey{{File: path}}}
		if _, err := bad.Keys(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kvlend.yaml")
	if _, err := Load(path); err == nil {
		t.Error("a missing file was loaded")
	}
	if err := os.WriteFile(path, []byte(small+"x: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.HasPrefix(err.Error(), path+":16:1: x: unknown key") {
		t.Errorf("%v", err)
	}
}

func TestRoles(t *testing.T) {
	c, err := Parse(mustExample("h100-qwen3.yaml"), "x")
	if err != nil {
		t.Fatal(err)
	}
	master, at := c.Model("qwen3-32b")
	if workers := c.Workers(master); at != 0 || len(workers) != 3 {
		t.Errorf("%d workers", len(workers))
	}
	worker, _ := c.Model("qwen3-8b")
	if masters := c.Masters(worker); len(masters) != 1 || masters[0] != master || len(c.Workers(worker)) != 0 {
		t.Errorf("%d masters", len(masters))
	}
	if m, i := c.Model("none"); m != nil || i != -1 {
		t.Error("a model that does not exist")
	}
	if l, ok := c.Link("gpu1", "gpu0"); !ok || l.Bandwidth != 450e9 {
		t.Errorf("%+v, %t", l, ok)
	}
	if _, ok := c.Link("gpu1", "gpu2"); ok {
		t.Error("a link that does not exist")
	}
	if master.Servable() {
		t.Error("a catalog model can be served")
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range ExampleNames() {
		f.Add(mustExample(name))
	}
	f.Add([]byte(small))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, "fuzz")
		if err != nil {
			var errs Errors
			if !errors.As(err, &errs) || len(errs) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			if lines := strings.Count(err.Error(), "\n") + 1; lines != len(errs) {
				t.Fatalf("%d violations on %d lines:\n%v", len(errs), lines, err)
			}
			return
		}
		c.Warnings(CatalogGeometry)
		roundTrip(t, c)
	})
}

// TestVerifyOff: off is a word here, quoted or not, and no boolean.
func TestVerifyOff(t *testing.T) {
	for _, word := range []string{"off", `"off"`} {
		c, err := Parse([]byte(strings.Replace(small, "models:\n", "lending: {verify: "+word+"}\nmodels:\n", 1)), "x")
		if err != nil || c.Lending.Verify != "off" {
			t.Errorf("verify: %s: %v, %v", word, c, err)
		}
	}
	c, err := Parse([]byte(small), "x")
	if err != nil || c.Lending.Verify != "sample" || c.Models[1].ZeroOnReturn {
		t.Errorf("defaults: %v", err)
	}
}
