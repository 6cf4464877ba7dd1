//go:build race

package coordinator

// slowdown is how many fewer histories run under the race detector.
const slowdown = 4
