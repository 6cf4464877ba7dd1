package api

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// APIKey is a key that clients may present.
type APIKey struct {
	Key string
	// Tenant is whose key it is; keys of one tenant share cached prefixes and
	// the limit. Empty: the key is a tenant of its own.
	Tenant string
	// MaxInflight bounds the tenant's generations at once; 0: no bound. Keys of
	// one tenant that give a bound must give the same one.
	MaxInflight int
}

// tenant is who a request belongs to. What is cached for one tenant is never
// found by another: the salts of their prefixes differ, and nobody else can
// know or choose them.
type tenant struct {
	name     string // travels to the scheduler, for fair shares
	root     [sha256.Size]byte
	most     int // generations at once; 0: no bound
	inflight atomic.Int64
}

// newTenant derives the tenant's root from its name and from its keys, which
// nobody else knows: the hashes of cached prefixes are fast ones, and who knew
// where another's begin could search for tokens that lead there. Every part
// has its length before it, so that no two tenants' parts read alike.
func newTenant(kind, name string, most int, keys []string) *tenant {
	h := sha256.New()
	put := func(part []byte) {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write(part)
	}
	put([]byte("kvlend tenant"))
	put([]byte(kind))
	put([]byte(name))
	keys = slices.Clone(keys)
	slices.Sort(keys) // their order in the configuration means nothing
	for _, k := range keys {
		put([]byte(k))
	}
	t := &tenant{name: name, most: most}
	h.Sum(t.root[:0])
	return t
}

// salt is a subspace of the tenant's: of all who gave the same client salt, or
// none.
func (t *tenant) salt(client *string) []byte {
	mac := hmac.New(sha256.New, t.root[:])
	if client == nil {
		mac.Write([]byte{0})
	} else {
		mac.Write([]byte{1})
		mac.Write([]byte(*client))
	}
	return mac.Sum(nil)
}

// enter takes room for n generations, which leave gives back.
func (t *tenant) enter(n int) *apiError {
	if t.most == 0 {
		return nil
	}
	if n > t.most {
		return outOfRange("n", fmt.Sprintf("%d in all", n), fmt.Sprintf("at most %d choices at once, the limit of this API key's tenant", t.most))
	}
	if now := t.inflight.Add(int64(n)); now > int64(t.most) {
		t.inflight.Add(-int64(n))
		return &apiError{status: http.StatusTooManyRequests, kind: typeRateLimit, code: "rate_limit_exceeded", outcome: "limited", retryAfter: time.Second,
			message: fmt.Sprintf("This API key's tenant may have %d answers under way at once, and %d more would be too many: try again when one is complete", t.most, n)}
	}
	return nil
}

func (t *tenant) leave(n int) {
	if t.most > 0 {
		t.inflight.Add(-int64(n))
	}
}

// keySet holds hashes of the accepted API keys: hashes are of equal length, so
// a comparison tells nothing about a key's length either.
type keySet []keyEntry

type keyEntry struct {
	hash   [sha256.Size]byte
	tenant *tenant
}

// newKeySet finds out who the tenants are. A tenant without a name is called
// by its key's place in the list, in a form that no name has.
func newKeySet(keys []APIKey) (keySet, error) {
	named := map[string][]string{} // keys by tenant
	most := map[string]int{}
	for i, k := range keys {
		switch {
		case k.Key == "":
			return nil, fmt.Errorf("APIKeys[%d]: the key is empty", i)
		case k.MaxInflight < 0:
			return nil, fmt.Errorf("APIKeys[%d]: MaxInflight is %d: it must not be negative", i, k.MaxInflight)
		case k.Tenant == "":
			continue
		case len(k.Tenant) > wire.MaxName || strings.HasPrefix(k.Tenant, "#"):
			return nil, fmt.Errorf("APIKeys[%d]: the tenant's name %s must have at most %d bytes and not begin with #", i, quote(k.Tenant), wire.MaxName)
		case k.MaxInflight > 0 && most[k.Tenant] > 0 && most[k.Tenant] != k.MaxInflight:
			return nil, fmt.Errorf("APIKeys[%d]: MaxInflight is %d, and %d for another key of the tenant %s", i, k.MaxInflight, most[k.Tenant], quote(k.Tenant))
		}
		named[k.Tenant] = append(named[k.Tenant], k.Key)
		most[k.Tenant] = max(most[k.Tenant], k.MaxInflight)
	}
	tenants := map[string]*tenant{}
	for name, own := range named {
		tenants[name] = newTenant("named", name, most[name], own)
	}
	var s keySet
	for i, k := range keys {
		e := keyEntry{hash: sha256.Sum256([]byte(k.Key)), tenant: tenants[k.Tenant]}
		if e.tenant == nil {
			e.tenant = newTenant("key", "#"+strconv.Itoa(i), k.MaxInflight, []string{k.Key})
		}
		if slices.ContainsFunc(s, func(o keyEntry) bool { return o.hash == e.hash }) {
			return nil, errors.New("APIKeys[" + strconv.Itoa(i) + "]: the key is there twice")
		}
		s = append(s, e)
	}
	return s, nil
}

// tenantKey is where authenticate leaves the tenant for the handlers.
const tenantKey = "kvlend.tenant"

// tenantOf is whose request c is; everybody's where there are no keys.
func (g *Gateway) tenantOf(c *gin.Context) *tenant {
	if t, ok := c.Get(tenantKey); ok {
		return t.(*tenant)
	}
	return g.everybody
}
