package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvlend/kvlend/engine/kernels"
)

// stormSeed is $KVLEND_E2E_SEED, or the day.
func stormSeed(t *testing.T) uint64 {
	seed := uint64(time.Now().Unix() / 86400)
	if v := os.Getenv("KVLEND_E2E_SEED"); v != "" {
		if _, err := fmt.Sscan(v, &seed); err != nil {
			t.Fatalf("KVLEND_E2E_SEED: %v", err)
		}
	}
	return seed
}

// storm is conversations that go on while processes are killed.
type storm struct {
	rng   *rand.Rand
	talks []*talk
	pool  int // tokens
	right int // answers
	lost  int // that did not arrive
}

// TestKillStorm kills the master, or everything, at random moments of
// conversations, again and again. What arrives is right to the bit; what was not
// durable is a miss. $KVLEND_E2E_KILLS says how often, $KVLEND_E2E_SEED with
// which seed.
func TestKillStorm(t *testing.T) {
	needLong(t, "repeated restarts of the whole system")
	t.Parallel()
	seed := stormSeed(t)
	st := &storm{rng: rand.New(rand.NewPCG(seed, 0xd15c))}
	dir := t.TempDir()
	s := Start(t, small, onDisks(dir, diskBytes, 16*mib))
	n := kills(t)
	for i := range n {
		for len(st.talks) < 4 {
			st.talks = append(st.talks, &talk{seed: seed<<16 | uint64(i*4+len(st.talks))})
		}
		whole := st.rng.IntN(2) == 0
		st.round(s, func() {
			if whole {
				s.crash()
				return
			}
			pid := s.pid("atlas")
			if now, err := s.modelStatus("atlas"); err == nil {
				pid = now.Model.PID
			}
			syscall.Kill(pid, syscall.SIGKILL) // it may have been killed a moment ago
			s.restarted("atlas", pid)
		})
		if whole {
			s = Start(t, small, onDisks(dir, diskBytes, 16*mib))
		}
		s.inUse(2)
		if t.Failed() {
			break
		}
		// What has become too long makes way for another.
		for j, k := range st.talks {
			if len(k.tokens) > 700 {
				st.talks[j] = &talk{seed: seed<<16 | 0x8000 | uint64(i*4+j)}
			}
		}
	}
	for _, k := range st.talks {
		st.pool += s.say(k, 5, 8).Pool
	}
	t.Logf("seed %d, %d kills: %d right answers, %d did not arrive, %d tokens from the pool", seed, n, st.right, st.lost, st.pool)
	if st.right == 0 || st.pool == 0 {
		t.Errorf("seed %d: %d right answers and %d tokens from the pool: the test shows nothing", seed, st.right, st.pool)
	}
}

// round lets every conversation go on while kill happens, at a random moment of
// that, and checks what arrived.
func (st *storm) round(s *System, kill func()) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, k := range st.talks {
		q := k.turn(1+st.rng.IntN(200), 1+st.rng.IntN(24))
		wg.Go(func() {
			got, receipt, err := s.Complete(s.t.Context(), q)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				st.lost++
				return
			}
			s.compare(fmt.Sprintf("conversation %d, turn %d", k.seed, k.turns), q, got, kernels.BF16)
			k.tokens = append(k.tokens, got.Tokens...)
			st.right++
			st.pool += receipt.Receipt.Pool
		})
	}
	// Blocks are written while answers are computed, and for a while after.
	wait := within(s.t, time.Duration(st.rng.IntN(1500))*time.Millisecond)
	<-wait.Done()
	kill()
	wg.Wait()
}
