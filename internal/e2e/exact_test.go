package e2e

import (
	"fmt"
	"sync"
	"testing"

	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/engine/kernels"
)

// prompts are the requests that every kind of system must answer alike: short
// and long, on block borders and beside them, up to far more than the master's
// own 1,024 tokens, greedy and sampled.
func prompts() []Request {
	var out []Request
	for i, n := range []int{1, 15, 16, 17, 100, 255, 256, 700, 1024, 1025, 1800, 3000} {
		q := Request{Model: "atlas", Prompt: text(uint64(i), n), MaxTokens: 24}
		if i%2 == 1 {
			q.Temperature, q.Seed = 0.8, int64(1000+i)
		}
		out = append(out, q)
	}
	return out
}

// all sends requests, some at a time, and compares every answer.
func (s *System) all(requests []Request, clients int, dtype kernels.DType) []*openai.Kvlend {
	s.t.Helper()
	receipts := make([]*openai.Kvlend, len(requests))
	next := make(chan int)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := range next {
				got, r, err := s.Complete(s.t.Context(), requests[i])
				if err != nil {
					s.t.Errorf("request %d (%d tokens): %v", i, len(requests[i].Prompt), err)
					continue
				}
				receipts[i] = r
				s.compare(fmt.Sprintf("request %d", i), requests[i], got, dtype)
			}
		})
	}
	for i := range requests {
		next <- i
	}
	close(next)
	wg.Wait()
	return receipts
}

// compare compares an answer with the reference.
func (s *System) compare(what string, q Request, got Answer, dtype kernels.DType) {
	s.t.Helper()
	if exp := want(s.t, q, dtype); !got.equal(exp) {
		s.t.Errorf("%s of %s (%d tokens): tokens %v, hash %s; the reference has %v, %s",
			what, q.Model, len(q.Prompt), got.Tokens, got.Hash, exp.Tokens, exp.Hash)
	}
}

func TestAnswersAreTheReferences(t *testing.T) {
	for _, tc := range []struct {
		name   string
		dtype  kernels.DType
		change change
		lends  bool
		quick  bool // part of -short
	}{
		{"lending", kernels.BF16, func(*configs.Config) {}, true, true},
		{"one process", kernels.BF16, func(c *configs.Config) {
			c.Models = c.Models[:1]
			m := &c.Models[0]
			m.Role, m.LSC, m.Overflow, m.Arena = configs.RoleLocal, configs.LSC{}, configs.Overflow{}, 64<<20
		}, false, false},
		{"two buffers", kernels.BF16, func(c *configs.Config) {
			m := model(c, "atlas")
			m.LSC.Buffers, m.Arena = 2, 8<<20
		}, true, false},
		{"layer-lcm", kernels.BF16, func(c *configs.Config) { c.Lending.Unit.Policy = elastic.PolicyLayerLCM }, true, true},
		{"padded", kernels.BF16, func(c *configs.Config) { c.Lending.Unit.Policy = elastic.PolicyPadded }, true, false},
		{"blocks of 32", kernels.BF16, func(c *configs.Config) {
			for i := range c.Models {
				c.Models[i].BlockTokens = 32
			}
		}, true, false},
		{"f32", kernels.F32, func(c *configs.Config) {
			for i := range c.Models {
				c.Models[i].KVDtype = "f32"
				c.Models[i].Arena *= 2
				c.Models[i].Floor *= 2
			}
		}, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !tc.quick {
				needLong(t, "one more configuration of the same test")
			}
			s := Start(t, tc.change)
			borrowed := 0
			for _, r := range s.all(prompts(), 4, tc.dtype) {
				if r != nil {
					borrowed += r.BorrowedBlocks
				}
			}
			if (borrowed > 0) != tc.lends {
				t.Errorf("%d blocks were borrowed", borrowed)
			}
		})
	}
}
