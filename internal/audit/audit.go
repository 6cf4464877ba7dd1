// Package audit keeps an append-only account of who held whose memory, and
// when: grants, returns, reclaims, fences and their confirmations as the
// workers saw them, starts and ends of processes as the supervisor saw them.
//
// # Files
//
// Each process writes NAME.jsonl in the audit directory (mode 0700, files
// 0600): one JSON object (Record) per line, in the order of Seq. A file that
// has reached its limit becomes NAME.1.jsonl, that one NAME.2.jsonl, and so on;
// the oldest is deleted.
//
// # What is kept when
//
// Record never waits: records go through a bounded queue to one goroutine. What
// does not fit, or cannot be written, is counted, and as soon as writing works
// again a record of kind "lost" says how many are missing. A record that was
// written (within milliseconds) survives the end of the process, kill -9
// included. The file is synced to the disk every second while something is
// written, when it is rotated, and at the end: a power failure may take the
// last second.
//
// # Torn lines
//
// A line that a crash has cut off is closed with a newline when the file is
// opened again, so that it damages no other. Readers skip lines that are not
// records, and count them.
package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// The kinds of records. Those of units are the agent's (agent.Kind).
const (
	KindBegin = "begin" // the log was opened
	KindEnd   = "end"   // the log was closed in good order
	KindLost  = "lost"  // N records are missing here
	KindStart = "start" // a process was started, or joined
	KindReady = "ready" // a process serves
	KindKill  = "kill"  // a process is ended since it keeps borrowed memory
	KindExit  = "exit"  // a process has ended
)

// MaxLine bounds a line; records with more units are split.
const MaxLine = 1 << 20

// maxUnits is how many units fit a line whatever their epochs are.
const maxUnits = 16 << 10

// version is the value of Record.V.
const version = 1

// Record is one line.
type Record struct {
	V    int       `json:"v"`
	Seq  uint64    `json:"seq"` // rises by one from 1 within a process (Log)
	Time time.Time `json:"time"`
	By   string    `json:"by"`  // the process that writes: a model, or "supervisor"
	PID  int       `json:"pid"` // of the writer
	Kind string    `json:"kind"`
	// Peer is whom it is about: the borrower, or the process that started.
	Peer    string `json:"peer,omitempty"`
	PeerPID int    `json:"peer_pid,omitempty"`
	// Units are pairs of a unit and the epoch under which its borrower holds
	// or held it; of a confirmation, the epoch of the fence, which is one more.
	Units  [][2]uint64 `json:"units,omitempty"`
	N      int         `json:"n,omitempty"` // a number: units asked back, records lost
	Reason string      `json:"reason,omitempty"`
}

// ErrNotRecord says that a line is no record.
var ErrNotRecord = errors.New("not an audit record")

// Parse reads one line, without its newline.
func Parse(line []byte) (Record, error) {
	var r Record
	if len(line) > MaxLine {
		return r, fmt.Errorf("%d bytes, at most %d: %w", len(line), MaxLine, ErrNotRecord)
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrNotRecord, err)
	}
	if r.V != version || r.Kind == "" || r.Seq == 0 {
		return Record{}, fmt.Errorf("version %d, kind %q, number %d: %w", r.V, r.Kind, r.Seq, ErrNotRecord)
	}
	return r, nil
}
