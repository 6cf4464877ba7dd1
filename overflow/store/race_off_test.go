//go:build !race

package store

const less = 1
