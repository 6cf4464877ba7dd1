package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a Log. Zero values mean the defaults.
type Options struct {
	// MaxBytes is the size at which a file is rotated; default 64 MiB.
	MaxBytes int64
	// Keep is how many rotated files are kept beside the current one; default 8.
	Keep int
	// Queue is how many records may wait to be written; default 4096.
	Queue int
	// SyncEvery is the longest that written records stay out of the disk's
	// hands; default 1s.
	SyncEvery time.Duration
	// Failed is told when writing fails, once until it works again. It runs on
	// the log's goroutine; nil: nobody is told.
	Failed func(error)
	// Now is the clock; default time.Now.
	Now func() time.Time
}

func (o *Options) defaults() {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 64 << 20
	}
	if o.Keep <= 0 {
		o.Keep = 8
	}
	if o.Queue <= 0 {
		o.Queue = 4096
	}
	if o.SyncEvery <= 0 {
		o.SyncEvery = time.Second
	}
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Log is one process's account. A nil Log records nothing.
type Log struct {
	opt  Options
	name string
	path string

	// mu orders Record against Close.
	mu     sync.RWMutex
	closed bool
	queue  chan Record
	done   chan struct{}
	lost   atomic.Uint64 // in all

	// The fields below belong to the writing goroutine.
	file   *os.File
	size   int64
	seq    uint64
	told   uint64 // losses that were recorded
	dirty  bool   // written since the last sync
	failed bool
}

// Path is the current file of a process in an audit directory.
func Path(dir, name string) string { return filepath.Join(dir, name+".jsonl") }

// Open opens the account of the process called name, and makes the directory
// if need be.
func Open(dir, name string, opt Options) (*Log, error) {
	opt.defaults()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("audit.dir: %w", err)
	}
	l := &Log{opt: opt, name: name, path: Path(dir, name), queue: make(chan Record, opt.Queue), done: make(chan struct{})}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("audit.dir: %w", err)
	}
	go l.run()
	l.Record(Record{Kind: KindBegin})
	return l, nil
}

// Record queues a record; V, Seq, Time, By and PID are filled in. It never
// waits and is safe for concurrent use; after Close it does nothing.
func (l *Log) Record(r Record) {
	if l == nil {
		return
	}
	r.Time = l.opt.Now()
	for len(r.Units) > maxUnits {
		part := r
		part.Units, r.Units = r.Units[:maxUnits:maxUnits], r.Units[maxUnits:]
		l.push(part)
	}
	l.push(r)
}

func (l *Log) push(r Record) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return
	}
	select {
	case l.queue <- r:
	default:
		l.lost.Add(1)
	}
}

// Lost is how many records could not be kept so far.
func (l *Log) Lost() uint64 {
	if l == nil {
		return 0
	}
	return l.lost.Load()
}

// Close writes what is queued and closes the file.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	close(l.queue)
	l.mu.Unlock()
	<-l.done
	if l.file == nil {
		return nil
	}
	return errors.Join(l.file.Sync(), l.file.Close())
}

// open opens the current file for appending, and closes a line that a crash
// has cut off.
func (l *Log) open() error {
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err == nil && st.Size() > 0 {
		last := make([]byte, 1)
		if _, err = f.ReadAt(last, st.Size()-1); err == nil && last[0] != '\n' {
			_, err = f.Write([]byte("\n"))
		}
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.file, l.size = f, st.Size()
	return nil
}

// run writes until the queue is closed and empty.
func (l *Log) run() {
	defer close(l.done)
	sync := time.NewTicker(l.opt.SyncEvery)
	defer sync.Stop()
	for {
		select {
		case r, ok := <-l.queue:
			if !ok {
				l.write(Record{Kind: KindEnd, Time: l.opt.Now()})
				return
			}
			l.write(r)
		case <-sync.C:
			if l.dirty && l.file != nil {
				l.note(l.file.Sync())
				l.dirty = false
			}
		}
	}
}

// write appends one record, and before it what was lost.
func (l *Log) write(r Record) {
	if n := l.lost.Load(); n > l.told {
		if l.append(Record{Kind: KindLost, Time: l.opt.Now(), N: int(n - l.told)}) == nil {
			l.told = n
		}
	}
	if err := l.append(r); err != nil {
		l.lost.Add(1)
	}
}

func (l *Log) append(r Record) error {
	err := l.tryAppend(r)
	l.note(err)
	return err
}

func (l *Log) tryAppend(r Record) error {
	if l.size >= l.opt.MaxBytes {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	if l.file == nil {
		if err := l.open(); err != nil {
			return err
		}
	}
	r.V, r.Seq, r.By, r.PID = version, l.seq+1, l.name, os.Getpid()
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	n, err := l.file.Write(append(line, '\n'))
	l.size += int64(n)
	if err != nil {
		if n > 0 { // half a line: open closes it
			err = errors.Join(err, l.file.Close())
			l.file = nil
		}
		return err
	}
	l.seq++
	l.dirty = true
	return nil
}

// rotate makes the current file the newest of the old ones.
func (l *Log) rotate() error {
	if l.file != nil {
		err := errors.Join(l.file.Sync(), l.file.Close())
		l.file = nil
		if err != nil {
			return err
		}
	}
	old := func(i int) string { return fmt.Sprintf("%s.%d.jsonl", l.path[:len(l.path)-len(".jsonl")], i) }
	if err := os.Remove(old(l.opt.Keep)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for i := l.opt.Keep - 1; i >= 1; i-- {
		if err := os.Rename(old(i), old(i+1)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(l.path, old(1)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return l.open()
}

// note tells of the first failure in a row.
func (l *Log) note(err error) {
	if err != nil && !l.failed {
		l.opt.Failed(err)
	}
	l.failed = err != nil
}
