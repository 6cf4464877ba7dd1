package audit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// Scan calls f for every record of r, in order, until f fails or r ends. It
// returns how many lines were no records: torn by a crash, or foreign.
func Scan(r io.Reader, f func(Record) error) (damaged int, err error) {
	s := scanner{f: f}
	err = s.read(r)
	s.end()
	return s.damaged, err
}

// scanner cuts a stream into lines. What lies behind the last newline waits
// for more.
type scanner struct {
	f       func(Record) error
	partial []byte
	long    bool // the current line is over MaxLine; it is skipped
	damaged int
}

func (s *scanner) read(r io.Reader) error {
	b := bufio.NewReaderSize(r, 64<<10)
	for {
		piece, err := b.ReadSlice('\n')
		if perr := s.add(piece); perr != nil {
			return perr
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func (s *scanner) add(piece []byte) error {
	if !s.long {
		s.partial = append(s.partial, piece...)
		if len(s.partial) > MaxLine+1 {
			s.partial, s.long = s.partial[:0], true
		}
	}
	if !bytes.HasSuffix(piece, []byte("\n")) {
		return nil
	}
	return s.line()
}

func (s *scanner) line() error {
	line := bytes.TrimRight(s.partial, "\r\n")
	s.partial = s.partial[:0]
	if s.long {
		s.long = false
		s.damaged++
		return nil
	}
	if len(line) == 0 {
		return nil
	}
	r, err := Parse(line)
	if err != nil {
		s.damaged++
		return nil
	}
	return s.f(r)
}

// end counts what was cut off. A last line is a record only with its newline:
// without it nobody can tell whether it is whole.
func (s *scanner) end() {
	if s.long || len(s.partial) > 0 {
		s.damaged++
	}
	s.partial, s.long = nil, false
}

// followEvery is the pause between two looks at a file that is followed.
const followEvery = 200 * time.Millisecond

// Follow is Scan on a file that grows, and is rotated, until ctx ends; then err
// is nil. A file that does not exist yet is waited for.
func Follow(ctx context.Context, path string, f func(Record) error) (damaged int, err error) {
	s := scanner{f: f}
	var file *os.File
	defer func() {
		if file != nil {
			file.Close()
		}
	}()
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		if file == nil {
			if file, err = os.Open(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return s.damaged, err
			}
		}
		if err == nil {
			// Looked at before reading: what is written to the old file after
			// its last reading was written before it was moved.
			moved := replaced(file, path)
			if err := s.read(file); err != nil {
				return s.damaged, err
			}
			if moved {
				s.end()
				file.Close()
				file = nil
				continue
			}
		}
		err = nil
		select {
		case <-ctx.Done():
			return s.damaged, nil
		case <-tick.C:
		}
	}
}

// replaced reports whether path is another file than the open one by now.
func replaced(open *os.File, path string) bool {
	now, err := os.Stat(path)
	if err != nil {
		return false // between two files; the next look will tell
	}
	was, err := open.Stat()
	return err == nil && !os.SameFile(was, now)
}
