package jinja

import "fmt"

// testFunc is a test: what follows "is".
type testFunc func(r *renderer, v any, a args) (bool, error)

// tests by name.
var tests = map[string]testFunc{
	"!=":          comparison("!="),
	"<":           comparison("<"),
	"<=":          comparison("<="),
	"==":          comparison("=="),
	">":           comparison(">"),
	">=":          comparison(">="),
	"boolean":     isType(func(v any) bool { _, ok := v.(bool); return ok }),
	"callable":    isType(isCallable),
	"defined":     isType(func(v any) bool { _, ok := v.(undefined); return !ok }),
	"divisibleby": divisible,
	"eq":          comparison("=="),
	"equalto":     comparison("=="),
	"even":        parity(0),
	"false":       isType(func(v any) bool { return v == false }),
	"float":       isType(func(v any) bool { _, ok := v.(float64); return ok }),
	"ge":          comparison(">="),
	"gt":          comparison(">"),
	"greaterthan": comparison(">"),
	"in":          comparison("in"),
	"integer":     isType(isInteger),
	"iterable":    isType(isIterable),
	"le":          comparison("<="),
	"lower":       casing(lower, upper),
	"lt":          comparison("<"),
	"lessthan":    comparison("<"),
	"mapping":     isType(func(v any) bool { _, ok := v.(*Dict); return ok }),
	"ne":          comparison("!="),
	"none":        isType(func(v any) bool { return v == nil }),
	"number":      isType(func(v any) bool { _, _, _, ok := number(v); return ok || isInteger(v) }),
	"odd":         parity(1),
	"sameas":      sameAs,
	"sequence":    isType(func(v any) bool { _, ok := v.(undefined); return ok || isIterable(v) }),
	"string":      isType(func(v any) bool { _, ok := v.(string); return ok }),
	"true":        isType(func(v any) bool { return v == true }),
	"undefined":   isType(func(v any) bool { _, ok := v.(undefined); return ok }),
	"upper":       casing(upper, lower),
}

func isType(fn func(v any) bool) testFunc {
	return func(_ *renderer, v any, a args) (bool, error) { return fn(v), a.take(nil) }
}

func isCallable(v any) bool {
	switch v := v.(type) {
	case function:
		return true
	case *loopState:
		return v.recurse != nil
	}
	return false
}

func isInteger(v any) bool {
	switch v.(type) {
	case int64, bigInt:
		return true
	}
	return false
}

func isIterable(v any) bool {
	switch v.(type) {
	case string, *List, *Dict, undefined:
		return true
	}
	return false
}

// one returns the single argument of a test.
func one(a args) (any, error) {
	if len(a.positional) != 1 || len(a.names) > 0 {
		return nil, fmt.Errorf("needs one argument")
	}
	return a.positional[0], nil
}

func comparison(op string) testFunc {
	return func(r *renderer, v any, a args) (bool, error) {
		other, err := one(a)
		if err != nil {
			return false, err
		}
		return r.holds(op, v, other)
	}
}

func parity(want int64) testFunc {
	return func(_ *renderer, v any, _ args) (bool, error) {
		i, _, isInt, ok := number(v)
		if !ok || !isInt {
			return false, fmt.Errorf("%s is neither odd nor even", typeName(v))
		}
		return i&1 == want, nil
	}
}

func divisible(_ *renderer, v any, a args) (bool, error) {
	by, err := one(a)
	if err != nil {
		return false, err
	}
	x, _, ok1, _ := number(v)
	y, _, ok2, _ := number(by)
	if !ok1 || !ok2 || y == 0 {
		return false, fmt.Errorf("cannot divide %s by %s", typeName(v), typeName(by))
	}
	return x%y == 0, nil
}

// casing is Python's islower or isupper.
func casing(to, from func(string) string) testFunc {
	return func(r *renderer, v any, _ args) (bool, error) {
		s, err := r.text(v)
		return s == to(s) && s != from(s), err
	}
}

func sameAs(r *renderer, v any, a args) (bool, error) {
	other, err := one(a)
	if err != nil {
		return false, err
	}
	if typeName(v) != typeName(other) {
		return false, nil
	}
	return r.equal(v, other)
}
