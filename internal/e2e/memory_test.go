package e2e

import (
	"testing"

	"github.com/kvlend/kvlend/engine"
)

// overhead is what a process may have resident beside its arena and weights:
// the Go runtime, the program, and activations.
const overhead = 150 << 20

// TestResidentMemory: after the longest request a process has no more resident
// than its arena, its weights and 150 MB. What a master maps of its lenders'
// arenas is theirs, but counted here as its own.
func TestResidentMemory(t *testing.T) {
	s := Start(t)
	for _, m := range s.Models {
		q := Request{Model: m.Name, Prompt: text(4, m.MaxTokens-8), MaxTokens: 8}
		if _, _, err := s.Complete(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range s.Models {
		ref, err := engine.Builtin("random-"+m.Name, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		weights := ref.Config().WeightBytes
		ref.Close()
		rss := resident(t, m.PID)
		t.Logf("%s: %d MiB resident; arena %d, weights %d", m.Name, rss>>20, m.Arena>>20, weights>>20)
		if most := m.Arena + weights + overhead; rss > most {
			t.Errorf("%s: %d bytes resident, at most %d", m.Name, rss, most)
		}
	}
	for _, pid := range []int{s.GatewayPID, s.cmd.Process.Pid} {
		rss := resident(t, pid)
		t.Logf("gateway or supervisor: %d MiB resident", rss>>20)
		if rss > overhead {
			t.Errorf("pid %d, which has no arena: %d bytes resident, at most %d", pid, rss, overhead)
		}
	}
}
