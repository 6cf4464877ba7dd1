package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/kvlend/kvlend/api/openai"
)

// parseAsk reads a request's kvlend field: true for everything, or an object
// that names what is wanted. Unlike fields of other servers nobody sends this
// one by the way, so what is not known in it is a mistake.
func parseAsk(raw json.RawMessage) (account, receipt bool, e *apiError) {
	const accept = `kvlend must be true, false, or {"receipt": true}`
	raw = bytes.TrimSpace(raw)
	var all bool
	switch {
	case isNull(raw):
		return false, false, nil
	case json.Unmarshal(raw, &all) == nil:
		return all, all, nil
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return false, false, badParam("kvlend", "invalid_type", accept)
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if name != "receipt" {
			return false, false, badParam("kvlend", "unknown_parameter", fmt.Sprintf("kvlend has no member %s: %s", quote(name), accept))
		}
	}
	if v := members["receipt"]; !isNull(v) && json.Unmarshal(v, &receipt) != nil {
		return false, false, badParam("kvlend.receipt", "invalid_type", "kvlend.receipt must be true or false")
	}
	return false, receipt, nil
}

// askByHeader is for clients that cannot add fields to a body.
func (s *settings) askByHeader(c *gin.Context) {
	on := func(name string) bool {
		v := c.GetHeader(name)
		return v == "1" || v == "true"
	}
	if on("X-Kvlend") {
		s.account, s.receipt = true, true
	}
	if on("X-Kvlend-Receipt") {
		s.receipt = true
	}
}

// kvlend is nil unless the request asked for something in it.
func (j *job) kvlend() *openai.Kvlend {
	if !j.set.account && !j.set.receipt {
		return nil
	}
	first := j.choices[0].kvlend()
	if len(j.choices) > 1 {
		for _, c := range j.choices {
			first.Choices = append(first.Choices, c.kvlend())
		}
	}
	return &first
}

func (c *choice) kvlend() openai.Kvlend {
	var k openai.Kvlend
	if c.set.account {
		k.Account = c.account()
	}
	if c.set.receipt {
		k.Receipt = c.receipt()
	}
	return k
}

func (c *choice) account() *openai.Account {
	f := c.final
	a := &openai.Account{
		Index: c.index, TokenIDs: c.ids, CachedTokens: c.cached(), Preemptions: f.Preemptions, BorrowedBlocks: f.Borrowed,
		QueueMS: f.QueueMS, PrefillMS: f.PrefillMS, TotalMS: f.TotalMS,
	}
	if a.TokenIDs == nil {
		a.TokenIDs = []int32{}
	}
	if f.Tokens == c.counted && (f.Reason == "stop" || f.Reason == "length") {
		a.LogitsHash = fmt.Sprintf("%016x", f.LogitsHash)
	}
	return a
}

func (c *choice) receipt() *openai.Receipt {
	f := c.final
	r := f.Receipt
	return &openai.Receipt{
		Local: r.Local, Borrowed: r.Borrowed, Host: r.Host, Pool: r.Pool, Declined: r.Declined,
		PredictedMS: r.PredictedMS, RecomputeMS: r.RecomputeMS,
		QueueMS: f.QueueMS, PrefillMS: f.PrefillMS, TotalMS: f.TotalMS, Preemptions: f.Preemptions, BorrowedBlocks: f.Borrowed,
	}
}

// cached is how many of the prompt's tokens were not computed. After a
// preemption a model may also find again what it had generated; that is none of
// the prompt's.
func (c *choice) cached() int { return min(c.final.Cached, len(c.prompt.ids)) }
