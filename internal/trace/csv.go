package trace

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// table reads a CSV file with a header by the names of its columns.
type table struct {
	*parser
	csv     *csv.Reader
	columns map[string]int
	row     []string
}

// openTable reads the header, which must have these columns and may have more.
func (p *parser) openTable(columns ...string) (*table, error) {
	t := &table{parser: p, csv: csv.NewReader(p.in), columns: map[string]int{}}
	t.csv.ReuseRecord = true
	header, err := t.csv.Read()
	p.line = 1
	if err != nil {
		return nil, fmt.Errorf("trace: %s: header: %w", p.name, err)
	}
	for i, c := range header {
		t.columns[strings.TrimSpace(strings.TrimPrefix(c, "\ufeff"))] = i
	}
	for _, c := range columns {
		if _, ok := t.columns[c]; !ok {
			return nil, p.wrong("header", strings.Join(header, ","), fmt.Sprintf("the columns %q", columns))
		}
	}
	return t, nil
}

// next reads a row; false at the end or at the limit.
func (t *table) next() (bool, error) {
	if t.full() {
		return false, nil
	}
	row, err := t.csv.Read()
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("trace: %s: %w", t.name, err)
	}
	t.row = row
	t.line, _ = t.csv.FieldPos(0)
	return true, nil
}

func (t *table) text(column string) string { return strings.TrimSpace(t.row[t.columns[column]]) }

func (t *table) tokens(column string, least int) (int, error) {
	v := t.text(column)
	n, err := strconv.Atoi(v)
	if err != nil {
		return 0, t.wrong(column, v, fmt.Sprintf("a whole number from %d to %d", least, maxTokens))
	}
	return t.whole(column, n, least, maxTokens)
}

func (t *table) time(column string, scale float64) (time.Duration, error) {
	v := t.text(column)
	f, err := strconv.ParseFloat(v, 64)
	if err != nil {
		return 0, t.wrong(column, v, fmt.Sprintf("a number from 0 to %g", maxSeconds*scale))
	}
	return t.seconds(column, f, scale)
}

// request adds a request whose text is its own.
func (t *table) request(start time.Duration, in, out string) error {
	input, err := t.tokens(in, 1)
	if err != nil {
		return err
	}
	output, err := t.tokens(out, 0)
	if err != nil {
		return err
	}
	t.single(start, t.parser.own(input), output)
	return nil
}

// azureTimes are the forms of a time in the traces of 2023 and of 2024.
var azureTimes = []string{"2006-01-02 15:04:05.9999999", "2006-01-02 15:04:05.999999-07:00"}

func (p *parser) azure() error {
	t, err := p.openTable("TIMESTAMP", "ContextTokens", "GeneratedTokens")
	if err != nil {
		return err
	}
	var first time.Time
	for {
		if ok, err := t.next(); !ok {
			return err
		}
		at, err := t.timestamp("TIMESTAMP")
		if err != nil {
			return err
		}
		if first.IsZero() {
			first = at
		}
		since := at.Sub(first)
		if since.Abs().Seconds() > maxSeconds {
			return t.wrong("TIMESTAMP", t.text("TIMESTAMP"), fmt.Sprintf("a time at most %g s from the first one's", maxSeconds))
		}
		if err := t.request(since, "ContextTokens", "GeneratedTokens"); err != nil {
			return err
		}
	}
}

func (t *table) timestamp(column string) (time.Time, error) {
	v := t.text(column)
	for _, layout := range azureTimes {
		if at, err := time.Parse(layout, v); err == nil {
			return at, nil
		}
	}
	return time.Time{}, t.wrong(column, v, fmt.Sprintf("a time like %q", azureTimes))
}

// shareGPT reads the first tokenizer's rows: the others are the same requests
// in other tokens.
func (p *parser) shareGPT() error {
	t, err := p.openTable("tokenizer", "arrival_ns", "input_toks", "output_toks")
	if err != nil {
		return err
	}
	var tokenizers []string
	left := 0
	for {
		ok, err := t.next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		name := t.text("tokenizer")
		if !slices.Contains(tokenizers, name) {
			tokenizers = append(tokenizers, name)
		}
		if name != tokenizers[0] {
			left++
			continue
		}
		at, err := t.time("arrival_ns", 1e9)
		if err != nil {
			return err
		}
		if err := t.request(at, "input_toks", "output_toks"); err != nil {
			return err
		}
	}
	if left > 0 {
		p.note("lengths are those of the tokenizer %s; %d rows of %d others were left out", tokenizers[0], left, len(tokenizers)-1)
	}
	return nil
}

func (p *parser) vidur() error {
	t, err := p.openTable("num_prefill_tokens", "num_decode_tokens")
	if err != nil {
		return err
	}
	_, arrivals := t.columns["arrived_at"]
	for {
		if ok, err := t.next(); !ok {
			return err
		}
		var at time.Duration
		if arrivals {
			if at, err = t.time("arrived_at", 1); err != nil {
				return err
			}
		}
		if err := t.request(at, "num_prefill_tokens", "num_decode_tokens"); err != nil {
			return err
		}
	}
}
