package tokenizer

import (
	"hash/maphash"
	"slices"
	"sync"
)

// The word cache keeps at most cacheShards*cacheWords words of at most
// maxCachedWord bytes: about 8 MiB when full of ordinary words.
const (
	cacheShards   = 64
	cacheWords    = 1024
	maxCachedWord = 64
)

// wordCache remembers the ids of words. A full shard starts afresh, which
// keeps the words in use without the bookkeeping of an eviction order.
type wordCache struct {
	once   sync.Once
	seed   maphash.Seed
	shards [cacheShards]cacheShard
}

type cacheShard struct {
	mu    sync.RWMutex
	words map[string][]int32 // guarded by mu; the slices are never written to
}

func (c *wordCache) shard(word string) *cacheShard {
	c.once.Do(func() { c.seed = maphash.MakeSeed() })
	return &c.shards[maphash.String(c.seed, word)%cacheShards]
}

func (c *wordCache) get(word string) ([]int32, bool) {
	s := c.shard(word)
	s.mu.RLock()
	ids, ok := s.words[word]
	s.mu.RUnlock()
	return ids, ok
}

func (c *wordCache) put(word string, ids []int32) {
	s := c.shard(word)
	key, val := string([]byte(word)), slices.Clone(ids) // do not keep the whole text alive
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.words == nil || len(s.words) >= cacheWords {
		s.words = make(map[string][]int32, cacheWords/4)
	}
	s.words[key] = val
}
