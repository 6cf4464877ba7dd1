package jinja

import (
	"fmt"
	"math"
	"strings"
)

func (r *renderer) eval(x expr, s *scope) (any, error) {
	defer r.leave()
	if err := r.descend(); err != nil {
		return nil, err
	}
	if err := r.step(); err != nil {
		return nil, err
	}
	switch x := x.(type) {
	case constant:
		return x.value, nil
	case name:
		return s.lookup(x.name), nil
	case listLit:
		items, err := r.evalAll(x.items, s)
		return &List{items, x.tuple}, err
	case dictLit:
		return r.dict(x, s)
	case unary:
		v, err := r.eval(x.x, s)
		if err != nil {
			return nil, err
		}
		return negate(x.op, v)
	case binary:
		return r.binary(x, s)
	case compare:
		return r.compare(x, s)
	case conditional:
		v, err := r.eval(x.test, s)
		switch {
		case err != nil:
			return nil, err
		case truthy(v):
			return r.eval(x.yes, s)
		case x.no == nil:
			return undefined{"the result of an if without else"}, nil
		}
		return r.eval(x.no, s)
	case getAttr:
		v, err := r.eval(x.x, s)
		if err != nil {
			return nil, err
		}
		return attribute(v, x.name)
	case getItem:
		v, err := r.eval(x.x, s)
		if err != nil {
			return nil, err
		}
		key, err := r.eval(x.key, s)
		if err != nil {
			return nil, err
		}
		return item(v, key)
	case slice:
		return r.slice(x, s)
	case call:
		v, err := r.call(x, s)
		return v, errorAt(x.line, err)
	case *filter:
		v, err := r.eval(x.x, s)
		if err != nil {
			return nil, err
		}
		return r.applyFilter(x, v, s)
	case test:
		return r.test(x, s)
	}
	panic(fmt.Sprintf("BUG: expression of type %T", x))
}

func (r *renderer) evalAll(xs []expr, s *scope) ([]any, error) {
	items := make([]any, len(xs))
	for i, x := range xs {
		var err error
		if items[i], err = r.eval(x, s); err != nil {
			return nil, err
		}
	}
	return items, nil
}

func (r *renderer) dict(x dictLit, s *scope) (any, error) {
	d := NewDict()
	for i, k := range x.keys {
		key, err := r.eval(k, s)
		if err != nil {
			return nil, err
		}
		if !hashable(key) {
			return nil, fmt.Errorf("%s cannot be a key", typeName(key))
		}
		v, err := r.eval(x.values[i], s)
		if err != nil {
			return nil, err
		}
		d.set(key, v)
	}
	return d, nil
}

func negate(op string, v any) (any, error) {
	if op == "not" {
		return !truthy(v), nil
	}
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s has no sign", typeName(v))
	case op == "+" && isInt:
		return i, nil
	case op == "+":
		return f, nil
	case isInt:
		return -i, nil
	}
	return -f, nil
}

func (r *renderer) binary(x binary, s *scope) (any, error) {
	a, err := r.eval(x.a, s)
	if err != nil {
		return nil, err
	}
	if x.op == "or" && truthy(a) || x.op == "and" && !truthy(a) {
		return a, nil
	}
	b, err := r.eval(x.b, s)
	if err != nil || x.op == "or" || x.op == "and" {
		return b, err
	}
	if x.op == "~" {
		as, err := r.text(a)
		if err != nil {
			return nil, err
		}
		bs, err := r.text(b)
		if err != nil {
			return nil, err
		}
		return r.str(as + bs)
	}
	for _, v := range [2]any{a, b} {
		if u, ok := v.(undefined); ok {
			return nil, u.err()
		}
	}
	return r.arithmetic(x.op, a, b)
}

func (r *renderer) arithmetic(op string, a, b any) (any, error) {
	if op == "+" {
		switch a := a.(type) {
		case string:
			if b, ok := b.(string); ok {
				if err := r.made(len(a) + len(b)); err != nil {
					return nil, err
				}
				return a + b, nil
			}
		case *List:
			if b, ok := b.(*List); ok && a.tuple == b.tuple {
				if err := r.made(8 * (len(a.Items) + len(b.Items))); err != nil {
					return nil, err
				}
				return &List{append(append([]any{}, a.Items...), b.Items...), a.tuple}, nil
			}
		}
	}
	if op == "*" {
		if n, ok := b.(int64); ok {
			if v, done, err := r.repeat(a, n); done {
				return v, err
			}
		} else if n, ok := a.(int64); ok {
			if v, done, err := r.repeat(b, n); done {
				return v, err
			}
		}
	}
	ai, af, aInt, aOK := number(a)
	bi, bf, bInt, bOK := number(b)
	switch {
	case !aOK || !bOK:
		return nil, fmt.Errorf("cannot apply %q to %s and %s", op, typeName(a), typeName(b))
	case aInt && bInt && op != "/" && !(op == "**" && bi < 0):
		return integers(op, ai, bi)
	}
	return floats(op, af, bf)
}

// repeat is Python's product of a sequence and an integer.
func (r *renderer) repeat(v any, n int64) (any, bool, error) {
	size := 0
	switch v := v.(type) {
	case string:
		size = len(v)
	case *List:
		size = 8 * len(v.Items)
	default:
		return nil, false, nil
	}
	n = max(n, 0)
	if size > 0 && n > int64(r.limits.Bytes/size) {
		return nil, true, r.made(-1)
	}
	if err := r.made(size * int(n)); err != nil {
		return nil, true, err
	}
	if text, ok := v.(string); ok {
		if size == 0 {
			n = 0
		}
		return strings.Repeat(text, int(n)), true, nil
	}
	out := &List{tuple: v.(*List).tuple}
	if size > 0 {
		for range n {
			out.Items = append(out.Items, v.(*List).Items...)
		}
	}
	return out, true, nil
}

var errOverflow = fmt.Errorf("integer overflow")

func integers(op string, a, b int64) (any, error) {
	switch op {
	case "+":
		if c := a + b; (c > a) == (b > 0) {
			return c, nil
		}
	case "-":
		if c := a - b; (c < a) == (b > 0) {
			return c, nil
		}
	case "*":
		if c := a * b; a == 0 || c/a == b && !(a == -1 && b == math.MinInt64) {
			return c, nil
		}
	case "//", "%":
		if b == 0 {
			return nil, fmt.Errorf("division by zero")
		}
		if a == math.MinInt64 && b == -1 {
			break
		}
		q, m := a/b, a%b
		if m != 0 && (m < 0) != (b < 0) { // Python rounds down
			q, m = q-1, m+b
		}
		if op == "%" {
			return m, nil
		}
		return q, nil
	case "**":
		if f := math.Pow(float64(a), float64(b)); math.Abs(f) < 1<<53 {
			return int64(f), nil
		}
	}
	return nil, errOverflow
}

func floats(op string, a, b float64) (any, error) {
	if b == 0 && (op == "/" || op == "//" || op == "%") {
		return nil, fmt.Errorf("division by zero")
	}
	switch op {
	case "+":
		return a + b, nil
	case "-":
		return a - b, nil
	case "*":
		return a * b, nil
	case "/":
		return a / b, nil
	case "//":
		return math.Floor(a / b), nil
	case "%":
		m := math.Mod(a, b)
		if m != 0 && (m < 0) != (b < 0) {
			m += b
		}
		return m, nil
	}
	return math.Pow(a, b), nil
}

func (r *renderer) compare(x compare, s *scope) (any, error) {
	a, err := r.eval(x.first, s)
	if err != nil {
		return nil, err
	}
	for i, op := range x.ops {
		b, err := r.eval(x.rest[i], s)
		if err != nil {
			return nil, err
		}
		ok, err := r.holds(op, a, b)
		if err != nil || !ok {
			return false, err
		}
		a = b
	}
	return true, nil
}

func (r *renderer) holds(op string, a, b any) (bool, error) {
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		same, err := r.equal(a, b)
		return !same, err
	case "in", "not in":
		found, err := r.contains(b, a)
		return found == (op == "in"), err
	}
	for _, v := range [2]any{a, b} {
		if u, ok := v.(undefined); ok {
			return false, u.err()
		}
	}
	c, err := r.order(a, b)
	switch op {
	case "<":
		return c < 0, err
	case "<=":
		return c <= 0, err
	case ">":
		return c > 0, err
	}
	return c >= 0, err
}

func (r *renderer) contains(container, v any) (bool, error) {
	switch c := container.(type) {
	case string:
		sub, ok := v.(string)
		if !ok {
			return false, fmt.Errorf("cannot look for %s in a string", typeName(v))
		}
		return strings.Contains(c, sub), nil
	case *Dict:
		_, ok := c.get(v)
		return ok, nil
	case *List:
		for _, each := range c.Items {
			if same, err := r.equal(each, v); err != nil || same {
				return same, err
			}
		}
		return false, nil
	case undefined:
		return false, nil
	}
	return false, fmt.Errorf("cannot look for a value in %s", typeName(container))
}

// attribute is v.name: a method or attribute, else an item.
func attribute(v any, name string) (any, error) {
	switch v := v.(type) {
	case undefined:
		return nil, v.err()
	case *loopState:
		a, _ := v.attr(name)
		return a, nil
	case *namespace:
		if value, ok := v.vars.get(name); ok {
			return value, nil
		}
	case *Dict:
		if m := method(v, name); m != nil {
			return m, nil
		}
		if value, ok := v.get(name); ok {
			return value, nil
		}
	default:
		if m := method(v, name); m != nil {
			return m, nil
		}
	}
	return undefined{fmt.Sprintf("attribute %q of %s", name, typeName(v))}, nil
}

// item is v[key]: an item, else for names a method or attribute.
func item(v, key any) (any, error) {
	switch v := v.(type) {
	case undefined:
		return nil, v.err()
	case *Dict:
		if value, ok := v.get(key); ok {
			return value, nil
		}
	case *List:
		if i, _, isInt, ok := number(key); ok && isInt {
			if i < 0 {
				i += int64(len(v.Items))
			}
			if i >= 0 && i < int64(len(v.Items)) {
				return v.Items[i], nil
			}
		}
	case string:
		if i, _, isInt, ok := number(key); ok && isInt {
			if c, ok := character(v, i); ok {
				return c, nil
			}
		}
	}
	if name, ok := key.(string); ok {
		return attribute(v, name)
	}
	return undefined{fmt.Sprintf("an item of %s", typeName(v))}, nil
}

// character returns the i-th character of s, from the end if i is negative.
func character(s string, i int64) (string, bool) {
	runes := []rune(s)
	if i < 0 {
		i += int64(len(runes))
	}
	if i < 0 || i >= int64(len(runes)) {
		return "", false
	}
	return string(runes[i]), true
}

func (r *renderer) slice(x slice, s *scope) (any, error) {
	v, err := r.eval(x.x, s)
	if err != nil {
		return nil, err
	}
	var bounds [3]*int64
	for i, b := range [3]expr{x.start, x.stop, x.step} {
		if b == nil {
			continue
		}
		value, err := r.eval(b, s)
		if err != nil {
			return nil, err
		}
		if value == nil {
			continue
		}
		n, _, isInt, ok := number(value)
		if !ok || !isInt {
			return nil, fmt.Errorf("a slice has %s: it must have integers", typeName(value))
		}
		bounds[i] = &n
	}
	switch v := v.(type) {
	case undefined:
		return v, v.err()
	case string:
		runes := []rune(v)
		if err := r.made(len(v)); err != nil {
			return nil, err
		}
		at, err := indices(len(runes), bounds)
		out := make([]rune, 0, len(at))
		for _, i := range at {
			out = append(out, runes[i])
		}
		return string(out), err
	case *List:
		if err := r.made(8 * len(v.Items)); err != nil {
			return nil, err
		}
		at, err := indices(len(v.Items), bounds)
		out := &List{Items: make([]any, 0, len(at)), tuple: v.tuple}
		for _, i := range at {
			out.Items = append(out.Items, v.Items[i])
		}
		return out, err
	}
	return undefined{fmt.Sprintf("a slice of %s", typeName(v))}, nil
}

// indices lists the positions that Python's start:stop:step selects.
func indices(n int, bounds [3]*int64) ([]int, error) {
	step := int64(1)
	if bounds[2] != nil {
		step = *bounds[2]
	}
	if step == 0 {
		return nil, fmt.Errorf("a slice has step 0")
	}
	low, high := int64(0), int64(n)
	start, stop := low, high
	if step < 0 {
		low, high = -1, int64(n)-1
		start, stop = high, low
	}
	clamp := func(b *int64, otherwise int64) int64 {
		if b == nil {
			return otherwise
		}
		v := *b
		if v < 0 {
			v += int64(n)
		}
		return min(max(v, low), high)
	}
	start, stop = clamp(bounds[0], start), clamp(bounds[1], stop)
	var at []int
	for i := start; step > 0 && i < stop || step < 0 && i > stop; {
		at = append(at, int(i))
		if step > 0 && step > stop-i || step < 0 && step < stop-i {
			break // i+step is past the stop and might overflow
		}
		i += step
	}
	return at, nil
}

func (r *renderer) args(a arguments, s *scope) (args, error) {
	positional, err := r.evalAll(a.positional, s)
	if err != nil {
		return args{}, err
	}
	values, err := r.evalAll(a.values, s)
	return args{positional, a.names, values}, err
}

func (r *renderer) call(x call, s *scope) (any, error) {
	fn, err := r.eval(x.fn, s)
	if err != nil {
		return nil, err
	}
	a, err := r.args(x.args, s)
	if err != nil {
		return nil, err
	}
	switch fn := fn.(type) {
	case function:
		return fn(r, a)
	case *loopState:
		if fn.recurse != nil {
			return fn.recurse(r, a)
		}
	case undefined:
		return nil, fn.err()
	}
	return nil, fmt.Errorf("%s cannot be called", typeName(fn))
}

func (r *renderer) applyFilter(f *filter, v any, s *scope) (any, error) {
	a, err := r.args(f.args, s)
	if err != nil {
		return nil, err
	}
	out, err := filters[f.name](r, v, a)
	if err != nil {
		return nil, errorAt(f.line, fmt.Errorf("filter %s: %w", f.name, err))
	}
	return out, nil
}

func (r *renderer) test(x test, s *scope) (any, error) {
	v, err := r.eval(x.x, s)
	if err != nil {
		return nil, err
	}
	a, err := r.args(x.args, s)
	if err != nil {
		return nil, err
	}
	ok, err := tests[x.name](r, v, a)
	if err != nil {
		return nil, errorAt(x.line, fmt.Errorf("test %s: %w", x.name, err))
	}
	return ok, nil
}
