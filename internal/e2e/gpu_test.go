//go:build cuda

package e2e

import (
	"os"
	"testing"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/kernels"
)

// TestLostContext: a process whose GPU answers nothing any more ends, gives back
// what it had borrowed, and is started again.
func TestLostContext(t *testing.T) {
	if os.Getenv("KVLEND_TEST_LIBCUDA") != "" {
		t.Skip("a real driver does not lose contexts on demand")
	}
	// In each process the 400th kernel that copies ends in an illegal address.
	t.Setenv("KVLEND_FAKE_FAIL", "async.kvlend_copy:400:700")
	s := Start(t, func(c *configs.Config) { model(c, "atlas").LSC.Buffers = 2 })
	long := Request{Model: "atlas", Prompt: text(5, 2500), MaxTokens: 300}
	if _, _, err := s.Complete(t.Context(), long); err == nil {
		t.Fatal("the request was answered: the test shows nothing")
	}
	s.until("another process", "atlas", func(st *wire.Status) bool { return st.Restarts > 0 })
	short := Request{Model: "atlas", Prompt: text(6, 20), MaxTokens: 3}
	eventually(t, startLimit, "an answer of the new process", func() error {
		got, _, err := s.Complete(t.Context(), short)
		if err == nil {
			s.compare("the answer of the new process", short, got, kernels.BF16)
		}
		return err
	})
	for _, w := range []string{"birch", "cedar"} {
		s.until("units of "+w+" at home", w, func(st *wire.Status) bool { return lent(st) == 0 })
	}
}
