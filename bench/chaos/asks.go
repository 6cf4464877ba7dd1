package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/sampling"
	"github.com/kvlend/kvlend/engine/tokenizer"
	"github.com/kvlend/kvlend/internal/dialogue"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/scheduler"
)

// ask is a request whose answer is known.
type ask struct {
	Model       string
	Prompt      []int32
	MaxTokens   int
	Temperature float64
	Seed        int64

	tokens []int32
	hash   string
}

// sizes are prompt and answer lengths. The first of a model is its probe. The
// master's long ones need borrowed memory; the workers' long ones need what is
// lent back.
var sizes = map[string][][2]int{
	"atlas": {{3, 1}, {12, 40}, {200, 64}, {900, 24}, {1500, 16}, {1200, 160}, {2300, 24}},
	"birch": {{3, 1}, {12, 40}, {300, 64}, {1200, 16}, {3000, 16}},
	"cedar": {{3, 1}, {12, 40}, {400, 64}, {1500, 16}, {4000, 16}},
}

// models is the order of things that must not depend on a map's.
var models = []string{"atlas", "birch", "cedar"}

// makeAsks makes the requests of a run and computes their answers.
func makeAsks(ctx context.Context, opt Options) ([]ask, error) {
	rng := rand.New(rand.NewPCG(opt.Seed, 0xa5c5))
	var out []ask
	for _, name := range models {
		m, err := engine.Builtin(name, engine.Options{KVDType: kernels.BF16})
		if err != nil {
			return nil, err
		}
		defer m.Close()
		for i, size := range sizes[name] {
			opt.Progress(fmt.Sprintf("reference answers of %s: %d of %d", name, i, len(sizes[name])))
			a := ask{Model: name, MaxTokens: size[1]}
			if a.Prompt, err = talk(name, rng.Uint64(), size[0]); err != nil {
				return nil, err
			}
			if i%2 == 1 {
				a.Temperature, a.Seed = 0.8, rng.Int64N(1<<31)
			}
			if err := a.compute(ctx, m); err != nil {
				return nil, fmt.Errorf("%s, %d tokens: %w", name, size[0], err)
			}
			out = append(out, a)
		}
	}
	return out, nil
}

// talk is a prompt of about n tokens and no more: a dialogue up to the last
// question, whose answer depends on what was told before, often long before.
func talk(model string, seed uint64, n int) ([]int32, error) {
	tok, err := source.Tokenizer(model)
	if err != nil {
		return nil, err
	}
	count := func(text string) int {
		ids, err := tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
		if err != nil {
			return dialogue.Estimate(text)
		}
		return len(ids)
	}
	o := dialogue.Options{Tokens: max(n, dialogue.MinTokens), Kind: dialogue.Recall, HeldOut: true, Count: count}
	d, err := dialogue.Generate(seed, 0, o)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	for _, m := range d.Messages[:len(d.Messages)-1] {
		text.WriteString(m.Text())
	}
	text.WriteString("<|im_start|>assistant\n")
	ids, err := tok.Encode(text.String(), tokenizer.EncodeOptions{ParseSpecial: true})
	// The shortest prompts are beginnings.
	return ids[:min(len(ids), n)], err
}

// probe is a model's shortest request.
func probe(asks []ask, model string) ask {
	i := slices.IndexFunc(asks, func(a ask) bool { return a.Model == model })
	return asks[i]
}

// compute is generation at its plainest: one sequence over one flat cache.
func (a *ask) compute(ctx context.Context, m *engine.Model) error {
	const chunk = 512 // any would give the same bits
	total := len(a.Prompt) + a.MaxTokens
	kv := engine.NewSimpleKV(m, total)
	p := sampling.Default()
	p.Temperature, p.Seed = float32(a.Temperature), uint64(a.Seed)
	tokens := slices.Clone(a.Prompt)
	var hash uint64
	var scratch sampling.Scratch
	for done := 0; len(tokens) < total; {
		end := min(len(tokens), done+chunk)
		seq := engine.Sequence{Tokens: tokens[done:end], Start: done}
		if end == len(tokens) {
			seq.Logits = engine.LastLogits
		}
		out, err := m.Forward(ctx, []engine.Sequence{seq}, kv)
		if err != nil {
			return err
		}
		if done = end; done < len(tokens) {
			continue
		}
		hash = scheduler.HashRow(hash, out.Logits[0])
		output := tokens[len(a.Prompt):]
		tok, err := sampling.Sample(out.Logits[0], a.Prompt, output, len(output), p, &scratch)
		if err != nil {
			return err
		}
		tokens = append(tokens, tok.ID)
	}
	a.tokens, a.hash = tokens[len(a.Prompt):], fmt.Sprintf("%016x", hash)
	return nil
}

// right compares an answer with the reference.
func (a *ask) right(tokens []int32, hash string) error {
	if hash == a.hash && slices.Equal(tokens, a.tokens) {
		return nil
	}
	return fmt.Errorf("%s, %d prompt tokens, temperature %v: %d tokens %v with hash %s; the reference has %d tokens %v with hash %s",
		a.Model, len(a.Prompt), a.Temperature, len(tokens), tokens, hash, len(a.tokens), a.tokens, a.hash)
}
