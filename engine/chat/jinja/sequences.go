package jinja

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// attributePath follows "a.b.0" from v, as the attribute arguments of
// filters do.
func attributePath(v, path any) (any, error) {
	if i, ok := path.(int64); ok {
		return item(v, i)
	}
	s, ok := path.(string)
	if !ok {
		return nil, fmt.Errorf("the attribute is %s: it must be a string or an integer", typeName(path))
	}
	for _, part := range strings.Split(s, ".") {
		var key any = part
		if n, err := strconv.ParseInt(part, 10, 64); err == nil {
			key = n
		}
		var err error
		if v, err = item(v, key); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// sortKey returns what a filter compares: an attribute, with strings folded
// unless caseSensitive.
func sortKey(v, attr any, caseSensitive bool) (any, error) {
	if attr != nil {
		var err error
		if v, err = attributePath(v, attr); err != nil {
			return nil, err
		}
	}
	return fold(v, caseSensitive), nil
}

// fold lowers strings unless caseSensitive.
func fold(v any, caseSensitive bool) any {
	if s, ok := v.(string); ok && !caseSensitive {
		return strings.ToLower(s)
	}
	return v
}

// sorted returns a stably sorted copy.
func (r *renderer) sorted(items []any, key func(any) any, caseSensitive, reverse bool) ([]any, error) {
	if err := r.made(8 * len(items)); err != nil {
		return nil, err
	}
	out := slices.Clone(items)
	var failed error
	slices.SortStableFunc(out, func(a, b any) int {
		c, err := r.order(fold(key(a), caseSensitive), fold(key(b), caseSensitive))
		if err == nil {
			err = r.step()
		}
		if failed == nil {
			failed = err
		}
		if reverse {
			return -c
		}
		return c
	})
	return out, failed
}

func sortFilter(r *renderer, v any, a args) (any, error) {
	var reverse, caseSensitive, attr any = false, false, nil
	if err := a.take([]string{"reverse", "case_sensitive", "attribute"}, &reverse, &caseSensitive, &attr); err != nil {
		return nil, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	var failed error
	out, err := r.sorted(items, func(v any) any {
		k, err := sortKey(v, attr, true)
		if err != nil && failed == nil {
			failed = err
		}
		return k
	}, truthy(caseSensitive), truthy(reverse))
	if err == nil {
		err = failed
	}
	return &List{Items: out}, err
}

func dictSort(r *renderer, v any, a args) (any, error) {
	var caseSensitive, by, reverse any = false, "key", false
	if err := a.take([]string{"case_sensitive", "by", "reverse"}, &caseSensitive, &by, &reverse); err != nil {
		return nil, err
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, fmt.Errorf("%s has no items", typeName(v))
	}
	pairs, err := r.pairs(d)
	if err != nil {
		return nil, err
	}
	at := slices.Index([]string{"key", "value"}, fmt.Sprint(by))
	if at < 0 {
		return nil, fmt.Errorf("by must be key or value")
	}
	out, err := r.sorted(pairs.Items, func(v any) any { return v.(*List).Items[at] }, truthy(caseSensitive), truthy(reverse))
	return &List{Items: out}, err
}

func uniqueFilter(r *renderer, v any, a args) (any, error) {
	var caseSensitive, attr any = false, nil
	if err := a.take([]string{"case_sensitive", "attribute"}, &caseSensitive, &attr); err != nil {
		return nil, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	seen, out := map[any]bool{}, &List{}
	for _, v := range items {
		k, err := sortKey(v, attr, truthy(caseSensitive))
		if err != nil {
			return nil, err
		}
		if !hashable(k) {
			return nil, fmt.Errorf("cannot compare %s", typeName(k))
		}
		if k = dictKey(k); !seen[k] {
			seen[k] = true
			out.Items = append(out.Items, v)
		}
	}
	return out, r.made(8 * len(items))
}

// extremeFilter is max (sign 1) or min (sign -1).
func extremeFilter(sign int) filterFunc {
	return func(r *renderer, v any, a args) (any, error) {
		var caseSensitive, attr any = false, nil
		if err := a.take([]string{"case_sensitive", "attribute"}, &caseSensitive, &attr); err != nil {
			return nil, err
		}
		items, err := r.iterate(v)
		if err != nil || len(items) == 0 {
			return undefined{"the extreme of an empty sequence"}, err
		}
		best := items[0]
		for _, v := range items[1:] {
			k, err := sortKey(v, attr, truthy(caseSensitive))
			if err != nil {
				return nil, err
			}
			old, err := sortKey(best, attr, truthy(caseSensitive))
			if err != nil {
				return nil, err
			}
			c, err := r.order(k, old)
			if err != nil {
				return nil, err
			}
			if c*sign > 0 {
				best = v
			}
		}
		return best, nil
	}
}

func sumFilter(r *renderer, v any, a args) (any, error) {
	var attr, start any = nil, int64(0)
	if err := a.take([]string{"attribute", "start"}, &attr, &start); err != nil {
		return nil, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	for _, v := range items {
		if attr != nil {
			if v, err = attributePath(v, attr); err != nil {
				return nil, err
			}
		}
		if start, err = r.arithmetic("+", start, v); err != nil {
			return nil, err
		}
	}
	return start, nil
}

// mapFilter takes an attribute of each item or applies a filter to it.
func mapFilter(r *renderer, v any, a args) (any, error) {
	items, err := r.iterate(v)
	if err == nil {
		err = r.made(8 * len(items))
	}
	if err != nil {
		return nil, err
	}
	each, err := r.mapper(a)
	if err != nil {
		return nil, err
	}
	out := &List{Items: make([]any, len(items))}
	for i, item := range items {
		if err := r.step(); err != nil {
			return nil, err
		}
		if out.Items[i], err = each(item); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (r *renderer) mapper(a args) (func(any) (any, error), error) {
	if len(a.positional) == 0 {
		var attr, otherwise any
		if err := a.take([]string{"attribute", "default"}, &attr, &otherwise); err != nil {
			return nil, err
		}
		withDefault := slices.Contains(a.names, "default")
		return func(v any) (any, error) {
			v, err := attributePath(v, attr)
			if _, missing := v.(undefined); missing && withDefault {
				return otherwise, nil
			}
			return v, err
		}, nil
	}
	name, _ := a.positional[0].(string)
	f, ok := r.filters[name]
	if !ok {
		return nil, fmt.Errorf("filter %q is not supported", name)
	}
	rest := args{a.positional[1:], a.names, a.values}
	return func(v any) (any, error) { return f(r, v, rest) }, nil
}

// selectFilter keeps the items for which a test gives want; without a test,
// truth decides. With attr the first argument is the attribute to test.
func selectFilter(want, attr bool) filterFunc {
	return func(r *renderer, v any, a args) (any, error) {
		items, err := r.iterate(v)
		if err == nil {
			err = r.made(8 * len(items))
		}
		if err != nil {
			return nil, err
		}
		rest := a
		var path any
		if attr {
			if len(a.positional) == 0 {
				return nil, fmt.Errorf("needs an attribute")
			}
			path, rest.positional = a.positional[0], a.positional[1:]
		}
		check := func(_ *renderer, v any, _ args) (bool, error) { return truthy(v), nil }
		if len(rest.positional) > 0 {
			name, _ := rest.positional[0].(string)
			t, ok := tests[name]
			if !ok {
				return nil, fmt.Errorf("test %q is not supported", name)
			}
			check, rest.positional = t, rest.positional[1:]
		}
		out := &List{}
		for _, item := range items {
			subject := item
			if attr {
				if subject, err = attributePath(item, path); err != nil {
					return nil, err
				}
			}
			ok, err := check(r, subject, rest)
			if err == nil {
				err = r.step()
			}
			if err != nil {
				return nil, err
			}
			if ok == want {
				out.Items = append(out.Items, item)
			}
		}
		return out, nil
	}
}
