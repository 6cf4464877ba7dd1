package jinja

import (
	"fmt"
	"strings"
)

// maxCompared bounds the nesting of compared and printed data. Data is shared,
// never copied, so a small template can build values of enormous unfolded
// size; comparing and printing therefore count steps.
const maxCompared = 500

// equal is Python's ==.
func (r *renderer) equal(a, b any) (bool, error) { return r.equalAt(a, b, 0) }

func (r *renderer) equalAt(a, b any, depth int) (bool, error) {
	if err := r.step(); err != nil {
		return false, err
	}
	if depth > maxCompared {
		return false, fmt.Errorf("%w: data nested more than %d deep", ErrLimit, maxCompared)
	}
	ai, af, aInt, aNum := number(a)
	bi, bf, bInt, bNum := number(b)
	if aNum || bNum {
		if aInt && bInt {
			return ai == bi, nil
		}
		return aNum && bNum && af == bf, nil
	}
	switch a := a.(type) {
	case *List:
		b, ok := b.(*List)
		if !ok || a.tuple != b.tuple || len(a.Items) != len(b.Items) {
			return false, nil
		}
		for i := range a.Items {
			if same, err := r.equalAt(a.Items[i], b.Items[i], depth+1); err != nil || !same {
				return false, err
			}
		}
		return true, nil
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false, nil
		}
		for _, k := range a.keys {
			v, ok := b.values[k]
			if !ok {
				return false, nil
			}
			if same, err := r.equalAt(a.values[k], v, depth+1); err != nil || !same {
				return false, err
			}
		}
		return true, nil
	case undefined:
		_, ok := b.(undefined)
		return ok, nil
	case function:
		return false, nil
	}
	if _, ok := b.(function); ok {
		return false, nil
	}
	return a == b, nil
}

// order compares numbers, strings and lists, as Python's < and > do.
func (r *renderer) order(a, b any) (int, error) { return r.orderAt(a, b, 0) }

func (r *renderer) orderAt(a, b any, depth int) (int, error) {
	if as, ok := a.(string); ok {
		if bs, ok := b.(string); ok {
			return strings.Compare(as, bs), nil
		}
	}
	if al, ok := a.(*List); ok && depth < maxCompared {
		if bl, ok := b.(*List); ok && al.tuple == bl.tuple {
			return r.orderLists(al, bl, depth)
		}
	}
	ai, af, aInt, aNum := number(a)
	bi, bf, bInt, bNum := number(b)
	switch {
	case !aNum || !bNum:
		return 0, fmt.Errorf("cannot compare %s with %s", typeName(a), typeName(b))
	case aInt && bInt && ai != bi:
		if ai < bi {
			return -1, nil
		}
		return 1, nil
	case af < bf:
		return -1, nil
	case af > bf:
		return 1, nil
	}
	return 0, nil
}

func (r *renderer) orderLists(a, b *List, depth int) (int, error) {
	for i := range min(len(a.Items), len(b.Items)) {
		same, err := r.equalAt(a.Items[i], b.Items[i], depth+1)
		if err != nil {
			return 0, err
		}
		if !same {
			return r.orderAt(a.Items[i], b.Items[i], depth+1)
		}
	}
	return len(a.Items) - len(b.Items), nil
}
