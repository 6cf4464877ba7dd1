package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlend/kvlend/bench/serve"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/dialogue"
	"github.com/kvlend/kvlend/internal/fabrics"
	"github.com/kvlend/kvlend/internal/harness"
	"github.com/kvlend/kvlend/internal/recall"
	"github.com/kvlend/kvlend/internal/source"
)

// recallFlags are the flags of kvlend eval recall.
type recallFlags struct {
	opt      recall.Options
	kinds    []string
	config   string
	url, key string
	model    string
	json     bool
	svg      string
	accuracy float64
	false    float64
	compare  string

	before *recall.Result // the yardstick
}

func evalRecallCmd() *cobra.Command {
	f := &recallFlags{}
	c := &cobra.Command{
		Use:   "recall",
		Short: "What a model remembers of a dialogue, by distance and number of facts",
		Long: `Makes dialogues in which a user states facts and talks of other things, and asks at
their end: for facts as they were told (recall) or corrected, for what was never
told (unknown), how many (count) and which (about) facts were told about someone.
Names, values and phrasings are none that the built-in models were trained on. Every
question is a request of its own, with the same dialogue before it and temperature 0.

It starts a system of its own on the configuration and asks its first master, or
asks a running server (--url). An answer is right if it contains the value; of
unknown, if it says that it was not told. Lengths that the model's context does not
hold are reported as such.

Equal flags ask the same questions of models with the same tokenizer, and a system
that is exact gives the same answers under every configuration of a model: --compare
checks that. A run that is interrupted or fails shows what was asked until then.

Exit codes: 0 done, 1 below --min-accuracy, above --max-false, answers that
--compare finds changed or does not find, interrupted, or the system failed, 2
wrong flags or configuration.`,
		Example: `  kvlend eval recall
  kvlend eval recall --lengths 4096 --facts 32 --kinds recall,corrected --min-accuracy 0.95
  kvlend eval recall -c local.yaml --json > local.json      # the yardstick
  kvlend eval recall -c lending.yaml --compare local.json   # the same answers?
  kvlend eval recall --url http://127.0.0.1:8000 --model atlas --svg recall.svg --max-time 5m`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.register(c.Flags())
	return c
}

func (f *recallFlags) register(fs *pflag.FlagSet) {
	o := &f.opt
	var kinds []string
	for _, k := range dialogue.Kinds() {
		kinds = append(kinds, string(k))
	}
	fs.StringVarP(&f.config, "config", "c", "", "configuration of the system to start (default: the built-in one)")
	fs.StringVar(&f.url, "url", "", "ask a running server instead")
	fs.StringVar(&f.key, "key", os.Getenv("KVLEND_API_KEY"), "its key (default $KVLEND_API_KEY)")
	fs.StringVar(&f.model, "model", "", "model to ask; empty: the first master, or the first model")
	fs.IntSliceVar(&o.Lengths, "lengths", []int{256, 512, 1024, 2048, 4096}, "of dialogues with their question, in tokens")
	fs.IntSliceVar(&o.Facts, "facts", []int{1, 8, 32}, "numbers of facts told in a dialogue")
	fs.StringSliceVar(&f.kinds, "kinds", kinds, "of questions")
	fs.IntVar(&o.Dialogues, "dialogues", 4, "dialogues of each length with each number of facts")
	fs.IntVar(&o.Probes, "probes", 10, "questions at the end of each dialogue, at most; half of them for single facts")
	fs.Uint64Var(&o.Seed, "seed", 1, "seed of the dialogues")
	fs.BoolVar(&o.TrainingWords, "training-words", false, "names, values and phrasings of training, not those that were held out")
	fs.IntVar(&o.Clients, "clients", 1, "requests at once, each of another dialogue")
	fs.IntVar(&o.Interleave, "interleave", 1, "dialogues that each client asks about in turn: while it asks about others, the KV of one may have to go elsewhere and come back")
	fs.DurationVar(&o.MaxTime, "max-time", 0, "stop after this time, whatever is under way, and report what was answered; 0: no limit")
	fs.BoolVar(&f.json, "json", false, "print JSON, with every question and answer")
	fs.StringVar(&f.svg, "svg", "", "also draw accuracy over distance and facts into this file")
	fs.Float64Var(&f.accuracy, "min-accuracy", 0, "least share of right answers, from 0 to 1; of all kinds that are asked")
	fs.Float64Var(&f.false, "max-false", 1, "largest share of questions about what was never told that may be answered, from 0 to 1")
	fs.StringVar(&f.compare, "compare", "", "an earlier --json, which also gives the flags that are not given: print the questions that are answered differently, and exit with 1 if there are any")
}

func (f *recallFlags) run(cmd *cobra.Command) error {
	config, err := f.prepare(cmd.Flags())
	if err != nil {
		return &codeError{exitUsage, err}
	}
	var r *recall.Result
	ended := counted("recall", func(progress func(serve.Progress)) error {
		f.opt.Progress = func(p recall.Progress) {
			progress(serve.Progress{Done: p.Done, Total: p.Total, Doing: p.Doing})
		}
		if f.url != "" {
			r, err = f.ask(cmd.Context(), f.url)
			return err
		}
		r, err = f.askOwn(cmd.Context(), config)
		return err
	})
	if r == nil {
		return ended
	}
	if f.svg != "" && r.All.Asked > 0 {
		if err := writePlot(f.svg, r.WriteSVG); err != nil {
			return err
		}
	}
	var changed error
	if f.before != nil {
		if r.Comparison, err = r.Compare(f.before); err != nil {
			changed = &codeError{exitUsage, fmt.Errorf("--compare %s: %w", f.compare, err)}
		} else {
			changed = r.Comparison.Err()
		}
	}
	if err := show(cmd, r, f.json); err != nil {
		return err
	}
	switch {
	case ended != nil: // too early: what was asked until then is shown
		return ended
	case changed != nil:
		return changed
	}
	return r.Check(recall.Thresholds{Accuracy: f.accuracy, False: f.false})
}

// prepare turns flags into options. The configuration is nil with --url.
func (f *recallFlags) prepare(fs *pflag.FlagSet) (config *configs.Config, err error) {
	for _, k := range f.kinds {
		f.opt.Kinds = append(f.opt.Kinds, dialogue.Kind(k))
	}
	if f.compare != "" {
		if err := f.yardstick(fs); err != nil {
			return nil, fmt.Errorf("--compare %s: %w", f.compare, err)
		}
	}
	if f.opt.Clients == 0 || f.opt.Interleave == 0 {
		return nil, fmt.Errorf("--clients is %d and --interleave %d: want 1 or more", f.opt.Clients, f.opt.Interleave)
	}
	if err := f.opt.Validate(); err != nil {
		return nil, err
	}
	for name, v := range map[string]float64{"min-accuracy": f.accuracy, "max-false": f.false} {
		if !(v >= 0 && v <= 1) {
			return nil, fmt.Errorf("--%s is %v: want 0 to 1", name, v)
		}
	}
	if f.svg != "" { // better now than after minutes
		if err := writable(f.svg); err != nil {
			return nil, fmt.Errorf("--svg: %w", err)
		}
	}
	if f.url != "" {
		if fs.Changed("config") {
			return nil, fmt.Errorf("--config starts a system, and --url names a running one: want one of them")
		}
		return nil, nil
	}
	config = configs.Default()
	if f.config != "" {
		if config, err = configs.Load(f.config); err != nil {
			return nil, err
		}
	}
	if !slices.ContainsFunc(config.Models, func(m configs.Model) bool { return f.model == "" || m.Name == f.model }) {
		return nil, fmt.Errorf("--model is %q: the configuration has no such model", f.model)
	}
	if err := fabrics.Check(config); err != nil {
		return nil, err
	}
	for i := range config.Models {
		if err := source.Check(&config.Models[i]); err != nil {
			return nil, fmt.Errorf("model %s: %w", config.Models[i].Name, err)
		}
	}
	return config, nil
}

// writable says whether a file can be made, and leaves one that is there alone.
func writable(path string) error {
	_, err := os.Stat(path)
	f, openErr := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
	if openErr != nil {
		return openErr
	}
	if err != nil {
		os.Remove(path)
	}
	return f.Close()
}

// yardstick reads the earlier run. Flags that are not given are that run's.
func (f *recallFlags) yardstick(fs *pflag.FlagSet) error {
	in, err := os.Open(f.compare)
	if err != nil {
		return err
	}
	defer in.Close()
	if f.before, err = recall.Read(in); err != nil {
		return err
	}
	o, was := &f.opt, &f.before.Options
	for name, take := range map[string]func(){
		"lengths":        func() { o.Lengths = was.Lengths },
		"facts":          func() { o.Facts = was.Facts },
		"kinds":          func() { o.Kinds = was.Kinds },
		"dialogues":      func() { o.Dialogues = was.Dialogues },
		"probes":         func() { o.Probes = was.Probes },
		"seed":           func() { o.Seed = was.Seed },
		"training-words": func() { o.TrainingWords = was.TrainingWords },
	} {
		if !fs.Changed(name) {
			take()
		}
	}
	return o.Matches(was)
}

// askOwn starts a system and asks it. The result may come with an error, as ask's.
func (f *recallFlags) askOwn(ctx context.Context, config *configs.Config) (r *recall.Result, err error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f.opt.Progress(recall.Progress{Doing: "starting the system"})
	var interrupted error
	err = harness.With(ctx, binary, config, func(sys *harness.System) error {
		r, err = f.ask(ctx, sys.Endpoint)
		if ctx.Err() != nil { // no fault of the system's, which is to stop in good order
			interrupted = err
			return nil
		}
		return err
	})
	if r == nil && ctx.Err() != nil {
		return nil, errors.New("interrupted before anything was asked")
	}
	return r, errors.Join(interrupted, err)
}

// ask asks a server and watches what happens underneath. The result may come
// with an error: it is of what was asked before that.
func (f *recallFlags) ask(ctx context.Context, url string) (*recall.Result, error) {
	first, cancel := context.WithTimeout(ctx, recallPatience)
	a, err := newRecallClient(first, url, f.key, f.model)
	cancel()
	if err != nil {
		return nil, err
	}
	f.opt.Longest = a.card.MaxModelLen
	watch := watchRecall(ctx, url, f.key, a.cards)
	r, err := recall.Run(ctx, a, f.opt)
	under := watch.end(ctx)
	if r == nil {
		return nil, err
	}
	r.Model, r.Estimated, r.Underneath.System = a.card.ID, a.estimates, under
	return r, err
}
