//go:build race

package store

// less is by how much tests that repeat themselves shorten under the race
// detector, which makes them some ten times slower.
const less = 10
