package client

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/kvlend/kvlend/api/openai"
)

// ChatOptions configure Chat.
type ChatOptions struct {
	Client    *Client
	Model     string // "": the server's first
	System    string // "": no system message
	MaxTokens int    // of one answer; 0: as many as fit
	// Temperature and Seed are the model's and random when nil.
	Temperature *float64
	Seed        *int64
	In          io.Reader
	Out         io.Writer
	// Script says that nobody is there to read what went wrong: messages without
	// an answer, and commands that fail, make Chat's result an error.
	Script bool
	// Interrupt delivers Ctrl-C: it ends the answer that is coming, or the
	// chat when none is.
	Interrupt <-chan os.Signal
}

const chatHelp = `Type a message and press Enter. End a line with \ to go on in the next.
  /model [NAME]  show the models, or go on with another
  /reset         forget the conversation
  /help          this text
  /quit          leave (so do Ctrl-D, and Ctrl-C while no answer is coming)
Ctrl-C ends an answer that is coming.
`

// chat is a running terminal chat.
type chat struct {
	ChatOptions
	messages []openai.Message
	failed   int         // messages and commands
	outErr   error       // of the first write that failed
	lines    chan string // closed at the end of In
	readErr  error       // valid once lines is closed
}

// Chat talks with a model until the input ends, /quit, or ctx ends. Errors of
// single turns are shown and do not end it; Out that cannot be written to does.
// It leaves a goroutine reading In, which ends with the next line or the input's end.
func Chat(ctx context.Context, opt ChatOptions) error {
	c := &chat{ChatOptions: opt, lines: make(chan string)}
	cards, err := c.Client.Models(ctx)
	if err != nil {
		return fmt.Errorf("list the server's models: %w", err)
	}
	if err := c.choose(cards); err != nil {
		return err
	}
	c.reset()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go c.read(ctx)
	c.printf("Talking to %s. /help shows the commands.\n", c.Model)
	for c.outErr == nil {
		c.printf("> ")
		line, ok, err := c.next(ctx)
		if err != nil || !ok {
			c.printf("\n")
			return cmp.Or(err, c.end())
		}
		switch {
		case strings.TrimSpace(line) == "":
		case strings.HasPrefix(line, "/"):
			if c.command(ctx, line) {
				return c.end()
			}
		default:
			c.turn(ctx, line)
		}
	}
	return c.end()
}

// end is the result of a chat.
func (c *chat) end() error {
	switch {
	case c.outErr != nil:
		return c.outErr
	case c.Script && c.failed > 0:
		return fmt.Errorf("messages and commands that failed: %d", c.failed)
	}
	return nil
}

// printf shows text.
func (c *chat) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(c.Out, format, args...); c.outErr == nil {
		c.outErr = err
	}
}

// fail shows why a message or a command failed.
func (c *chat) fail(format string, args ...any) {
	c.failed++
	c.printf(format, args...)
}

// read passes the input's lines on, as they are asked for.
func (c *chat) read(ctx context.Context) {
	defer close(c.lines)
	in := bufio.NewReader(c.In)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			select {
			case c.lines <- strings.TrimRight(line, "\r\n"):
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				c.readErr = err
			}
			return
		}
	}
}

// next returns a message's lines as one; ok is false at the end of the chat.
func (c *chat) next(ctx context.Context) (text string, ok bool, err error) {
	for {
		select {
		case <-ctx.Done():
			return "", false, ctx.Err()
		case <-c.Interrupt:
			return "", false, nil
		case line, more := <-c.lines:
			if !more {
				return text, text != "", c.readErr
			}
			head, goesOn := strings.CutSuffix(line, `\`)
			text += head
			if !goesOn {
				return text, true, nil
			}
			text += "\n"
			c.printf(". ")
		}
	}
}

// choose checks the model's name, or takes the first.
func (c *chat) choose(cards []openai.ModelCard) error {
	if len(cards) == 0 {
		return errors.New("the server has no models")
	}
	if c.Model == "" {
		c.Model = cards[0].ID
	}
	var names []string
	for _, card := range cards {
		if card.ID == c.Model {
			return nil
		}
		names = append(names, card.ID)
	}
	return fmt.Errorf("there is no model %q; the server has %s", c.Model, strings.Join(names, ", "))
}

func (c *chat) reset() {
	c.messages = nil
	if c.System != "" {
		c.messages = append(c.messages, openai.TextMessage("system", c.System))
	}
}

// command runs a line that begins with a slash; true ends the chat.
func (c *chat) command(ctx context.Context, line string) (quit bool) {
	name, arg, _ := strings.Cut(line, " ")
	switch name {
	case "/quit", "/exit":
		return true
	case "/reset":
		c.reset()
		c.printf("The conversation starts anew.\n")
	case "/model", "/models":
		c.model(ctx, strings.TrimSpace(arg))
	case "/help":
		c.printf(chatHelp)
	default:
		c.fail("There is no command %s; /help shows them.\n", name)
	}
	return false
}

func (c *chat) model(ctx context.Context, name string) {
	cards, err := c.Client.Models(ctx)
	if err != nil {
		c.fail("error: %v\n", err)
		return
	}
	if name == "" {
		for _, card := range cards {
			mark := " "
			if card.ID == c.Model {
				mark = "*"
			}
			c.printf("%s %s  %d tokens\n", mark, card.ID, card.MaxModelLen)
		}
		return
	}
	before := c.Model
	c.Model = name
	if err := c.choose(cards); err != nil {
		c.Model = before
		c.fail("error: %v\n", err)
		return
	}
	c.printf("Talking to %s now; the conversation goes on.\n", name)
}

// turn sends the conversation with one message more and shows the answer. A
// turn that fails is forgotten; one that was interrupted stays as far as it came.
func (c *chat) turn(ctx context.Context, text string) {
	messages := append(c.messages[:len(c.messages):len(c.messages)], openai.TextMessage("user", text))
	req := openai.ChatRequest{Model: c.Model, Messages: messages}
	req.Temperature, req.Seed = c.Temperature, c.Seed
	req.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	if c.MaxTokens > 0 {
		req.MaxTokens = &c.MaxTokens
	}
	a := answer{started: time.Now()}
	err := c.interruptible(ctx, func(ctx context.Context) error {
		return c.Client.ChatStream(ctx, req, func(chunk *openai.ChatChunk) error {
			c.printf("%s", printable(a.add(chunk)))
			return nil
		})
	})
	switch {
	case errors.Is(err, context.Canceled) && ctx.Err() == nil:
		c.printf("\n[interrupted]\n")
	case err != nil:
		c.fail("\nerror: %v\n", err)
		return
	default:
		c.printf("\n%s\n", a.summary())
	}
	c.messages = append(messages, openai.TextMessage("assistant", a.text.String()))
}

// printable keeps a model's control characters from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// interruptible runs f with a context that Ctrl-C ends.
func (c *chat) interruptible(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-c.Interrupt:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := f(ctx)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	cancel()
	<-watched
	return err
}

// answer gathers one streamed answer.
type answer struct {
	started, first time.Time
	text           strings.Builder
	usage          *openai.Usage
	finish         string
}

// add returns the chunk's text.
func (a *answer) add(chunk *openai.ChatChunk) string {
	var usage *openai.Usage
	if len(chunk.Usage) > 0 && json.Unmarshal(chunk.Usage, &usage) == nil && usage != nil {
		a.usage = usage
	}
	out := ""
	for _, ch := range chunk.Choices {
		if ch.Delta.Content != nil && *ch.Delta.Content != "" {
			if a.first.IsZero() {
				a.first = time.Now()
			}
			out += *ch.Delta.Content
		}
		if ch.FinishReason != nil {
			a.finish = *ch.FinishReason
		}
	}
	a.text.WriteString(out)
	return out
}

// leastRate is the time, in seconds, over which a rate of tokens means something.
const leastRate = 0.02

// summary is the line of figures below an answer.
func (a *answer) summary() string {
	if a.usage == nil {
		return "[no usage]"
	}
	now := time.Now()
	if a.first.IsZero() {
		a.first = now
	}
	rate := ""
	// Of a few tokens that came at once it would say nothing.
	if d := now.Sub(a.first).Seconds(); d > leastRate && a.usage.CompletionTokens > 1 {
		rate = fmt.Sprintf(", %.1f tokens/s", float64(a.usage.CompletionTokens-1)/d)
	}
	cut := ""
	if a.finish == "length" {
		cut = ", cut off by the length limit"
	}
	return fmt.Sprintf("[%d prompt tokens (%d cached), %d answer tokens, first after %d ms%s%s]", a.usage.PromptTokens,
		a.usage.PromptTokensDetails.CachedTokens, a.usage.CompletionTokens, a.first.Sub(a.started).Milliseconds(), rate, cut)
}
