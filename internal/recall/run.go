package recall

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlend/kvlend/internal/dialogue"
)

// Asked is a probe that was asked.
type Asked struct {
	ID string `json:"id"` // length/facts/dialogue/probe
	// Digest is of all that was asked: the dialogue and the question.
	Digest string `json:"digest"`
	dialogue.Probe
	Length int `json:"length"` // of the cell

	Reply   string  `json:"reply"`
	Outcome Outcome `json:"outcome"`
	Exact   bool    `json:"exact"` // to the letter what was expected
	Prompt  int     `json:"prompt_tokens"`
	Cached  int     `json:"cached_tokens"`
	Hash    string  `json:"logits_hash,omitempty"`
}

// Cell is a length and a number of facts.
type Cell struct {
	Length int `json:"length"`
	Facts  int `json:"facts"`
	Asked  int `json:"asked"` // probes
	// Missing says why there are none, or fewer than there should be.
	Missing string `json:"missing,omitempty"`
	// NoFit: the model's context is too short.
	NoFit bool `json:"no_fit,omitempty"`
}

// run is a run's state. The mutex guards what follows it.
type run struct {
	opt      Options
	answerer Answerer
	end      time.Time // zero: no limit
	cells    []Cell
	tasks    []task // in the order of asking

	mu     sync.Mutex
	asked  [][]Asked // of every task
	next   int       // task
	done   int       // probes
	right  int
	total  int // probes, as far as it is known
	under  Underneath
	cut    string // why not all was asked
	counts map[string]int
}

// task is one dialogue of a cell.
type task struct {
	cell          int
	length, facts int
	number        int
}

// Run makes the dialogues, asks and scores. Where an error or the context ends it
// after something was asked, the result is of that, and comes with the error.
func Run(ctx context.Context, a Answerer, opt Options) (*Result, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	if opt.Progress == nil {
		opt.Progress = func(Progress) {}
	}
	r := &run{opt: opt, answerer: a, counts: map[string]int{}}
	start := time.Now()
	if opt.MaxTime > 0 {
		r.end = start.Add(opt.MaxTime)
	}
	r.plan()
	err := r.all(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("recall: interrupted after %d of %d questions: %w", r.done, r.total, context.Cause(ctx))
		}
		if r.done == 0 {
			return nil, err
		}
		r.cut = wasBroken
		if ctx.Err() != nil {
			r.cut = wasInterrupted
		}
	}
	return r.result(time.Since(start)), err
}

// plan lists the cells and what is to be asked: one dialogue of every cell
// after the other, so that a run that ends early has asked of all.
func (r *run) plan() {
	for _, length := range r.opt.Lengths {
		for _, facts := range r.opt.Facts {
			c := Cell{Length: length, Facts: facts}
			o := r.dialogueOptions(length, facts)
			if err := o.Validate(); err != nil {
				c.Missing = "too short for so many facts"
			} else if r.opt.Longest > 0 && length > r.opt.Longest {
				c.NoFit = true
				c.Missing = fmt.Sprintf("the model's context has %d tokens", r.opt.Longest)
			}
			r.cells = append(r.cells, c)
		}
	}
	for n := range r.opt.Dialogues {
		for i, c := range r.cells {
			if c.Missing == "" {
				r.tasks = append(r.tasks, task{i, c.Length, c.Facts, n})
			}
		}
	}
	r.asked = make([][]Asked, len(r.tasks))
	r.total = len(r.tasks) * r.opt.Probes
}

func (r *run) dialogueOptions(length, facts int) dialogue.Options {
	return dialogue.Options{Tokens: length, Facts: facts, Kind: r.opt.dialogueKind(), Quiet: true, HeldOut: !r.opt.TrainingWords}
}

// all asks everything; clients take dialogues in order.
func (r *run) all(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !r.end.IsZero() {
		defer time.AfterFunc(time.Until(r.end), func() { cancel(errLate) }).Stop()
	}
	var clients sync.WaitGroup
	for range max(r.opt.Clients, 1) {
		clients.Go(func() {
			for {
				first, end := r.take(ctx)
				if first == end {
					return
				}
				if err := r.turns(ctx, first, end); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	clients.Wait()
	if err := context.Cause(ctx); err != errLate {
		return err
	}
	r.late()
	return nil
}

// errLate ends what is under way when the time is over.
var errLate = errors.New(timeOver)

// take is the next tasks, from first to before end.
func (r *run) take(ctx context.Context) (first, end int) {
	if r.late() || ctx.Err() != nil {
		return 0, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first = r.next
	r.next = min(first+max(r.opt.Interleave, 1), len(r.tasks))
	return first, r.next
}

// late reports whether the time is over.
func (r *run) late() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.end.IsZero() && !time.Now().Before(r.end) {
		r.cut = timeOver
	}
	return r.cut != ""
}

// talk is a dialogue that is asked about.
type talk struct {
	task   int
	d      *dialogue.Dialogue
	probes []dialogue.Probe
}

// turns makes dialogues and asks about them in turn, one probe each.
func (r *run) turns(ctx context.Context, first, end int) error {
	var talks []*talk
	for i := first; i < end && !r.late(); i++ {
		t, err := r.make(ctx, i)
		if err != nil {
			return err
		}
		if t != nil {
			talks = append(talks, t)
		}
	}
	for n := 0; len(talks) > 0; n++ {
		talks = slices.DeleteFunc(talks, func(t *talk) bool { return n == len(t.probes) })
		for _, t := range talks {
			if r.late() {
				return nil
			}
			c := r.tasks[t.task]
			err := r.ask(ctx, t, n)
			if errors.Is(err, ErrTooLong) {
				r.leave(c.cell, err.Error(), true)
				r.expect(n - len(t.probes))
				t.probes = t.probes[:n+1]
			} else if err != nil {
				return fmt.Errorf("dialogue %d of %d tokens with %d facts: %w", c.number, c.length, c.facts, err)
			}
		}
	}
	return nil
}

// make makes a dialogue and chooses its probes; none if the model was found not
// to hold it, or if its tokenizer needs too many tokens for what is to be said.
func (r *run) make(ctx context.Context, i int) (*talk, error) {
	t := r.tasks[i]
	r.mu.Lock()
	skip := r.cells[t.cell].NoFit
	r.mu.Unlock()
	if skip {
		r.expect(-r.opt.Probes)
		return nil, nil
	}
	var failed error
	o := r.dialogueOptions(t.length, t.facts)
	o.Count = func(text string) int {
		count, err := r.count(ctx, text)
		if err != nil && failed == nil {
			failed = err
		}
		return count
	}
	d, probes, err := dialogue.Probes(r.opt.Seed, t.seeded(), o)
	if failed != nil {
		return nil, fmt.Errorf("counting tokens: %w", failed)
	}
	if err != nil {
		r.leave(t.cell, err.Error(), false)
		r.expect(-r.opt.Probes)
		return nil, nil
	}
	out := &talk{task: i, d: d, probes: r.choose(t.number, probes)}
	r.expect(len(out.probes) - r.opt.Probes)
	return out, nil
}

// seeded is the dialogue's number among all of the seed: no two of a run have
// the same.
func (t task) seeded() uint64 {
	return uint64(t.length)<<40 ^ uint64(t.facts)<<20 ^ uint64(t.number)
}

// choose takes as many questions about single facts as others, while there are
// any; the others of all kinds in turn, beginning with another in each dialogue.
func (r *run) choose(number int, probes []dialogue.Probe) []dialogue.Probe {
	var single []dialogue.Probe
	others := map[dialogue.Kind][]dialogue.Probe{}
	for _, p := range probes {
		switch {
		case !slices.Contains(r.opt.Kinds, p.Kind):
		case isSingle(p.Kind):
			single = append(single, p)
		default:
			others[p.Kind] = append(others[p.Kind], p)
		}
	}
	kinds := slices.DeleteFunc(slices.Clone(r.opt.Kinds), isSingle)
	var mixed []dialogue.Probe
	for i := range probes {
		for n := range kinds {
			k := kinds[(number+n)%len(kinds)]
			if i < len(others[k]) {
				mixed = append(mixed, others[k][i])
			}
		}
	}
	var out []dialogue.Probe
	for i := range probes {
		for _, list := range [][]dialogue.Probe{single, mixed} {
			if i < len(list) && len(out) < r.opt.Probes {
				out = append(out, list[i])
			}
		}
	}
	return out
}

// count remembers what was counted: much is said again and again.
func (r *run) count(ctx context.Context, text string) (int, error) {
	r.mu.Lock()
	n, ok := r.counts[text]
	r.mu.Unlock()
	if ok {
		return n, nil
	}
	n, err := r.answerer.Count(ctx, text)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	r.counts[text] = n
	r.mu.Unlock()
	return n, nil
}

// ask asks probe n of a dialogue and keeps its answer.
func (r *run) ask(ctx context.Context, t *talk, n int) error {
	p, c := &t.probes[n], r.tasks[t.task]
	q := Request{Messages: t.d.Messages, Question: p.Question}
	answer, err := r.count(ctx, p.Answer)
	if err != nil {
		return fmt.Errorf("counting tokens: %w", err)
	}
	q.MaxTokens = max(leastAnswer, answer+spareAnswer)
	if r.opt.Longest > 0 {
		asked, err := r.count(ctx, dialogue.Message{Role: "user", Content: p.Question}.Text())
		if err != nil {
			return fmt.Errorf("counting tokens: %w", err)
		}
		q.MaxTokens = max(1, min(q.MaxTokens, r.opt.Longest-t.d.Tokens-asked-templateTokens))
	}
	reply, err := r.answerer.Ask(ctx, q)
	if err != nil {
		return err
	}
	r.keep(t.task, Asked{
		ID: fmt.Sprintf("%d/%d/%d/%d", c.length, c.facts, c.number, n), Digest: digest(q), Probe: *p, Length: c.length,
		Reply: reply.Text, Outcome: score(p, t.d.Facts, reply.Text), Exact: exact(p, reply.Text),
		Prompt: reply.Prompt, Cached: reply.Cached, Hash: reply.Hash,
	}, reply)
	return nil
}

// templateTokens is what a chat template may add to a dialogue and a question.
const templateTokens = 8

// keep takes an answer down.
func (r *run) keep(i int, a Asked, reply Reply) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[i] = append(r.asked[i], a)
	r.cells[r.tasks[i].cell].Asked++
	r.under.add(reply)
	r.done++
	if a.Outcome == Right {
		r.right++
	}
	r.tell(fmt.Sprintf("%d tokens, %d facts; %.1f %% right so far", a.Length, a.Facts, 100*float64(r.right)/float64(r.done)))
}

// expect corrects how many probes there will be.
func (r *run) expect(more int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total += more
	r.tell("making dialogues")
}

// tell reports progress. The caller holds mu.
func (r *run) tell(doing string) {
	r.opt.Progress(Progress{Done: r.done, Total: r.total, Doing: doing})
}

// leave notes why probes of a cell are missing.
func (r *run) leave(cell int, why string, noFit bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cells[cell].Missing = why
	r.cells[cell].NoFit = noFit
}

// digest is of all that a request asks.
func digest(q Request) string {
	h := sha256.New()
	for _, m := range q.Messages {
		h.Write([]byte(m.Text()))
	}
	h.Write([]byte(dialogue.Message{Role: "user", Content: q.Question}.Text()))
	return hex.EncodeToString(h.Sum(nil)[:8])
}
