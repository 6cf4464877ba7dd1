package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine/kernels"
)

// TestLongestContext: the longest request that Eq. 1-5 allow is served, bit by
// bit, and one token more is refused with the limit and its remedy.
func TestLongestContext(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change change
		// What the equations give, worked out by hand.
		nlsc, nrc, tokens, alone int
		quick                    bool
	}{
		// K_master = 512, sum K_i = 96 + 160.
		{"default", func(*configs.Config) {}, 256, 32, 4608, 1024, true},
		// 100 layer blocks, not a multiple of 8 layers, and less than sum K_i:
		// every place of the arena is a slot.
		{"arena smaller than what is lent", func(c *configs.Config) {
			model(c, "atlas").Arena = 100 * 8 << 10
		}, 100, 0, 1600, 192, false},
		// 300 = 256 + 44: five blocks of the regular cache, and a rest.
		{"rest of a block", func(c *configs.Config) {
			model(c, "atlas").Arena = 300 * 8 << 10
		}, 256, 5, 4176, 592, true},
		// Another geometry, one worker: units of 120 KiB, 85 of them above the
		// floor, 5 blocks of birch in each; K_master = 512, (512 - 425) / 6 = 14.
		{"birch borrows from cedar", func(c *configs.Config) {
			model(c, "atlas").Role = configs.RoleLocal
			model(c, "atlas").LSC, model(c, "atlas").Overflow = configs.LSC{}, configs.Overflow{}
			b := model(c, "birch")
			b.Role, b.Floor, b.Arena, b.LSC = configs.RoleMaster, 0, 2<<20, configs.LSC{Buffers: 1}
		}, 425, 14, 7024, 1360, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !tc.quick {
				needLong(t, "one more ratio of arenas")
			}
			s := Start(t, tc.change)
			for _, m := range s.Models {
				if m.Role != configs.RoleMaster {
					continue
				}
				if m.NLSC != tc.nlsc || m.NRC != tc.nrc || m.MaxTokens != tc.tokens || m.MaxTokensAlone != tc.alone {
					t.Errorf("N_LSC %d, N_RC %d, longest %d, alone %d; want %d, %d, %d, %d",
						m.NLSC, m.NRC, m.MaxTokens, m.MaxTokensAlone, tc.nlsc, tc.nrc, tc.tokens, tc.alone)
				}
				s.longestServed(m.Name, m.MaxTokens, m.NLSC)
			}
		})
	}
}

func (s *System) longestServed(name string, tokens, nlsc int) {
	s.t.Helper()
	q := Request{Model: name, Prompt: text(4, tokens-8), MaxTokens: 8}
	got, receipt, err := s.Complete(s.t.Context(), q)
	if err != nil {
		s.t.Fatal(err)
	}
	s.compare("the longest request", q, got, kernels.BF16)
	if receipt.BorrowedBlocks != nlsc {
		s.t.Errorf("%d borrowed blocks, want all %d", receipt.BorrowedBlocks, nlsc)
	}
	for what, longer := range map[string]Request{
		"answer one token longer": {Model: name, Prompt: q.Prompt, MaxTokens: 9},
		"prompt one token longer": {Model: name, Prompt: append(text(4, tokens-8), 1), MaxTokens: 8},
	} {
		_, _, err := s.Complete(s.t.Context(), longer)
		var e *statusError
		if !errors.As(err, &e) {
			s.t.Errorf("%s: %v, want a refusal", what, err)
			continue
		}
		if e.status != 400 || e.code() != "context_length_exceeded" || e.body.Param == nil || *e.body.Param != "prompt" {
			s.t.Errorf("%s: %d %s %v", what, e.status, e.code(), e.body.Param)
		}
		for _, part := range []string{fmt.Sprintf("%d tokens", tokens), fmt.Sprint(tokens + 1), "give workers larger arenas or lower floors"} {
			if !strings.Contains(e.body.Message, part) {
				s.t.Errorf("%s: the message %q lacks %q", what, e.body.Message, part)
			}
		}
	}
}
