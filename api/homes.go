package api

import (
	"container/list"
	"encoding/binary"
	"hash/maphash"
	"sync"

	"github.com/kvlend/kvlend/api/openai"
)

const (
	// maxHomes bounds how many places in conversations are remembered.
	maxHomes = 1 << 14
	// maxTrail bounds how many beginnings of one request are looked up.
	maxTrail = 64
	// shortestText is the least that two texts must share to be one
	// conversation, in bytes: about a block's tokens.
	shortestText = 64
)

// trail is how a conversation is recognised without knowing any model's
// tokens: hashes of beginnings of the request, each over the tenant's salt.
type trail struct {
	find  []uint64 // longest first
	store []uint64
}

// homes remembers which model served a conversation last. It forgets what was
// not asked for longest. It is safe for concurrent use.
type homes struct {
	seed maphash.Seed
	most int

	mu     sync.Mutex               // guards the fields below
	byHash map[uint64]*list.Element // of *home
	recent list.List                // latest first
}

type home struct {
	hash  uint64
	model int
}

func newHomes(most int) *homes {
	return &homes{seed: maphash.MakeSeed(), most: most, byHash: map[uint64]*list.Element{}}
}

// find returns the model of the longest beginning that is known.
func (h *homes) find(t trail) (model int, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, hash := range t.find {
		if e := h.byHash[hash]; e != nil {
			h.recent.MoveToFront(e)
			return e.Value.(*home).model, true
		}
	}
	return 0, false
}

// settle remembers the model.
func (h *homes) settle(t trail, model int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, hash := range t.store {
		if e := h.byHash[hash]; e != nil {
			e.Value.(*home).model = model
			h.recent.MoveToFront(e)
			continue
		}
		h.byHash[hash] = h.recent.PushFront(&home{hash, model})
	}
	for h.recent.Len() > h.most {
		last := h.recent.Back()
		delete(h.byHash, last.Value.(*home).hash)
		h.recent.Remove(last)
	}
}

func (h *homes) start(salt []byte) *maphash.Hash {
	var m maphash.Hash
	m.SetSeed(h.seed)
	writePart(&m, salt)
	return &m
}

// writePart is length-prefixed, so that no two lists of parts are alike.
func writePart(m *maphash.Hash, part []byte) {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(part)))
	_, _ = m.Write(n[:]) // documented never to fail
	_, _ = m.Write(part)
}

// chatTrail has a beginning after each message from the first user's on. What
// is remembered is the whole request: the next turn begins with it.
func (h *homes) chatTrail(salt []byte, req *openai.ChatRequest) trail {
	m := h.start(salt)
	for _, t := range req.Tools {
		writePart(m, t)
	}
	var t trail
	user := false
	for i := range req.Messages {
		msg := &req.Messages[i]
		for _, part := range [][]byte{[]byte(msg.Role), msg.Content, []byte(msg.Name), []byte(msg.ToolCallID), encode(msg.ToolCalls)} {
			writePart(m, part)
		}
		if user = user || msg.Role == "user"; user {
			t.find = append(t.find, m.Sum64())
		}
	}
	if n := len(t.find); n > 0 {
		t.store = t.find[n-1:]
		t.find = latest(t.find)
	}
	return t
}

// textTrail has beginnings whose lengths are powers of two, since the next
// turn begins with this one and ends anywhere. They must cover a quarter of
// the text to decide where it goes: a common preamble shall not.
func (h *homes) textTrail(salt []byte, text string) trail {
	m := h.start(salt)
	var t trail
	done := 0
	for n := shortestText; n <= len(text); n *= 2 {
		_, _ = m.WriteString(text[done:n]) // documented never to fail
		done = n
		t.store = append(t.store, m.Sum64())
		if n >= len(text)/4 {
			t.find = append(t.find, m.Sum64())
		}
	}
	t.find = latest(t.find)
	return t
}

// latest is the last maxTrail hashes, the last one first.
func latest(in []uint64) []uint64 {
	var out []uint64
	for i := len(in) - 1; i >= 0 && len(out) < maxTrail; i-- {
		out = append(out, in[i])
	}
	return out
}
