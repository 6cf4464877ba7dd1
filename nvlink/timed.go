package nvlink

import "time"

// Timed is an Event that knows when the operations before it ran, on the
// stream itself: what a link model learns from. All events of a fabric are
// Timed, or none are.
type Timed interface {
	Event
	// Ran returns when the first copy or call since the stream's previous
	// event began, and when the last one ended. Waits for other events count
	// only between two of them. Both are zero before Done and when there was
	// no copy or call. On a paced link they are the link's times.
	Ran() (began, ended time.Time)
}
