package calibrate

import "time"

// Of a copy: so much memory that no cache holds it, and how often.
const (
	copyBytes  = 64 << 20
	copyRounds = 9
)

// Copies is how many bytes one core copies in a second: the median of a few rounds.
func Copies() float64 {
	src, dst := make([]byte, copyBytes), make([]byte, copyBytes)
	for i := range src {
		src[i] = byte(i)
	}
	copy(dst, src)
	took := make([]time.Duration, copyRounds)
	for i := range took {
		began := time.Now()
		copy(dst, src)
		took[i] = max(time.Since(began), 1)
	}
	return copyBytes / median(took).Seconds()
}
