package jinja

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// renderer is the state of one Render.
type renderer struct {
	limits Limits
	steps  int
	bytes  int
	depth  int
	out    strings.Builder
	// filters is for filters that apply others.
	filters map[string]filterFunc
}

// scope maps names to values; inner scopes see outer ones.
type scope struct {
	vars   map[string]any
	parent *scope
}

func (s *scope) inner() *scope { return &scope{vars: map[string]any{}, parent: s} }

func (s *scope) lookup(name string) any {
	for ; s != nil; s = s.parent {
		if v, ok := s.vars[name]; ok {
			return v
		}
	}
	return undefined{fmt.Sprintf("%q", name)}
}

// step counts one unit of work.
func (r *renderer) step() error {
	if r.steps++; r.steps > r.limits.Steps {
		return fmt.Errorf("%w: more than %d steps", ErrLimit, r.limits.Steps)
	}
	return nil
}

// made counts n bytes (or items) of text or data that an operation makes.
func (r *renderer) made(n int) error {
	if n < 0 || n > r.limits.Bytes-r.bytes {
		return fmt.Errorf("%w: more than %d bytes of text", ErrLimit, r.limits.Bytes)
	}
	r.bytes += n
	return nil
}

// str counts the bytes of s and returns it as a value.
func (r *renderer) str(s string) (any, error) { return s, r.made(len(s)) }

func (r *renderer) write(s string) error {
	r.out.WriteString(s)
	return r.made(len(s))
}

// descend guards the recursion of execution; call leave when done.
func (r *renderer) descend() error {
	if r.depth++; r.depth > r.limits.Depth {
		return fmt.Errorf("%w: nested more than %d deep", ErrLimit, r.limits.Depth)
	}
	return nil
}

func (r *renderer) leave() { r.depth-- }

// capture runs fn and returns what it wrote.
func (r *renderer) capture(fn func() error) (string, error) {
	saved := r.out
	r.out = strings.Builder{}
	err := fn()
	s := r.out.String()
	r.out = saved
	return s, err
}

func (r *renderer) exec(body []node, s *scope) (signal, error) {
	defer r.leave()
	if err := r.descend(); err != nil {
		return proceed, err
	}
	for _, n := range body {
		if err := r.step(); err != nil {
			return proceed, err
		}
		sig, err := r.node(n, s)
		if err != nil || sig != proceed {
			return sig, err
		}
	}
	return proceed, nil
}

func (r *renderer) node(n node, s *scope) (signal, error) {
	switch n := n.(type) {
	case data:
		return proceed, r.write(n.text)
	case output:
		v, err := r.eval(n.x, s)
		if err != nil {
			return proceed, errorAt(n.line, err)
		}
		text, err := r.text(v)
		if err == nil {
			err = r.write(text)
		}
		return proceed, errorAt(n.line, err)
	case ifNode:
		return r.ifStatement(n, s)
	case forNode:
		v, err := r.eval(n.iter, s)
		if err != nil {
			return proceed, errorAt(n.line, err)
		}
		return proceed, errorAt(n.line, r.loop(&n, v, s, 0))
	case setNode:
		return proceed, errorAt(n.line, r.set(&n, s))
	case macroNode:
		s.vars[n.name] = r.macro(&n, s)
	case filterNode:
		text, err := r.captureBody(n.body, s.inner())
		if err == nil {
			text, err = r.filterText(text, n.filters, s)
		}
		if err == nil {
			err = r.write(text)
		}
		return proceed, errorAt(n.line, err)
	case withNode:
		inner := s.inner()
		for i, x := range n.values {
			v, err := r.eval(x, s)
			if err == nil {
				err = r.assign(n.targets[i], v, inner)
			}
			if err != nil {
				return proceed, errorAt(n.line, err)
			}
		}
		return r.exec(n.body, inner)
	case scoped:
		return r.exec(n.body, s.inner())
	case loopControl:
		return n.signal, nil
	default:
		panic(fmt.Sprintf("BUG: statement of type %T", n))
	}
	return proceed, nil
}

func (r *renderer) ifStatement(n ifNode, s *scope) (signal, error) {
	for i, t := range n.tests {
		v, err := r.eval(t, s)
		if err != nil {
			return proceed, errorAt(n.line, err)
		}
		if truthy(v) {
			return r.exec(n.bodies[i], s)
		}
	}
	if len(n.bodies) > len(n.tests) {
		return r.exec(n.bodies[len(n.tests)], s)
	}
	return proceed, nil
}

// captureBody returns the text that body writes.
func (r *renderer) captureBody(body []node, s *scope) (string, error) {
	return r.capture(func() error {
		_, err := r.exec(body, s)
		return err
	})
}

func (r *renderer) filterText(text string, chain []*filter, s *scope) (string, error) {
	var v any = text
	for _, f := range chain {
		var err error
		if v, err = r.applyFilter(f, v, s); err != nil {
			return "", err
		}
	}
	return r.text(v)
}

func (r *renderer) set(n *setNode, s *scope) error {
	if n.value != nil {
		v, err := r.eval(n.value, s)
		if err != nil {
			return err
		}
		return r.assign(n.target, v, s)
	}
	text, err := r.captureBody(n.body, s.inner())
	if err == nil && n.filter != nil {
		text, err = r.filterText(text, n.filter, s)
	}
	if err != nil {
		return err
	}
	return r.assign(n.target, text, s)
}

// assign stores v in a name, a namespace's attribute or several of them.
func (r *renderer) assign(target expr, v any, s *scope) error {
	switch t := target.(type) {
	case name:
		s.vars[t.name] = v
		return nil
	case nsRef:
		ns, ok := s.lookup(t.object).(*namespace)
		if !ok {
			return fmt.Errorf("cannot assign an attribute of %q, which is not a namespace", t.object)
		}
		ns.vars.set(t.attr, v)
		return nil
	case listLit:
		items, err := r.iterate(v)
		if err != nil {
			return err
		}
		if len(items) != len(t.items) {
			return fmt.Errorf("cannot unpack %d values into %d names", len(items), len(t.items))
		}
		for i, each := range t.items {
			if err := r.assign(each, items[i], s); err != nil {
				return err
			}
		}
		return nil
	}
	panic(fmt.Sprintf("BUG: target of type %T", target))
}

// iterate lists the items of v.
func (r *renderer) iterate(v any) ([]any, error) {
	switch v := v.(type) {
	case *List:
		return v.Items, nil
	case *Dict:
		return v.keys, r.made(len(v.keys))
	case string:
		if err := r.made(len(v)); err != nil {
			return nil, err
		}
		items := make([]any, 0, len(v))
		for _, c := range v {
			items = append(items, string(c))
		}
		return items, nil
	case undefined:
		return nil, nil
	}
	return nil, fmt.Errorf("cannot iterate over %s", typeName(v))
}

// loopState is the variable loop.
type loopState struct {
	items   []any
	index   int
	depth   int
	last    any // what changed was called with; nil before
	recurse function
}

func (l *loopState) attr(name string) (any, bool) {
	n := int64(len(l.items))
	i := int64(l.index)
	switch name {
	case "index":
		return i + 1, true
	case "index0":
		return i, true
	case "revindex":
		return n - i, true
	case "revindex0":
		return n - i - 1, true
	case "first":
		return i == 0, true
	case "last":
		return i == n-1, true
	case "length":
		return n, true
	case "depth":
		return int64(l.depth + 1), true
	case "depth0":
		return int64(l.depth), true
	case "previtem":
		if i > 0 {
			return l.items[i-1], true
		}
	case "nextitem":
		if i+1 < n {
			return l.items[i+1], true
		}
	case "cycle":
		return function(func(_ *renderer, a args) (any, error) {
			if len(a.positional) == 0 {
				return nil, fmt.Errorf("cycle has no items")
			}
			return a.positional[l.index%len(a.positional)], nil
		}), true
	case "changed":
		return function(func(r *renderer, a args) (any, error) {
			now := &List{Items: a.positional, tuple: true}
			before := l.last
			l.last = now
			if before == nil {
				return true, nil
			}
			same, err := r.equal(before, now)
			return !same, err
		}), true
	}
	return undefined{fmt.Sprintf("attribute %q of loop", name)}, false
}

func (r *renderer) loop(n *forNode, over any, s *scope, depth int) error {
	items, err := r.iterate(over)
	if err != nil {
		return err
	}
	if n.cond != nil {
		if items, err = r.selectItems(n, items, s); err != nil {
			return err
		}
	}
	if len(items) == 0 {
		_, err := r.exec(n.otherwise, s.inner())
		return err
	}
	l := &loopState{items: items, depth: depth}
	if n.recursive {
		l.recurse = func(r *renderer, a args) (any, error) {
			var child any
			if err := a.take([]string{"iterable"}, &child); err != nil {
				return nil, err
			}
			return r.capture(func() error { return r.loop(n, child, s, depth+1) })
		}
	}
	for i, item := range items {
		l.index = i
		inner := s.inner()
		if err := r.assign(n.target, item, inner); err != nil {
			return err
		}
		inner.vars["loop"] = l
		if err := r.step(); err != nil {
			return err
		}
		sig, err := r.exec(n.body, inner)
		if err != nil {
			return err
		}
		if sig == breakLoop {
			break
		}
	}
	return nil
}

// selectItems applies the loop's condition.
func (r *renderer) selectItems(n *forNode, items []any, s *scope) ([]any, error) {
	var kept []any
	for _, item := range items {
		inner := s.inner()
		if err := r.assign(n.target, item, inner); err != nil {
			return nil, err
		}
		v, err := r.eval(n.cond, inner)
		if err != nil {
			return nil, err
		}
		if truthy(v) {
			kept = append(kept, item)
		}
	}
	return kept, nil
}

// macro makes a function of a macro; it sees the scope of its definition.
func (r *renderer) macro(n *macroNode, s *scope) function {
	return func(r *renderer, a args) (any, error) {
		inner := s.inner()
		if len(a.positional) > len(n.params) {
			return nil, fmt.Errorf("macro %q takes at most %d arguments, got %d", n.name, len(n.params), len(a.positional))
		}
		for i, v := range a.positional {
			inner.vars[n.params[i]] = v
		}
		for i, name := range a.names {
			if !slices.Contains(n.params, name) {
				return nil, fmt.Errorf("macro %q has no parameter %q", n.name, name)
			}
			inner.vars[name] = a.values[i]
		}
		for i, p := range n.params {
			if _, ok := inner.vars[p]; ok {
				continue
			}
			inner.vars[p] = undefined{fmt.Sprintf("parameter %q", p)}
			if d := i - (len(n.params) - len(n.defaults)); d >= 0 {
				v, err := r.eval(n.defaults[d], inner)
				if err != nil {
					return nil, err
				}
				inner.vars[p] = v
			}
		}
		return r.captureBody(n.body, inner)
	}
}

// globals are the functions that every template has.
func (r *renderer) globals(now time.Time) map[string]any {
	g := maps.Clone(globalFunctions)
	g["strftime_now"] = function(func(r *renderer, a args) (any, error) {
		var format any
		if err := a.take([]string{"format"}, &format); err != nil {
			return nil, err
		}
		text, ok := format.(string)
		if !ok {
			return nil, fmt.Errorf("the format is %s: it must be a string", typeName(format))
		}
		return strftime(now, text)
	})
	return g
}
