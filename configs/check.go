package configs

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kvlend/kvlend/elastic"
)

// Name patterns of models and devices: what fits in URLs, file names and
// metric labels.
const (
	patternName = `^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`
	acceptName  = "1 to 63 letters, digits, dots, dashes and underscores, the first a letter or digit"
)

var nameRE = regexp.MustCompile(patternName)

// checker collects the violations of checks that span fields.
type checker struct {
	c    *Config
	find GeometryFunc
	errs Errors
	// disks says which device of the overflow pools has a path.
	disks map[string]string
}

// check runs every cross-field check.
func (c *Config) check(find GeometryFunc) Errors {
	k := &checker{c: c, find: find, disks: map[string]string{}}
	k.gateway()
	k.fabric()
	k.devices()
	k.links()
	k.models()
	k.lending()
	k.geometry()
	k.deviceMemory()
	return k.errs
}

func (k *checker) fail(path, value, problem, accepted string) {
	k.errs = append(k.errs, k.c.violation(path, value, problem, accepted))
}

// violation is a Violation at the place where path was written.
func (c *Config) violation(path, value, problem, accepted string) Violation {
	v := Violation{Path: path, Value: value, Problem: problem, Accepted: accepted}
	if c.source != nil {
		p := c.source.at(path)
		v.File, v.Line, v.Column = c.source.name, p.line, p.column
	}
	return v
}

func (k *checker) gateway() {
	g := &k.c.Gateway
	host, port, err := net.SplitHostPort(g.Listen)
	if n, perr := strconv.Atoi(port); err != nil || perr != nil || n < 0 || n > 65535 || strings.ContainsAny(host, " /") {
		k.fail("gateway.listen", g.Listen, "not an address to listen on", "host:port, such as 127.0.0.1:8000")
	}
	k.apiKeys(g.APIKeys)
	if dir := k.c.RunDir; dir != "" && !filepath.IsAbs(dir) {
		k.fail("run_dir", dir, "not an absolute path", "an absolute path, or nothing")
	}
	if dir := k.c.Audit.Dir; dir != "" && !filepath.IsAbs(dir) {
		k.fail("audit.dir", dir, "not an absolute path", "an absolute path, or nothing")
	}
}

func (k *checker) fabric() {
	f := &k.c.Fabric
	if f.Pace && f.Kind != "shm" {
		k.fail("fabric.pace", "true", "only the shm fabric emulates links", "false, or kind: shm")
	}
	if f.Topology == TopologyNVML && f.Kind != "cuda" {
		k.fail("fabric.topology", f.Topology, "the shm fabric moves bytes in the host's memory, not over the links of GPUs", "auto or config, or kind: cuda")
	}
	if f.Driver != "" && f.Kind != "cuda" {
		k.fail("fabric.driver", f.Driver, "the shm fabric has no driver", "nothing, or kind: cuda")
	}
	if f.Measured == "" {
		return
	}
	if !filepath.IsAbs(f.Measured) {
		k.fail("fabric.measured", f.Measured, "not an absolute path", "an absolute path, or nothing")
	}
	if f.Pace {
		k.fail("fabric.measured", f.Measured, "emulated links have the bandwidths of links", "nothing, or pace: false")
	}
}

func (k *checker) apiKeys(keys []APIKey) {
	seen := map[[2]string]int{}
	limited := map[string]int{} // by tenant: the key with its limit
	for i, key := range keys {
		path := fmt.Sprintf("gateway.api_keys[%d]", i)
		secret := [2]string{key.Value, key.File}
		if first, dup := seen[secret]; dup {
			k.fail(path, "", fmt.Sprintf("the same key as gateway.api_keys[%d]", first), "")
		}
		seen[secret] = i
		if strings.ContainsFunc(key.Value, func(r rune) bool { return r <= ' ' || r > '~' }) {
			k.fail(path, "", "holds characters that no HTTP header can carry", "printable ASCII without spaces")
		}
		if key.Tenant != "" && !nameRE.MatchString(key.Tenant) {
			k.fail(path+".tenant", key.Tenant, "not a usable name", acceptName)
		}
		if key.Tenant == "" || key.MaxInflight == 0 {
			continue
		}
		if first, ok := limited[key.Tenant]; ok && keys[first].MaxInflight != key.MaxInflight {
			k.fail(path+".max_inflight", strconv.Itoa(key.MaxInflight), fmt.Sprintf("gateway.api_keys[%d] says %d for the same tenant", first, keys[first].MaxInflight),
				"one limit per tenant")
		}
		limited[key.Tenant] = i
	}
}

// unique reports names that are malformed or used twice.
func (k *checker) unique(list string, names []string) {
	seen := map[string]int{}
	for i, name := range names {
		path := fmt.Sprintf("%s[%d].name", list, i)
		if !nameRE.MatchString(name) {
			k.fail(path, name, "not a usable name", acceptName)
		}
		if first, dup := seen[name]; dup {
			k.fail(path, name, fmt.Sprintf("the name of %s[%d] as well", list, first), "a unique name")
			continue
		}
		seen[name] = i
	}
}

func (k *checker) deviceNames() []string {
	names := make([]string, len(k.c.Devices))
	for i, d := range k.c.Devices {
		names[i] = d.Name
	}
	return names
}

func (k *checker) modelNames() []string {
	names := make([]string, len(k.c.Models))
	for i, m := range k.c.Models {
		names[i] = m.Name
	}
	return names
}

func (k *checker) devices() { k.unique("devices", k.deviceNames()) }

// known reports a reference to something that does not exist.
func (k *checker) known(path, name, kind string, names []string) {
	if slices.Contains(names, name) {
		return
	}
	problem := "no such " + kind
	for _, n := range names {
		if strings.ToLower(n) == nearest(name, []string{strings.ToLower(n)}) {
			problem += fmt.Sprintf(", did you mean %q?", n)
			break
		}
	}
	accepted := ""
	if len(names) > 0 {
		accepted = listed(names)
	}
	k.fail(path, name, problem, accepted)
}

// maxListed bounds how many names a message lists.
const maxListed = 16

// listed names what would be accepted.
func listed(names []string) string {
	shown := make([]string, min(len(names), maxListed))
	for i := range shown {
		if shown[i] = names[i]; !nameRE.MatchString(names[i]) {
			shown[i] = quoteShort(names[i])
		}
	}
	if len(names) > maxListed {
		shown = append(shown, fmt.Sprintf("and %d more", len(names)-maxListed))
	}
	return "one of " + strings.Join(shown, ", ")
}

func (k *checker) links() {
	devices := k.deviceNames()
	for i, l := range k.c.Links {
		path := fmt.Sprintf("links[%d]", i)
		k.known(path+".from", l.From, "device", devices)
		k.known(path+".to", l.To, "device", devices)
		if l.From == l.To {
			k.fail(path+".to", l.To, "a link from a device to itself", "another device")
		}
		for j, o := range k.c.Links[:i] {
			same := o.From == l.From && o.To == l.To
			back := o.From == l.To && o.To == l.From
			if same || back && !(o.OneWay && l.OneWay) {
				k.fail(path, "", fmt.Sprintf("links[%d] is between the same devices already", j), "one link for each direction, both oneway: true, or one link for both")
			}
		}
	}
}

func (k *checker) models() {
	if len(k.c.Models) == 0 {
		k.fail("models", "", "no models", "at least one")
	}
	if len(k.c.Models) > elastic.MaxOwner {
		k.fail("models", "", "too many models", fmt.Sprintf("at most %d", elastic.MaxOwner))
	}
	k.unique("models", k.modelNames())
	for i := range k.c.Models {
		k.model(&k.c.Models[i], fmt.Sprintf("models[%d]", i))
	}
}

func (k *checker) model(m *Model, path string) {
	if m.Name == AutoModel {
		k.fail(path+".name", m.Name, "the name by which clients leave the choice of the model to the gateway", "another name")
	}
	k.known(path+".device", m.Device, "device", k.deviceNames())
	if m.MaxBatchTokens < m.BlockTokens {
		k.fail(path+".max_batch_tokens", strconv.Itoa(m.MaxBatchTokens), "smaller than one block", fmt.Sprintf("at least block_tokens, %d", m.BlockTokens))
	}
	if m.MaxBatchTokens < m.MaxRunning {
		k.fail(path+".max_batch_tokens", strconv.Itoa(m.MaxBatchTokens), "smaller than one token for each running sequence", fmt.Sprintf("at least max_running, %d", m.MaxRunning))
	}
	if m.KVDtype == "f16" && m.Servable() {
		k.fail(path+".kv_dtype", m.KVDtype, "the engine has no f16 KV cache", "bf16 or f32, or a catalog model")
	}
	if strings.TrimSpace(m.Source) == "" {
		k.fail(path+".source", m.Source, "names no model", "builtin:NAME, catalog:NAME or a directory")
	}
	for _, only := range []struct{ key, role string }{
		{"lsc", RoleMaster}, {"borrow_from", RoleMaster}, {"host", RoleMaster}, {"overflow", RoleMaster}, {"floor", RoleWorker},
		{"zero_on_return", RoleWorker}, {"shares", RoleWorker},
	} {
		if m.Role != only.role && k.c.source.has(path+"."+only.key) {
			k.fail(path+"."+only.key, "", fmt.Sprintf("only a %s has this, and %q is a %s", only.role, m.Name, m.Role), "")
		}
	}
	if m.Role == RoleWorker && m.Floor > m.Arena {
		k.fail(path+".floor", m.Floor.String(), "larger than the arena", "at most "+m.Arena.String())
	}
	k.borrowFrom(m, path)
	k.shares(m, path)
	k.host(m, path+".host")
	k.overflow(m, path+".overflow")
}

func (k *checker) host(m *Model, path string) {
	if m.Host.Device == "" {
		if k.c.Fabric.Pace && m.Host.Bytes > 0 {
			k.fail(path+".device", "", "missing: fabric.pace needs a link to the device that stands for the host", "the name of a device")
		}
		return
	}
	k.known(path+".device", m.Host.Device, "device", k.deviceNames())
	if m.Host.Device == m.Device {
		k.fail(path+".device", m.Host.Device, "the device of the model itself", "another device")
	}
	if k.c.Fabric.Pace {
		k.paced(m.Device, m.Host.Device, fmt.Sprintf("%q and its host memory", m.Name))
	}
}

// paced reports a missing link between two devices.
func (k *checker) paced(a, b, between string) {
	for _, way := range [][2]string{{a, b}, {b, a}} {
		if _, ok := k.c.Link(way[0], way[1]); !ok && way[0] != way[1] {
			k.fail("fabric.pace", "true", fmt.Sprintf("no link leads from %q to %q, between %s", way[0], way[1], between), "a link to pace, or false")
		}
	}
}

func (k *checker) borrowFrom(m *Model, path string) {
	if m.Role != RoleMaster {
		return
	}
	var workers []string
	for _, o := range k.c.Models {
		if o.Role == RoleWorker {
			workers = append(workers, o.Name)
		}
	}
	for i, name := range m.BorrowFrom {
		at := fmt.Sprintf("%s.borrow_from[%d]", path, i)
		if o, _ := k.c.Model(name); o != nil && o.Role != RoleWorker {
			k.fail(at, name, "is a "+o.Role+" and lends nothing", "a worker")
			continue
		}
		k.known(at, name, "worker", workers)
		if slices.Contains(m.BorrowFrom[:i], name) {
			k.fail(at, name, "named twice", "")
		}
	}
	if !k.c.Fabric.Pace {
		return
	}
	for _, w := range k.c.Workers(m) {
		k.paced(m.Device, w.Device, fmt.Sprintf("%q and %q", m.Name, w.Name))
	}
}

func (k *checker) shares(m *Model, path string) {
	if m.Role != RoleWorker {
		return
	}
	var masters []string
	for _, o := range k.c.Masters(m) {
		masters = append(masters, o.Name)
	}
	for i, s := range m.Shares {
		at := fmt.Sprintf("%s.shares[%d]", path, i)
		k.known(at+".master", s.Master, "master that borrows from "+m.Name, masters)
		if slices.ContainsFunc(m.Shares[:i], func(o Share) bool { return o.Master == s.Master }) {
			k.fail(at+".master", s.Master, "named twice", "")
		}
		if s.Quota == 0 {
			k.fail(at+".quota", s.Quota.String(), "could never borrow anything", "more than 0%, or borrow_from without "+m.Name)
		}
	}
}

func (k *checker) lending() {
	l := &k.c.Lending
	if l.Unit.MaxWaste >= 100 {
		k.fail("lending.unit.max_waste", l.Unit.MaxWaste.String(), "would let the whole unit be padding", "less than 100%")
	}
	if l.ReclaimDeadline >= l.Lease {
		k.fail("lending.reclaim_deadline", l.ReclaimDeadline.String(), "not shorter than the lease", "less than lease, "+l.Lease.String())
	}
	s := &l.ScaleDown
	for _, only := range []struct {
		key      string
		policies []elastic.ScaleDownPolicy
	}{
		{"window", []elastic.ScaleDownPolicy{elastic.DownWindow, elastic.DownQuantile}},
		{"quantile", []elastic.ScaleDownPolicy{elastic.DownQuantile}},
		{"low", []elastic.ScaleDownPolicy{elastic.DownHysteresis}},
		{"high", []elastic.ScaleDownPolicy{elastic.DownHysteresis}},
	} {
		path := "lending.scale_down." + only.key
		if k.c.source.has(path) && !slices.Contains(only.policies, s.Policy) {
			k.fail(path, "", fmt.Sprintf("has no meaning with policy %s", s.Policy), fmt.Sprintf("one of the policies %q", only.policies))
		}
	}
	if s.Policy == elastic.DownHysteresis && s.Low >= s.High {
		k.fail("lending.scale_down.low", s.Low.String(), "not below high", "less than "+s.High.String())
	}
	if s.Policy == elastic.DownQuantile && s.Quantile == 0 {
		k.fail("lending.scale_down.quantile", "0%", "no request would fit", "more than 0%")
	}
}

// geometry checks what needs the models' shapes. A source that find cannot
// know (a directory, during Parse) is not checked.
func (k *checker) geometry() {
	ok := true
	for i := range k.c.Models {
		m := &k.c.Models[i]
		path := fmt.Sprintf("models[%d]", i)
		g, err := m.Geometry(k.find)
		if unknown := new(UnknownSourceError); errors.As(err, &unknown) {
			ok = false
			if strings.HasPrefix(m.Source, SourceBuiltin) || !m.Servable() {
				k.fail(path+".source", m.Source, unknown.Error(), "")
			}
			continue
		}
		if err != nil {
			ok = false
			k.fail(path+".source", m.Source, strings.ReplaceAll(err.Error(), "\n", "; "), "")
			continue
		}
		if int64(m.Arena) < g.FullBlockBytes() {
			k.fail(path+".arena", m.Arena.String(), "holds not even one full block", "at least "+Bytes(g.FullBlockBytes()).String())
		}
	}
	if !ok || len(k.errs) > 0 {
		return
	}
	for i := range k.c.Models {
		if m := &k.c.Models[i]; m.Role == RoleWorker {
			k.unit(m)
		}
	}
}

func (k *checker) unit(m *Model) {
	if _, err := k.c.UnitSpec(m, k.find); err != nil {
		k.fail("lending.unit", string(k.c.Lending.Unit.Policy), err.Error(), "another policy or a larger max_waste")
	}
}

// deviceMemory checks that the arenas on a device fit in its memory.
func (k *checker) deviceMemory() {
	for i, d := range k.c.Devices {
		if d.Memory == 0 {
			continue
		}
		left := d.Memory
		for j, m := range k.c.Models {
			if m.Device != d.Name {
				continue
			}
			if left -= min(m.Arena, left+1); left < 0 {
				k.fail(fmt.Sprintf("models[%d].arena", j), m.Arena.String(), fmt.Sprintf("the arenas on %q together are larger than devices[%d].memory", d.Name, i), "at most "+d.Memory.String()+" together")
				break
			}
		}
	}
}
