package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kvlend/kvlend/engine/tokenizer"
	"github.com/kvlend/kvlend/internal/dialogue"
)

// dialogueFlags are the flags of kvlend model dialogues.
type dialogueFlags struct {
	opt          dialogue.Options
	kind         string
	seed         uint64
	first, count uint64
	tokenizer    string
	rows         bool
}

func modelDialoguesCmd() *cobra.Command {
	var d dialogueFlags
	c := &cobra.Command{
		Use:   "dialogues",
		Short: "Write dialogues to train and test a model that remembers",
		Long: `Writes dialogues in which a user states facts, talks of other things, corrects
facts and asks about them later: a line of JSON for each, with the facts and with
every question's answer, kind and distance. Equal flags write equal bytes.

With --rows it writes rows of tokens for training instead: one dialogue each,
16 bits a token, little-endian. The low 14 bits are the token's id, the others
what it is: 0 the user's words and marks, 1 the assistant's words, 2 an answer,
3 padding.`,
		Example: `  kvlend model dialogues --seed 1 --count 3 --tokens 500
  kvlend model dialogues --held-out --kind corrected --distance 2000 --facts 8 --tokens 4000
  kvlend model dialogues --tokenizer ./m --rows --count 0 --tokens 1024 | train`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.opt.Kind = dialogue.Kind(d.kind)
			return d.run(cmd)
		},
	}
	f := c.Flags()
	f.Uint64Var(&d.seed, "seed", 1, "seed of the dialogues")
	f.Uint64Var(&d.first, "first", 0, "number of the first dialogue")
	f.Uint64Var(&d.count, "count", 1, "dialogues; 0: until the reader goes away")
	f.IntVar(&d.opt.Tokens, "tokens", 512, fmt.Sprintf("length of each in tokens, at most; %d or more", dialogue.MinTokens))
	f.IntVar(&d.opt.Facts, "facts", 0, "facts told in each; 0: any number")
	f.StringVar(&d.kind, "kind", "", fmt.Sprintf("kind of the last question, of %v; empty: any", dialogue.Kinds()))
	f.IntVar(&d.opt.Distance, "distance", 0, "tokens between the last question and what it asks for, about; 0: any")
	f.BoolVar(&d.opt.HeldOut, "held-out", false, "names, values and phrasings that training does not use")
	f.StringVar(&d.tokenizer, "tokenizer", "", "directory of the tokenizer that counts the tokens; empty: an estimate")
	f.BoolVar(&d.rows, "rows", false, "write rows of tokens; needs --tokenizer")
	return c
}

func (d *dialogueFlags) run(cmd *cobra.Command) error {
	var enc *dialogue.Encoder
	if d.tokenizer != "" {
		tok, err := tokenizer.Load(d.tokenizer)
		if err != nil {
			return wanting(d.tokenizer, err)
		}
		if enc, err = dialogue.NewEncoder(tok); err != nil {
			return wanting(d.tokenizer, err)
		}
		d.opt.Count = enc.Count
	} else if d.rows {
		return usage("--rows needs --tokenizer")
	}
	// What models are trained on is typed as people do; what is measured is not.
	d.opt.Casual = d.rows && !d.opt.HeldOut
	if err := d.opt.Validate(); err != nil {
		return &codeError{exitUsage, err}
	}
	out := bufio.NewWriterSize(cmd.OutOrStdout(), 1<<16)
	if err := d.write(cmd, out, enc); err != nil {
		return err
	}
	return out.Flush()
}

func (d *dialogueFlags) write(cmd *cobra.Command, out io.Writer, enc *dialogue.Encoder) error {
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	var row []byte
	for n := d.first; d.count == 0 || n-d.first < d.count; n++ {
		if err := cmd.Context().Err(); err != nil {
			return err
		}
		made, err := dialogue.Generate(d.seed, n, d.opt)
		if err != nil {
			return err
		}
		if !d.rows {
			if err := lines.Encode(made); err != nil {
				return err
			}
			continue
		}
		if row, err = enc.AppendRow(row[:0], made, d.opt.Tokens); err != nil {
			return err
		}
		if _, err := out.Write(row); err != nil {
			return err
		}
	}
	return nil
}

func modelTokenizerCmd() *cobra.Command {
	var vocab int
	var seed, count uint64
	c := &cobra.Command{
		Use:   "tokenizer DIR",
		Short: "Train a tokenizer on dialogues",
		Long: `Trains a byte-level BPE tokenizer on the dialogues of a seed and writes it to a
directory: tokenizer.json and tokenizer_config.json, with ChatML as the chat
template. Equal flags write equal bytes.`,
		Args: oneDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
				if _, err := os.Lstat(filepath.Join(args[0], name)); err == nil {
					return usage("%s has a %s already: name another directory, or remove it", args[0], name)
				}
			}
			var failed error
			data, err := tokenizer.Train(dialogueTexts(seed, count, &failed), vocab)
			if failed != nil {
				return failed
			}
			if err != nil {
				return &codeError{exitUsage, err}
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			if err := tokenizer.Write(args[0], data); err != nil {
				return err
			}
			tok, err := tokenizer.Parse(data)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d entries\n", args[0], tok.VocabSize())
			return err
		},
	}
	f := c.Flags()
	f.IntVar(&vocab, "vocab", 1024, "entries, at most")
	f.Uint64Var(&seed, "seed", 1, "seed of the dialogues")
	f.Uint64Var(&count, "count", 2000, "dialogues of 1000 tokens")
	return c
}

// dialogueTexts yields what is said in dialogues for training; it stops at an
// error, which it stores.
func dialogueTexts(seed, count uint64, failed *error) iter.Seq[string] {
	return func(yield func(string) bool) {
		for n := range count {
			d, err := dialogue.Generate(seed, n, dialogue.Options{Tokens: 1000})
			if err != nil {
				*failed = err
				return
			}
			for _, m := range d.Messages {
				if !yield(m.Role) || !yield(m.Content) {
					return
				}
			}
		}
	}
}
