package master

import (
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// Tenant is the cache as one lender's agent sees it (agent.Tenant).
type Tenant struct {
	Cache  *Cache
	Lender int // index in Config.Lender
}

// Granted implements agent.Tenant.
func (t Tenant) Granted(units []wire.UnitEpoch) { t.Cache.Granted(t.Lender, units) }

// Denied implements agent.Tenant.
func (t Tenant) Denied(retry time.Duration, available int) {
	t.Cache.Denied(t.Lender, retry, available)
}

// Retry implements agent.Tenant.
func (t Tenant) Retry() { t.Cache.Retry() }

// Reclaim implements agent.Tenant.
func (t Tenant) Reclaim(units int, done func(returned int)) { t.Cache.Reclaim(t.Lender, units, done) }

// Lost implements agent.Tenant.
func (t Tenant) Lost(units []wire.UnitEpoch) { t.Cache.Lost(t.Lender, units) }
