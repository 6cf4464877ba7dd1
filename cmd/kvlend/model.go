package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/chat"
	"github.com/kvlend/kvlend/engine/kernels"
	"github.com/kvlend/kvlend/engine/tokenizer"
)

func modelCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "model",
		Short: "Make and check model directories",
		Example: `  kvlend model new ./m --like atlas         # a built-in model as a Hugging Face directory
  kvlend model new ./m --arch llama --layers 4 --hidden 128 --heads 4 --kv-heads 2 --head-dim 32 --ffn 256 --seed 7
  kvlend model inspect ./m
  kvlend model verify ./m
  kvlend model dialogues --count 2            # to train and test a model's memory`,
	}
	c.AddCommand(modelNewCmd(), modelInspectCmd(), modelVerifyCmd(), modelTokenizerCmd(), modelDialoguesCmd())
	return c
}

func oneDir(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage("%s needs one directory", cmd.CommandPath())
	}
	return nil
}

func modelNewCmd() *cobra.Command {
	var like string
	var seed uint64
	cfg := engine.Config{NormEps: 1e-6, MaxContext: 8192, Rope: engine.RopeConfig{Theta: 10000}}
	c := &cobra.Command{
		Use:   "new DIR",
		Short: "Write a Hugging Face directory: random weights, or a built-in model",
		Args:  oneDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := args[0]
			var err error
			if given := shapeFlags(cmd.Flags()); like != "" && len(given) > 0 {
				return usage("--like %s copies a model as it is, --%s changes its shape or weights: want one of the two", like, given[0])
			}
			if like != "" {
				err = engine.WriteBuiltin(dir, like, tokenizer.WriteByteLevel)
			} else {
				tok := tokenizer.Builtin()
				cfg.Name, cfg.Vocab = dir, tok.VocabSize()
				cfg.QKNorm = cfg.Arch == "qwen3"
				if end, ok := tok.TokenToID("<|im_end|>"); ok {
					cfg.EOS = []int32{end}
				}
				err = engine.WriteModel(dir, &cfg, seed, tokenizer.WriteByteLevel)
			}
			if err != nil {
				return &codeError{exitUsage, err}
			}
			return printInfo(cmd, dir, false)
		},
	}
	f := c.Flags()
	f.StringVar(&like, "like", "", "copy a built-in model: "+strings.Join(engine.BuiltinNames(), ", "))
	f.Uint64Var(&seed, "seed", 1, "seed of the weights")
	f.StringVar(&cfg.Arch, "arch", "qwen3", "qwen3 or llama")
	f.IntVar(&cfg.Layers, "layers", 4, "layers")
	f.IntVar(&cfg.Hidden, "hidden", 128, "hidden size")
	f.IntVar(&cfg.Heads, "heads", 4, "query heads")
	f.IntVar(&cfg.KVHeads, "kv-heads", 2, "KV heads")
	f.IntVar(&cfg.HeadDim, "head-dim", 32, "dimension of a head, a multiple of 16")
	f.IntVar(&cfg.FFN, "ffn", 256, "intermediate size")
	f.IntVar(&cfg.MaxContext, "max-context", cfg.MaxContext, "longest context in tokens")
	f.BoolVar(&cfg.TiedEmbed, "tied", false, "tie input and output embeddings")
	return c
}

// shapeFlags are the flags that were given and say what a model is like.
func shapeFlags(fs *pflag.FlagSet) (given []string) {
	fs.Visit(func(f *pflag.Flag) {
		if f.Name != "like" {
			given = append(given, f.Name)
		}
	})
	return given
}

func modelInspectCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "inspect DIR",
		Short: "Show a model's shape and KV geometry without loading its weights",
		Args:  oneDir,
		RunE:  func(cmd *cobra.Command, args []string) error { return printInfo(cmd, args[0], asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// wanting is the end of a check that found a directory wanting; one that is not
// there was named wrongly.
func wanting(dir string, err error) error {
	if at, missing := os.Stat(dir); missing != nil || !at.IsDir() {
		return &codeError{exitUsage, err}
	}
	return &codeError{exitRefused, err}
}

func printInfo(cmd *cobra.Command, dir string, asJSON bool) error {
	info, err := engine.Inspect(dir)
	if err != nil {
		return wanting(dir, err)
	}
	if asJSON {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(info)
	}
	cfg := info.Config
	t := newTable("", dir)
	row := func(k string, v any) { t.AppendRow([]any{k, v}) }
	row("architecture", info.Architecture)
	row("parameters", info.Params)
	row("layers, hidden, ffn", fmt.Sprintf("%d, %d, %d", cfg.Layers, cfg.Hidden, cfg.FFN))
	row("heads, KV heads, head dim", fmt.Sprintf("%d, %d, %d", cfg.Heads, cfg.KVHeads, cfg.HeadDim))
	row("vocabulary", cfg.Vocab)
	row("longest context", fmt.Sprintf("%d tokens", cfg.MaxContext))
	row("checkpoint", configs.Bytes(info.CheckpointBytes))
	row("KV per token (bf16)", configs.Bytes(cfg.KVBytesPerToken(kernels.BF16)))
	_, err = fmt.Fprintln(cmd.OutOrStdout(), t.Render())
	return err
}

func modelVerifyCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "verify DIR",
		Short: "Load a model, look for damaged weights and run it",
		Args:  oneDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := engine.Verify(cmd.Context(), args[0], engine.Options{})
			if err != nil {
				return wanting(args[0], err)
			}
			if _, err := tokenizer.Load(args[0]); err != nil {
				return wanting(args[0], err)
			}
			if _, err := chat.Load(args[0]); err != nil {
				return wanting(args[0], err)
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok; %d weights, digest %.16s, loaded in %s, %d tokens in %s (%s)\n",
				args[0], v.Values, v.Config.WeightsDigest, v.Load.Round(1e6), v.Tokens, v.Forward.Round(1e3), v.ISA)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
