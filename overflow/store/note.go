package store

import (
	"context"
	"fmt"
)

// Note is what SetNote has left on the device; empty: nothing.
func (s *Store) Note() []byte {
	s.logMu.Lock()
	defer s.logMu.Unlock()
	return []byte(s.super.note)
}

// SetNote leaves up to MaxNote bytes of the caller's on the device, which are durable
// when it returns. It writes the superblock, so it is for what changes now and then.
// After a crash while it runs the note is the one before or this one. A device that
// does not take it within Options.IOTimeout has failed.
func (s *Store) SetNote(note []byte) error {
	if len(note) > MaxNote {
		return fmt.Errorf("store: a note of %d bytes, at most %d fit", len(note), MaxNote)
	}
	s.logMu.Lock()
	s.mu.Lock()
	err := s.failed
	if err == nil && s.closed {
		err = ErrClosed
	}
	s.mu.Unlock()
	if err != nil {
		s.logMu.Unlock()
		return err
	}
	super := s.super
	super.note = string(note)
	super.generation++ // which begins an epoch
	super.head = s.next
	// What was begun must end: a write that comes later than the next one of the same
	// place would bring back what was.
	err = s.install(context.Background(), super)
	if err == nil {
		s.raised = true
	}
	s.logMu.Unlock()
	if err != nil {
		return s.fail(err)
	}
	return nil
}

// fail ends the writing of the log, and tells who wants to know.
func (s *Store) fail(err error) error {
	failed := &FailedError{s.disk.dev.Info().Name, err}
	s.mu.Lock()
	first := s.failed == nil
	if first {
		s.failed = failed
	}
	s.announce()
	closed := s.closed
	s.mu.Unlock()
	if first && !closed && s.opt.OnFail != nil {
		s.opt.OnFail(failed)
	}
	return failed
}
