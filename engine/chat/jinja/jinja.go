// Package jinja renders Jinja2 templates of the kind that language models
// ship as chat templates. It behaves as Jinja2 does in Hugging Face's
// transformers: a sandbox whose data cannot be changed, trim_blocks and
// lstrip_blocks set, loop controls, the generation tag, and json.dumps as
// the tojson filter.
//
// It exists because templates decide, to the byte, what a model is asked:
// dictionaries keep their order, null is not undefined, strings are counted
// in characters. And because a template comes with the model, it is bounded:
// Render's time and memory have limits that no template can exceed, and there
// is nothing in the language that reaches a file.
//
// Not supported are inheritance, include, import, call blocks, escaping by
// default, printf-style formatting and a few filters; all are refused by
// name, most of them by Parse.
package jinja

import (
	"errors"
	"fmt"
	"time"
)

// Limits bound one Render.
type Limits struct {
	Steps int // expressions and statements evaluated
	Bytes int // text made, intermediate text included
	Depth int // nested expressions, statements and calls
}

// DefaultLimits suit templates over thousands of messages: rendering takes a
// few seconds and 64 MiB at the very most.
var DefaultLimits = Limits{Steps: 10_000_000, Bytes: 64 << 20, Depth: 200}

// ErrLimit is wrapped by the errors of templates that exceed a limit.
var ErrLimit = errors.New("template exceeds a limit")

// A RaisedError is the template's own complaint, by raise_exception.
type RaisedError struct{ Message string }

// Error implements error.
func (e *RaisedError) Error() string { return e.Message }

// Template is a parsed template; it is immutable and safe for concurrent use.
type Template struct{ body []node }

// Parse compiles a template. Errors name the line.
func Parse(source string) (*Template, error) {
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	body, _, err := p.statements(nil)
	if err != nil {
		return nil, err
	}
	return &Template{body}, nil
}

// Render runs the template with the given variables, whose values are those
// that FromGo makes. now is what strftime_now formats.
func (t *Template) Render(vars map[string]any, now time.Time, limits Limits) (string, error) {
	r := &renderer{limits: limits, filters: filters}
	globals := &scope{vars: r.globals(now)}
	top := &scope{vars: map[string]any{}, parent: globals}
	for name, v := range vars {
		top.vars[name] = v
	}
	if _, err := r.exec(t.body, top); err != nil {
		return "", err
	}
	return r.out.String(), nil
}

// errorAt adds a line number, once.
func errorAt(line int, err error) error {
	var le *lineError
	var raised *RaisedError
	if err == nil || errors.As(err, &le) || errors.As(err, &raised) {
		return err
	}
	return &lineError{line, err}
}

type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("template line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }
