package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/engine/kernels"
)

const (
	mib = 1 << 20
	// diskBytes is a file that holds some 460 blocks of atlas: 7,400 tokens.
	diskBytes = 32 * mib
	// blockTokens are atlas's.
	blockTokens = 16
)

// onDisks puts files behind everything else that atlas has. What is used once
// is worth a write.
func onDisks(dir string, sizes ...configs.Bytes) change {
	return func(c *configs.Config) {
		o := &model(c, "atlas").Overflow
		for i, size := range sizes {
			o.Devices = append(o.Devices, configs.Disk{Name: fmt.Sprint("disk", i), Path: diskPath(dir, i), Size: size})
		}
		o.AdmitAfter = 1
	}
}

func diskPath(dir string, i int) string { return filepath.Join(dir, fmt.Sprint("disk", i)) }

// small leaves atlas 256 tokens of its own and 464 that the workers lend.
func small(c *configs.Config) {
	model(c, "atlas").Arena = mib
	model(c, "birch").Arena = 5 * 192 << 10 // two units below the floor
	model(c, "cedar").Arena = 6 * 320 << 10 // two
}

const (
	smallOwn  = 256
	smallLent = (3*3 + 4*5) * blockTokens
)

// talk is a conversation: each turn's prompt goes on with the last answer.
type talk struct {
	seed   uint64
	turns  int
	tokens []int32
}

// turn is the next request, with n tokens from the user.
func (k *talk) turn(n, answer int) Request {
	k.turns++
	k.tokens = append(k.tokens, text(k.seed<<32|uint64(k.turns), n)...)
	q := Request{Model: "atlas", Prompt: slices.Clone(k.tokens), MaxTokens: answer}
	if k.turns%2 == 0 {
		q.Temperature, q.Seed = 0.8, int64(k.seed)
	}
	return q
}

// say sends a turn, compares its answer with the reference and appends it.
func (s *System) say(k *talk, n, answer int) *openai.Receipt {
	s.t.Helper()
	q := k.turn(n, answer)
	got, receipt, err := s.Complete(s.t.Context(), q)
	if err != nil {
		s.t.Fatalf("conversation %d, turn %d (%d tokens): %v", k.seed, k.turns, len(q.Prompt), err)
	}
	s.compare(fmt.Sprintf("conversation %d, turn %d", k.seed, k.turns), q, got, kernels.BF16)
	k.tokens = append(k.tokens, got.Tokens...)
	return receipt.Receipt
}

// cached is how many tokens of a prompt came from anywhere.
func cached(r *openai.Receipt) int { return r.Local + r.Borrowed + r.Host + r.Pool }

// disk is what a status says of one of atlas's disks.
func disk(st *wire.Status, i int) wire.DiskStatus {
	for _, d := range st.Disks {
		if d.Name == fmt.Sprint("disk", i) {
			return d
		}
	}
	return wire.DiskStatus{Name: "none"}
}

// durable waits until all that was written would outlive a crash, at least
// blocks of it.
func (s *System) durable(blocks int) *wire.Status {
	s.t.Helper()
	var last string
	defer func() {
		if s.t.Failed() {
			s.t.Log(last)
		}
	}()
	return s.until(fmt.Sprintf("%d durable blocks", blocks), "atlas", func(st *wire.Status) bool {
		live, lag := 0, 0
		for _, d := range st.Disks {
			live, lag = live+d.Live, lag+d.Lag
		}
		last = fmt.Sprintf("disks: %+v", st.Disks)
		return live >= blocks && lag == 0
	})
}

// crash ends all processes at once with SIGKILL.
func (s *System) crash() {
	s.t.Helper()
	s.ended = true
	s.kill()
	s.nothingLeft(false)
}

// inUse checks that the master uses all of its disks.
func (s *System) inUse(n int) {
	s.t.Helper()
	st, err := s.modelStatus("atlas")
	if err != nil {
		s.t.Fatal(err)
	}
	if len(st.Disks) != n {
		s.t.Errorf("%d disks, want %d", len(st.Disks), n)
	}
	for _, d := range st.Disks {
		if d.Fenced != "" {
			s.t.Errorf("%s is out of use: %s", d.Name, d.Fenced)
		}
	}
}

// TestRestartFromDisk: a conversation goes on after the whole system was
// stopped and started, with its prefix from the disks, also what lay in borrowed
// memory, and with the tokens and logits of a run that has no cache at all.
func TestRestartFromDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	k := &talk{seed: 1}
	s := Start(t, small, onDisks(dir, diskBytes))
	s.say(k, 300, 16)
	s.say(k, 200, 40)
	s.Stop()
	for n := range 2 {
		before := len(k.tokens)
		s = Start(t, small, onDisks(dir, diskBytes))
		s.inUse(1)
		r := s.say(k, 20, 16)
		// The last token of an answer is never computed upon.
		if want := (before - 1) / blockTokens * blockTokens; r.Pool != want || cached(r) != want {
			t.Errorf("start %d: %+v, want %d tokens from the pool", n, *r, want)
		}
		if n == 0 {
			s.settle()
			s.verify()
			s.Stop()
		}
	}
}

// TestCrashFinds: what was durable when every process was killed is found.
func TestCrashFinds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	k := &talk{seed: 2}
	s := Start(t, onDisks(dir, diskBytes))
	s.say(k, 400, 16)
	s.durable(400 / blockTokens)
	s.crash()
	s = Start(t, onDisks(dir, diskBytes))
	s.inUse(1)
	if r := s.say(k, 20, 16); r.Pool < 400 || r.Pool != cached(r) {
		t.Errorf("%+v, want at least 400 tokens from the pool", *r)
	}
}

// TestMasterCrash: only the master is killed; the next one finds the disks free
// and what they hold.
func TestMasterCrash(t *testing.T) {
	t.Parallel()
	k := &talk{seed: 3}
	s := Start(t, onDisks(t.TempDir(), diskBytes, diskBytes))
	s.say(k, 400, 16)
	for range 4 {
		before := len(k.tokens)
		s.durable((before - 1) / blockTokens)
		st, err := s.modelStatus("atlas")
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(st.Model.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		s.restarted("atlas", st.Model.PID)
		s.inUse(2)
		if r, want := s.say(k, 20, 16), (before-1)/blockTokens*blockTokens; r.Pool != want {
			t.Errorf("%+v, want %d tokens from the pool", *r, want)
		}
	}
}

// TestWorkingSet: conversations in turn, together far larger than all arenas,
// are answered from the disks bit by bit.
func TestWorkingSet(t *testing.T) {
	t.Parallel()
	const talks, prompt = 12, 500 // 6,000 tokens where 720 fit
	s := Start(t, small, onDisks(t.TempDir(), diskBytes, diskBytes))
	var all []*talk
	for i := range talks {
		k := &talk{seed: uint64(100 + i)}
		all = append(all, k)
		s.say(k, prompt, 8)
	}
	pool, total := 0, 0
	for range 2 {
		for _, k := range all {
			total += len(k.tokens)
			pool += s.say(k, 10, 8).Pool
		}
	}
	t.Logf("%d of %d tokens came from the pool", pool, total)
	if pool < total/4 {
		t.Errorf("%d of %d tokens came from the pool: the test shows little", pool, total)
	}
}

// TestLongContextFromDisk: one context that is longer than all arenas together
// is computed and continued, streamed from the disks.
func TestLongContextFromDisk(t *testing.T) {
	t.Parallel()
	const prompt = 3 * (smallOwn + smallLent) / 2
	s := Start(t, small, onDisks(t.TempDir(), diskBytes, diskBytes))
	for _, m := range s.Models {
		if m.Name == "atlas" && m.MaxTokens < prompt+100 {
			t.Fatalf("the longest context is %d tokens", m.MaxTokens)
		}
	}
	k := &talk{seed: 4}
	s.say(k, prompt, 40)
	r := s.say(k, 20, 8)
	t.Logf("%+v", *r)
	if r.Pool == 0 {
		t.Errorf("%+v: nothing came from the pool", *r)
	}
}

// TestUnequalDisks: bandwidth decides which disk gets what, up to what it holds.
func TestUnequalDisks(t *testing.T) {
	t.Parallel()
	s := Start(t, small, onDisks(t.TempDir(), 10*mib, 16*mib, 48*mib))
	s.inUse(3)
	var all []*talk
	for i := range 10 {
		k := &talk{seed: uint64(200 + i)}
		all = append(all, k)
		s.say(k, 700, 4)
	}
	pool := 0
	for _, k := range all {
		pool += s.say(k, 10, 4).Pool
	}
	st := s.durable(100)
	for i := range 3 {
		d := disk(st, i)
		t.Logf("%s: %d of %d blocks, %s", d.Name, d.Live, d.Slots, configs.Rate(d.Rate))
		if d.Live == 0 || d.Live > d.Slots {
			t.Errorf("%+v", d)
		}
	}
	if pool == 0 {
		t.Error("nothing came from the pool")
	}
}

// TestWriteBudget: a disk whose budget is used up takes no kept blocks, and
// nothing else changes.
func TestWriteBudget(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	k := &talk{seed: 5}
	budget := func(c *configs.Config) { model(c, "atlas").Overflow.Devices[0].WriteBudget = 1 }
	s := Start(t, small, onDisks(dir, diskBytes), budget)
	s.say(k, 100, 8)
	s.say(k, 100, 8)
	st := s.until("an idle master", "atlas", func(st *wire.Status) bool { return st.Running == 0 })
	if d := disk(st, 0); d.Live > 1 || d.BudgetLeft > 1 || d.Fenced != "" {
		t.Errorf("%+v", d)
	}
	s.settle()
	s.verify()
	s.Stop()
	s = Start(t, small, onDisks(dir, diskBytes), budget)
	if r := s.say(k, 10, 8); r.Pool > blockTokens {
		t.Errorf("%+v from a disk that nothing may be written to", *r)
	}
}

// TestAdmitAfter: a block is written at its third use where the configuration
// says so, and not before.
func TestAdmitAfter(t *testing.T) {
	t.Parallel()
	s := Start(t, onDisks(t.TempDir(), diskBytes), func(c *configs.Config) { model(c, "atlas").Overflow.AdmitAfter = 3 })
	k := &talk{seed: 6}
	s.say(k, 320, 8)
	s.say(k, 4, 4)
	st, err := s.modelStatus("atlas")
	if err != nil {
		t.Fatal(err)
	}
	if d := disk(st, 0); d.Live != 0 {
		t.Errorf("after two uses: %+v", d)
	}
	s.say(k, 4, 4)
	s.durable(320 / blockTokens)
}

// kills is how often TestKillStorm kills: $KVLEND_E2E_KILLS, or a few times.
func kills(t *testing.T) int {
	n := 6
	if v := os.Getenv("KVLEND_E2E_KILLS"); v != "" {
		if _, err := fmt.Sscan(v, &n); err != nil {
			t.Fatalf("KVLEND_E2E_KILLS: %v", err)
		}
	}
	return n
}

// within returns a context that ends after d.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
