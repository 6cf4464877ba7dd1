package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/kvlend/kvlend/bench/serve"
	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/trace"
)

// serveFlags are the flags of bench serve that are not options as they stand.
type serveFlags struct {
	opt        serve.Options
	load       loadFlags
	configs    []string
	baselines  []string
	base       string
	linkTimes  []float64
	paperLinks bool
	prompts    string
	verify     string
	reference  string
	plots      string
	samples    string
	json       bool
}

func benchServeCmd() *cobra.Command {
	f := &serveFlags{load: loadFlags{synth: trace.DefaultSynthetic(), short: trace.DefaultSynthetic()}}
	f.load.short.Turns = 2
	c := &cobra.Command{
		Use:   "serve",
		Short: "Replay a trace or synthetic conversations, and check every answer",
		Long: `Replays a trace, or synthetic conversations without one, against a running gateway
(--url) or against systems that it starts itself and compares, interleaved
(--baselines, --config). A turn is due when the trace says or a time to think after
the answer before; latencies count from when it was due, whether or not it could be
sent then. Prompts have the lengths and the shared beginnings that the trace says and
are slices of dialogues, or random (--prompts). Every answer is compared with all others to the same request, and some
with a plain engine's. Exits with 1 if one was wrong.

Trace formats: mooncake, agentic, azure, sharegpt, vidur; plain or gzipped.`,
		Example: `  kvlend bench serve --baselines local-only,lending --rounds 3
  kvlend bench serve --url http://127.0.0.1:8000 --sessions 100 --rate 8
  kvlend bench serve --trace conversation.jsonl.gz --scale-tokens 32 --scale-time 20 --limit 500 --plots out`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.register(c.Flags())
	return c
}

func (f *serveFlags) register(fs *pflag.FlagSet) {
	o := &f.opt
	f.load.register(fs)
	fs.StringVar(&o.URL, "url", "", "a running gateway")
	fs.StringVar(&o.Key, "key", os.Getenv("KVLEND_API_KEY"), "its key (default $KVLEND_API_KEY)")
	fs.StringSliceVar(&f.baselines, "baselines", nil, "systems to start: "+strings.Join(configs.Baselines(), ", ")+"; others are compared with the first (default lending)")
	fs.StringVarP(&f.base, "base", "c", "", "configuration that --baselines change (default: the built-in one)")
	fs.StringArrayVar(&f.configs, "config", nil, "NAME=FILE: another system to start; may be repeated")
	fs.BoolVar(&f.paperLinks, "paper-links", false, "scale the paced links of --base to this machine's engine, so that loading stands to computing as on the paper's: the link to device host is PCIe, the others are NVLink")
	fs.Float64SliceVar(&f.linkTimes, "link-times", nil, "start every system once for each of these, with paced links so many times as fast, such as 0.5,1,2")
	fs.IntVar(&o.Rounds, "rounds", 1, "rounds; medians of rounds are compared")
	fs.DurationVar(&o.Timeout, "timeout", serve.DefaultTimeout, "of a request")
	fs.IntVar(&o.Retries, "retries", 0, "send a refused request again after the server's Retry-After, at most so often")
	fs.StringVar(&f.prompts, "prompts", "", "what prompts are made of: dialogue or random (default dialogue if the model's tokenizer has the marks of ChatML)")
	fs.IntVar(&o.Vocab, "vocab", 256, "random prompts are token ids below this; implies --prompts random")
	fs.StringVar(&f.verify, "verify", "16", "distinct requests that are compared with a plain engine: a number, or all")
	fs.StringVar(&f.reference, "reference", "", "with --url: a configuration that describes the model, if it is not a built-in one")
	fs.StringVar(&f.plots, "plots", "", "also draw plots into this directory")
	fs.StringVar(&f.samples, "samples", "", "also write every request as a line of JSON into this file")
	fs.BoolVar(&f.json, "json", false, "print JSON")
}

func (f *serveFlags) run(cmd *cobra.Command) error {
	var err error
	if f.opt.Binary, err = os.Executable(); err != nil {
		return err
	}
	if err = f.prepare(cmd.Flags()); err == nil {
		err = f.opt.Validate()
	}
	if err != nil {
		return &codeError{exitUsage, err}
	}
	var r *serve.Result
	err = counted("serve", func(progress func(serve.Progress)) error {
		f.opt.Progress = progress
		r, err = serve.Run(cmd.Context(), f.opt)
		return err
	})
	if err != nil {
		return err
	}
	if f.samples != "" {
		if err := writeInto(f.samples, r.WriteSamples); err != nil {
			return err
		}
	}
	if err := f.plot(r); err != nil {
		return err
	}
	if err := show(cmd, r, f.json); err != nil {
		return err
	}
	return r.Err()
}

// prepare turns flags into options.
func (f *serveFlags) prepare(fs *pflag.FlagSet) (err error) {
	o := &f.opt
	l := &f.load
	if o.Verify = -1; f.verify != "all" {
		if _, err := fmt.Sscanf(f.verify, "%d", &o.Verify); err != nil || o.Verify < 0 {
			return fmt.Errorf("--verify is %q: want a number from 0, or all", f.verify)
		}
	}
	if o.Prompts, err = f.readPrompts(fs); err != nil {
		return err
	}
	if o.Trace, err = l.read(fs); err != nil {
		return err
	}
	beside, err := l.readBeside(o.Trace)
	if err != nil {
		return err
	}
	for _, b := range beside {
		o.Beside = append(o.Beside, serve.Beside{Model: b.model, Trace: b.trace})
	}
	o.Model, o.Shape, o.Timing, o.Length, o.Seed = l.model, l.shape, serve.Timing(l.timing), l.length, l.seed
	if o.URL != "" {
		for _, name := range []string{"baselines", "base", "config", "link-times", "paper-links"} {
			if fs.Changed(name) {
				return fmt.Errorf("--%s starts systems, and --url names a running one: want one of them", name)
			}
		}
		return f.readReference()
	}
	if f.reference != "" {
		return fmt.Errorf("--reference is for --url: systems that are started have configurations")
	}
	return f.readSystems()
}

// readPrompts reads what prompts are made of. Who names a vocabulary wants random
// tokens of it.
func (f *serveFlags) readPrompts(fs *pflag.FlagSet) (serve.Prompts, error) {
	p := serve.Prompts(f.prompts)
	switch {
	case fs.Changed("prompts") && !slices.Contains(serve.AllPrompts(), p):
		return "", fmt.Errorf("--prompts is %q: want one of %q", f.prompts, serve.AllPrompts())
	case fs.Changed("vocab") && p == serve.PromptsDialogue:
		return "", fmt.Errorf("--vocab is for random prompts, and --prompts is %q: want one of them", f.prompts)
	case fs.Changed("vocab"):
		return serve.PromptsRandom, nil
	}
	return p, nil
}

func (f *serveFlags) readReference() error {
	if f.reference == "" {
		return nil
	}
	c, err := configs.Load(f.reference)
	if err != nil {
		return err
	}
	name := f.opt.Model
	if name == "" {
		return fmt.Errorf("--reference needs --model: the name of the model in that configuration")
	}
	if f.opt.Reference, _ = c.Model(name); f.opt.Reference == nil {
		return fmt.Errorf("--reference: %s has no model %q", f.reference, name)
	}
	return nil
}

func (f *serveFlags) readSystems() error {
	base := configs.Default()
	if f.base != "" {
		var err error
		if base, err = configs.Load(f.base); err != nil {
			return err
		}
	}
	if f.paperLinks {
		var err error
		if base, err = f.scaleToPaper(base); err != nil {
			return fmt.Errorf("--paper-links: %w", err)
		}
	}
	names := f.baselines
	if len(names) == 0 && len(f.configs) == 0 {
		names = []string{"lending"}
	}
	for _, name := range names {
		s, err := serve.Baseline(name, base)
		if err != nil {
			return fmt.Errorf("--baselines: %w", err)
		}
		f.opt.Systems = append(f.opt.Systems, s)
	}
	for _, v := range f.configs {
		name, file, ok := strings.Cut(v, "=")
		if !ok || name == "" || file == "" {
			return fmt.Errorf("--config is %q: want NAME=FILE", v)
		}
		if slices.ContainsFunc(f.opt.Systems, func(s serve.System) bool { return s.Name == name }) {
			return fmt.Errorf("--config is %q: want another name, %s is taken", v, name)
		}
		c, err := configs.Load(file)
		if err != nil {
			return err
		}
		f.opt.Systems = append(f.opt.Systems, serve.System{Name: name, Config: c})
	}
	return f.scaleLinks()
}

// scaleToPaper measures the engine of the model that is asked and sets the links.
func (f *serveFlags) scaleToPaper(base *configs.Config) (*configs.Config, error) {
	var m *configs.Model
	for i := range base.Models {
		if c := &base.Models[i]; m == nil && (c.Name == f.opt.Model || f.opt.Model == "" && c.Role == configs.RoleMaster) {
			m = c
		}
	}
	if m == nil {
		return nil, fmt.Errorf("the configuration has no master to ask")
	}
	scale, err := serve.Measure(context.Background(), m)
	if err != nil {
		return nil, err
	}
	f.opt.Notes = append(f.opt.Notes, scale.String())
	return serve.WithScale(base, scale)
}

// scaleLinks puts every system with every speed of links in its place.
func (f *serveFlags) scaleLinks() error {
	if len(f.linkTimes) == 0 {
		return nil
	}
	var all []serve.System
	for _, times := range f.linkTimes {
		for _, s := range f.opt.Systems {
			scaled, err := s.WithLinks(times)
			if err != nil {
				return fmt.Errorf("--link-times: %w", err)
			}
			all = append(all, scaled)
		}
	}
	f.opt.Systems = all
	return nil
}

func (f *serveFlags) plot(r *serve.Result) error {
	if f.plots == "" {
		return nil
	}
	if err := os.MkdirAll(f.plots, 0o777); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	for name, draw := range r.Plots() {
		path := filepath.Join(f.plots, name+".svg")
		if err := writePlot(path, func(w io.Writer) error { return draw(w, "svg") }); err != nil {
			return err
		}
	}
	return nil
}

func writeInto(path string, write func(io.Writer) error) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(out); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// counted shows how far a long command is, on a terminal only.
func counted(title string, f func(progress func(serve.Progress)) error) error {
	if !terminal(os.Stderr) {
		return f(func(serve.Progress) {})
	}
	var doing atomic.Value
	doing.Store("")
	p := mpb.New(mpb.WithOutput(os.Stderr))
	bar := p.AddBar(0, mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(title+" "), decor.CountersNoUnit("%d/%d")),
		mpb.AppendDecorators(decor.Elapsed(decor.ET_STYLE_GO), decor.Any(func(decor.Statistics) string {
			return "  " + doing.Load().(string)
		})))
	err := f(func(now serve.Progress) {
		doing.Store(now.Doing)
		bar.SetTotal(int64(now.Total), false)
		bar.SetCurrent(int64(now.Done))
	})
	bar.Abort(true)
	p.Wait()
	return err
}
