package report

import (
	"fmt"
	"math"
	"strconv"
)

// three prints three digits that mean something, without an exponent.
func three(v float64) string {
	a, decimals := math.Abs(v), 0
	if a == 0 {
		return "0"
	}
	for limit := 99.95; decimals < 3 && a < limit; limit /= 10 {
		decimals++
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// metric prints a number with the prefix of a power of 1000.
func metric(v float64) string {
	for _, p := range []struct {
		least float64
		name  string
	}{{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= p.least*0.9995 {
			return three(v/p.least) + " " + p.name
		}
	}
	return three(v) + " "
}

// size3 prints bytes; GB are 10^9.
func size3(v float64) string {
	if v == 0 {
		return "0"
	}
	return metric(v) + "B"
}

// duration prints seconds in their own unit.
func duration(s float64) string {
	switch {
	case s == 0:
		return "0"
	case s < 0.9995e-3:
		return three(s*1e6) + " us"
	case s < 0.9995:
		return three(s*1e3) + " ms"
	}
	return three(s) + " s"
}

// share prints a part of a whole.
func share(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 0.0005:
		return "<0.1 %"
	}
	return strconv.FormatFloat(100*v, 'f', 1, 64) + " %"
}

// ratio prints how many times as much as the first system's something is, if it
// can be said.
func ratio(v, first float64) string {
	if first <= 0 || v <= 0 {
		return ""
	}
	return "x" + three(v/first)
}

// count prints a whole number, from 10,000 on with commas.
func count[T int | int64 | uint64](n T) string {
	s := fmt.Sprint(n)
	if len(s) < 5 {
		return s
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
