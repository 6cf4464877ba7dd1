package configs

import (
	"fmt"
	"net"
)

// Check repeats every check, for a configuration that was changed after it was
// read: what planning tries. All violations are reported, as Errors.
func (c *Config) Check(find GeometryFunc) error { return c.check(find).sorted() }

// CheckGeometry repeats the checks that need the models' shapes with a finder
// that knows more than the catalog. All violations are reported, as Errors.
func (c *Config) CheckGeometry(find GeometryFunc) error {
	k := &checker{c: c, find: find}
	k.geometry()
	return k.errs.sorted()
}

// Warnings lists what is allowed but probably not meant.
func (c *Config) Warnings(find GeometryFunc) []Violation {
	var out []Violation
	warn := func(path, value, problem, advice string) {
		out = append(out, c.violation(path, value, problem, advice))
	}
	if host, _, err := net.SplitHostPort(c.Gateway.Listen); err == nil && len(c.Gateway.APIKeys) == 0 {
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			warn("gateway.listen", c.Gateway.Listen, "anyone who can reach this address can use the models", "api_keys, or a loopback address")
		}
	}
	for i := range c.Models {
		m := &c.Models[i]
		path := fmt.Sprintf("models[%d]", i)
		switch m.Role {
		case RoleMaster:
			workers := c.Workers(m)
			if len(workers) == 0 {
				warn(path+".role", m.Role, m.Name+" has no worker to borrow from", "a model with role: worker")
			}
			for _, w := range workers {
				if w.Device == m.Device {
					warn(path+".device", m.Device, fmt.Sprintf("%s borrows from %s on its own device", m.Name, w.Name), "models on different devices")
				}
			}
		case RoleWorker:
			c.warnWorker(m, path, find, warn)
		}
	}
	return out
}

func (c *Config) warnWorker(m *Model, path string, find GeometryFunc, warn func(path, value, problem, advice string)) {
	if len(c.Masters(m)) == 0 {
		warn(path+".role", m.Role, "no master borrows from "+m.Name, "a model with role: master, or role: local")
		return
	}
	spec, err := c.UnitSpec(m, find)
	if err != nil {
		return // reported by CheckGeometry, or not known
	}
	if spec.Lendable(int64(m.Arena), int64(m.Floor)) == 0 {
		warn(path+".arena", m.Arena.String(), fmt.Sprintf("%s can never lend: a unit has %s and the floor is %s", m.Name, Bytes(spec.Bytes), m.Floor), "a larger arena, a lower floor or another unit policy")
	}
}
