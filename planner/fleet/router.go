package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/kvlend/kvlend/internal/trace"
)

// Policy says how a router picks the server of a session.
type Policy string

// Policies.
const (
	// Prefix: the server that has seen the longest part of the prompt before, at
	// least half of it, unless it has more than its share of the load; else as
	// Least.
	Prefix Policy = "prefix"
	// Least: the less loaded of two servers drawn at random.
	Least Policy = "least-loaded"
	// Random: any.
	Random Policy = "random"
)

// Policies lists them all.
func Policies() []Policy { return []Policy{Prefix, Least, Random} }

// ParsePolicy checks a name.
func ParsePolicy(name string) (Policy, error) {
	for _, p := range Policies() {
		if string(p) == name {
			return p, nil
		}
	}
	return "", fmt.Errorf("routing policy %q: want one of %q", name, Policies())
}

const (
	// overload is how many times the mean load a server may have and still get
	// sessions for their prefix (consistent hashing with bounded loads, Mirrokni
	// et al., SODA 2018, uses the same bound).
	overload = 1.25
	// memory is how long what a router has sent counts as load.
	memory = 2 * time.Minute
	// worth is the part of a prompt that a server must have seen for the router to
	// prefer it (SGLang's cache-aware router begins at the same share): less is not
	// worth an uneven load.
	worth = 0.5
	// knownServers is how many servers a router remembers of one prefix.
	knownServers = 4
)

// router assigns sessions to servers. It knows what it has sent, and nothing of
// what the servers do with it. All turns of a session go to one server.
type router struct {
	policy  Policy
	rng     *rand.Rand
	load    []float64 // tokens, as of at; what is older counts less
	at      []time.Duration
	total   float64
	totalAt time.Duration
	known   map[uint64][]int32 // servers by prefix
	depth   int                // prefixes looked up
}

func newRouter(p Policy, servers int, seed uint64) *router {
	return &router{policy: p, rng: rand.New(rand.NewPCG(seed, 0xf1ee7)), load: make([]float64, servers), at: make([]time.Duration, servers), known: map[uint64][]int32{}}
}

// decayed is a load some time later.
func decayed(load float64, by time.Duration) float64 {
	return load * math.Exp(-by.Seconds()/memory.Seconds())
}

func (r *router) loadOf(s int, now time.Duration) float64 { return decayed(r.load[s], now-r.at[s]) }

// route picks the server of a session that begins now.
func (r *router) route(s *trace.Session, now time.Duration) int {
	server := r.pick(s, now)
	tokens := weight(s)
	r.load[server] = r.loadOf(server, now) + tokens
	r.at[server] = now
	r.total = decayed(r.total, now-r.totalAt) + tokens
	r.totalAt = now
	return server
}

func (r *router) pick(s *trace.Session, now time.Duration) int {
	switch r.policy {
	case Random:
		return r.rng.IntN(len(r.load))
	case Least:
		return r.lesser(now)
	}
	keys, least := prefixes(s)
	limit := overload * (decayed(r.total, now-r.totalAt) + weight(s)) / float64(len(r.load))
	server := -1
	for i := len(keys) - 1; i >= least && server < 0; i-- {
		r.depth++
		for _, k := range r.known[keys[i]] {
			l := r.loadOf(int(k), now)
			if l <= limit && (server < 0 || l < r.loadOf(server, now)) {
				server = int(k)
			}
		}
	}
	if server < 0 {
		server = r.lesser(now)
	}
	for _, k := range keys {
		r.learn(k, int32(server))
	}
	return server
}

// learn notes that a server has seen a prefix: of those that are remembered it is
// the youngest.
func (r *router) learn(key uint64, server int32) {
	list := r.known[key]
	for _, s := range list {
		if s == server {
			return
		}
	}
	if len(list) == knownServers {
		copy(list, list[1:])
		list[len(list)-1] = server
		return
	}
	r.known[key] = append(list, server)
}

// lesser is the less loaded of two random servers.
func (r *router) lesser(now time.Duration) int {
	a, b := r.rng.IntN(len(r.load)), r.rng.IntN(len(r.load))
	if r.loadOf(b, now) < r.loadOf(a, now) {
		return b
	}
	return a
}

// weight is the work that a session's first turn makes.
func weight(s *trace.Session) float64 {
	n := 0
	for _, sp := range s.Turns[0].Append {
		n += sp.Tokens
	}
	return float64(n + s.Turns[0].Output)
}

// prefixes are the identities of the beginnings of a session's first prompt, by
// span, the shortest first; from least on they are worth going to a server for.
func prefixes(s *trace.Session) (keys []uint64, least int) {
	spans := s.Turns[0].Append
	keys = make([]uint64, len(spans))
	whole, sum := 0, 0
	for _, sp := range spans {
		whole += sp.Tokens
	}
	key := uint64(0x9e3779b97f4a7c15)
	for i, sp := range spans {
		key = mix(key ^ mix(sp.ID) ^ uint64(sp.Tokens)<<32)
		keys[i] = key
		if sum += sp.Tokens; float64(sum) < worth*float64(whole) {
			least = i + 1
		}
	}
	return keys, least
}

// mix is splitmix64's finaliser.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
