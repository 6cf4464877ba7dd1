package serve

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/zeebo/blake3"

	"github.com/kvlend/kvlend/bench/serve/report"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/scheduler"
)

// maxProblems bounds the list of wrong answers; the counts go on.
const maxProblems = 20

// asked identifies a request: all that its answer may depend on. The sampling
// parameters are the same for all of a run.
type asked [32]byte

func identify(r *request) asked {
	raw := binary.LittleEndian.AppendUint32(make([]byte, 0, 4*len(r.prompt)+4), uint32(r.output))
	for _, t := range r.prompt {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(t))
	}
	return blake3.Sum256(raw)
}

// known is the first answer to a request.
type known struct {
	tokens [32]byte // hash
	logits string
	where  string
	req    *request // nil unless it is to be compared with the reference
}

// judge compares every answer with the ones before to the same request, and
// some with a plain engine's. Its methods are safe for concurrent use.
type judge struct {
	mu     sync.Mutex
	checks report.Checks
	first  map[asked]*known
	// kept are the requests to compare with the reference: those with the
	// smallest identities, which is a random sample that does not depend on the
	// order of the answers.
	kept []asked // sorted
	most int     // how many are kept; negative: all
}

func newJudge(sample int) *judge { return &judge{first: map[asked]*known{}, most: sample} }

// hear takes an answer; where names the configuration and the round.
func (j *judge) hear(where string, r *request, a *answer) {
	if a.code != report.CodeOK {
		return
	}
	id := identify(r)
	sum := hashTokens(a.tokens)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.checks.Answers++
	if a.tokens == nil {
		return
	}
	j.checks.Checked++
	if len(a.tokens) != r.output {
		j.wrong("%s, %s: %d tokens came, want %d", where, r.name(), len(a.tokens), r.output)
		return
	}
	k := j.first[id]
	if k == nil {
		j.checks.Distinct++
		j.first[id] = &known{sum, a.hash, where, nil}
		j.keep(id, r)
		return
	}
	j.checks.Repeated++
	if k.tokens != sum || k.logits != a.hash {
		j.wrong("%s, %s: tokens %v with logits hash %s; %s was answered with other tokens or logits hash %s",
			where, r.name(), a.tokens, a.hash, k.where, k.logits)
	}
}

func (r *request) name() string {
	return fmt.Sprintf("session %s turn %d (%d prompt tokens, %d to generate)", r.session, r.turn, len(r.prompt), r.output)
}

func (j *judge) wrong(format string, args ...any) {
	j.checks.Wrong++
	if len(j.checks.Problems) < maxProblems {
		j.checks.Problems = append(j.checks.Problems, fmt.Sprintf(format, args...))
	}
}

// keep decides whether a request belongs to the sample.
func (j *judge) keep(id asked, r *request) {
	at, _ := slices.BinarySearchFunc(j.kept, id, func(a, b asked) int { return slices.Compare(a[:], b[:]) })
	if j.most >= 0 && at >= j.most {
		return
	}
	j.kept = slices.Insert(j.kept, at, id)
	j.first[id].req = r
	if j.most >= 0 && len(j.kept) > j.most {
		j.first[j.kept[j.most]].req = nil
		j.kept = j.kept[:j.most]
	}
}

func hashTokens(tokens []int32) [32]byte {
	raw := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(t))
	}
	return blake3.Sum256(raw)
}

// compare computes the sample's answers with a plain engine. Nothing else may
// use the judge meanwhile.
func (j *judge) compare(ctx context.Context, m *engine.Model, name string, progress func(done, of int)) error {
	j.checks.ReferenceBy = name
	for i, id := range j.kept {
		progress(i, len(j.kept))
		k := j.first[id]
		tokens, logits, err := generate(ctx, m, k.req)
		if err != nil {
			return fmt.Errorf("reference answer to %s: %w", k.req.name(), err)
		}
		j.checks.Reference++
		if k.tokens != hashTokens(tokens) || k.logits != "" && k.logits != logits {
			j.wrong("%s, %s: the answer has logits hash %s; the reference is %v with %s", k.where, k.req.name(), k.logits, tokens, logits)
		}
	}
	return nil
}

// generate is generation at its plainest: one sequence over one flat cache.
func generate(ctx context.Context, m *engine.Model, r *request) (tokens []int32, logits string, err error) {
	const chunk = 512 // any would give the same bits
	total := len(r.prompt) + r.output
	kv := engine.NewSimpleKV(m, total)
	p := sampling.Default()
	p.Temperature = 0
	all := slices.Clone(r.prompt)
	var hash uint64
	var scratch sampling.Scratch
	for done := 0; len(all) < total; {
		end := min(len(all), done+chunk)
		seq := engine.Sequence{Tokens: all[done:end], Start: done}
		if end == len(all) {
			seq.Logits = engine.LastLogits
		}
		out, err := m.Forward(ctx, []engine.Sequence{seq}, kv)
		if err != nil {
			return nil, "", err
		}
		if done = end; done < len(all) {
			continue
		}
		hash = scheduler.HashRow(hash, out.Logits[0])
		output := all[len(r.prompt):]
		tok, err := sampling.Sample(out.Logits[0], r.prompt, output, len(output), p, &scratch)
		if err != nil {
			return nil, "", err
		}
		all = append(all, tok.ID)
	}
	return all[len(r.prompt):], fmt.Sprintf("%016x", hash), nil
}
