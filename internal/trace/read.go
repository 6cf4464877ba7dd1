package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Format is the form of a trace file.
type Format string

// Formats that are read.
const (
	// Mooncake: JSON lines of timestamp (ms), input_length, output_length and
	// hash_ids, one per 512 tokens (kvcache-ai/Mooncake).
	Mooncake Format = "mooncake"
	// Agentic: JSON lines, one session each, of requests with block ids and
	// nested sub-agents (callanjfox/kv-cache-tester).
	Agentic Format = "agentic"
	// Azure: CSV of TIMESTAMP, ContextTokens, GeneratedTokens
	// (Azure/AzurePublicDataset).
	Azure Format = "azure"
	// ShareGPT: CSV of tokenizer, arrival_ns, input_toks, output_toks
	// (casys-kaist/LLMServingSim).
	ShareGPT Format = "sharegpt"
	// Vidur: CSV of num_prefill_tokens, num_decode_tokens and, if it has them,
	// arrived_at (s) (microsoft/vidur).
	Vidur Format = "vidur"
)

// Formats lists them all.
func Formats() []Format { return []Format{Mooncake, Agentic, Azure, ShareGPT, Vidur} }

// maxLine bounds a line of a trace, in bytes.
const maxLine = 64 << 20

// Load reads the trace in a file, which may be gzipped, up to its first limit
// sessions; limit 0: all. format "" finds out by itself.
func Load(path string, format Format, limit int) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer f.Close()
	return Read(f, filepath.Base(path), format, limit)
}

// Read reads a trace. name is for messages.
func Read(r io.Reader, name string, format Format, limit int) (*Trace, error) {
	if limit < 0 {
		return nil, fmt.Errorf("trace: the limit is %d: want 0 (none) or more", limit)
	}
	if limit == 0 {
		limit = maxSessions
	}
	in, err := plain(r)
	if err != nil {
		return nil, fmt.Errorf("trace: %s: %w", name, err)
	}
	if format == "" {
		if format, err = detect(in, name); err != nil {
			return nil, err
		}
	}
	p := &parser{name: name, limit: limit, in: in}
	switch format {
	case Mooncake:
		err = p.jsonLines(p.mooncake)
	case Agentic:
		err = p.jsonLines(p.agentic)
	case Azure:
		err = p.azure()
	case ShareGPT:
		err = p.shareGPT()
	case Vidur:
		err = p.vidur()
	default:
		err = fmt.Errorf("trace: format %q: want one of %q", format, Formats())
	}
	if err != nil {
		return nil, err
	}
	if len(p.sessions) == 0 {
		return nil, fmt.Errorf("trace: %s holds no requests", name)
	}
	p.fromZero()
	return &Trace{Name: name, Format: format, Sessions: p.sessions, Notes: p.notes}, nil
}

// plain unpacks what is gzipped.
func plain(r io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	if magic, err := in.Peek(2); err != nil || magic[0] != 0x1f || magic[1] != 0x8b {
		return in, nil
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	return bufio.NewReaderSize(z, 64<<10), nil
}

// detect looks at the beginning.
func detect(in *bufio.Reader, name string) (Format, error) {
	head, err := in.Peek(4 << 10)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("trace: %s: %w", name, err)
	}
	line, _, _ := bytes.Cut(head, []byte("\n"))
	for sign, f := range map[string]Format{
		`"hash_ids"`: Mooncake, `"blk"`: Agentic, "ContextTokens": Azure, "input_toks": ShareGPT, "num_prefill_tokens": Vidur,
	} {
		if bytes.Contains(line, []byte(sign)) {
			return f, nil
		}
	}
	return "", &LineError{name, 1, "line", string(line), fmt.Sprintf("the beginning of one of the formats %q", Formats())}
}

// parser reads one file.
type parser struct {
	name     string
	in       *bufio.Reader
	line     int
	limit    int
	sessions []Session
	notes    []string
}

// full reports whether the limit of sessions is reached.
func (p *parser) full() bool { return len(p.sessions) >= p.limit }

func (p *parser) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

func (p *parser) wrong(field, value, accepted string) error {
	return &LineError{p.name, p.line, field, value, accepted}
}

// whole checks a whole number.
func (p *parser) whole(field string, v, least, most int) (int, error) {
	if v < least || v > most {
		return 0, p.wrong(field, strconv.Itoa(v), fmt.Sprintf("a whole number from %d to %d", least, most))
	}
	return v, nil
}

// seconds checks a time in seconds; scale is how many of field's units one is.
func (p *parser) seconds(field string, v, scale float64) (time.Duration, error) {
	if s := v / scale; s >= 0 && s <= maxSeconds { // no NaN passes
		return time.Duration(s * float64(time.Second)), nil
	}
	return 0, p.wrong(field, strconv.FormatFloat(v, 'g', -1, 64), fmt.Sprintf("a number from 0 to %g", maxSeconds*scale))
}

// jsonLines gives every line to each, up to the limit.
func (p *parser) jsonLines(each func([]byte) error) error {
	lines := bufio.NewScanner(p.in)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for !p.full() && lines.Scan() {
		p.line++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := each(lines.Bytes()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("trace: %s:%d: %w", p.name, p.line+1, err)
	}
	return nil
}

// fromZero sorts the sessions by their start and makes the first one's 0.
func (p *parser) fromZero() {
	slices.SortStableFunc(p.sessions, func(a, b Session) int { return int(min(1, max(-1, a.Start-b.Start))) })
	first := p.sessions[0].Start
	for i := range p.sessions {
		p.sessions[i].Start -= first
	}
}

// single adds a session of one turn.
func (p *parser) single(start time.Duration, spans []Span, output int) {
	id := strings.TrimSpace(fmt.Sprintf("line %d", p.line))
	p.sessions = append(p.sessions, Session{ID: id, Start: start, Turns: []Turn{{Append: spans, Output: max(1, output)}}})
}

// own is text that occurs nowhere else in the trace.
func (p *parser) own(tokens int) []Span {
	return []Span{{ID: spanID(kindOwn, uint64(p.line), 0), Tokens: tokens}}
}
