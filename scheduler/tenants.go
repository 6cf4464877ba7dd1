package scheduler

// tenants counts the requests of every tenant that have not ended.
type tenants map[string]tenantCount

type tenantCount struct{ waiting, running int }

func (t tenants) add(name string) { t.move(name, 1, 0) }

// move changes a tenant's counts.
func (t tenants) move(name string, waiting, running int) {
	c := t[name]
	c.waiting += waiting
	c.running += running
	switch {
	case c.waiting < 0 || c.running < 0:
		panic("BUG: fewer than no requests of a tenant")
	case c.waiting == 0 && c.running == 0:
		delete(t, name)
	default:
		t[name] = c
	}
}
