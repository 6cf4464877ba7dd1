// Package wire defines every message that kvlend's processes exchange, and
// encodes and decodes them. It is a pure package: no I/O, no state.
//
// # Layout
//
//	byte 0    version (1)
//	byte 1    type
//	byte 2..  one CBOR map (RFC 8949) with small integer keys, one per field
//
// The encoding is deterministic: equal messages have equal bytes. A nil slice
// is null, an empty one an empty array.
//
// # What Parse refuses
//
// Another version, an unknown type, an unknown or repeated key, bytes after
// the map, indefinite lengths, tags, invalid UTF-8, NaN and infinities, more
// than MaxMessage bytes, and every value that Validate refuses. Unknown keys
// are refused rather than ignored because both ends of a link run the same
// release: a new field needs a new version, and a key that we do not know is a
// sign of damage. A field that is missing has its zero value.
package wire

import "time"

// Version is the first byte of every message.
const Version = 1

// MaxMessage bounds an encoded message in bytes.
const MaxMessage = 16 << 20

// Message is implemented by pointers to all message types.
type Message interface {
	// Type is the second byte on the wire.
	Type() Type
	// Validate reports the first field that is out of bounds, by name, with
	// its value and the accepted range. Append and Parse call it.
	Validate() error
}

// Type is the second byte of every message.
type Type uint8

// Hello opens a link in both directions.
type Hello struct {
	Model       string `cbor:"1,keyasint"`
	Role        string `cbor:"2,keyasint"` // "gateway", "master", "worker", "supervisor"
	Incarnation uint64 `cbor:"3,keyasint"` // random per process start
	ConfigHash  string `cbor:"4,keyasint"` // blake3 of the resolved config: both ends must agree
	UnitBytes   int64  `cbor:"5,keyasint"` // of the lender's units; 0 where none
	Units       int    `cbor:"6,keyasint"`
	// Peer is the incarnation of the receiver as the sender knows it; 0 asks
	// the receiver to say Hello too. Sessions fill it in.
	Peer uint64 `cbor:"7,keyasint"`
	// PID is the sender's process; 0 where nobody needs to know. Gone names
	// processes by it.
	PID int `cbor:"8,keyasint"`
}

// Frame carries the messages of a session: one frame of the transport holds a
// Hello, a Bye or a Frame. An empty Frame is a heartbeat or an acknowledgement.
type Frame struct {
	From     uint64   `cbor:"1,keyasint"` // incarnation of the sender
	To       uint64   `cbor:"2,keyasint"` // incarnation of the receiver
	Ack      uint64   `cbor:"3,keyasint"` // all messages up to this number were delivered
	Got      uint64   `cbor:"4,keyasint"` // all up to this number were received; at least Ack
	First    uint64   `cbor:"5,keyasint"` // number of Messages[0]; numbers start at 1
	Messages [][]byte `cbor:"6,keyasint"` // each encoded as by Append
}

// Borrow asks a worker for units. Repeating it with the same ID has no further effect.
type Borrow struct {
	ID   uint64 `cbor:"1,keyasint"`
	Want int    `cbor:"2,keyasint"` // units
	Min  int    `cbor:"3,keyasint"` // with fewer the borrower cannot go on; 0: it can, and any number is of use
	// Keep: the units are for blocks that nobody uses at the moment, so nobody
	// is to give anything up for them.
	Keep bool `cbor:"4,keyasint,omitempty"`
}

// UnitEpoch is a unit and the epoch under which it was granted.
type UnitEpoch struct {
	Unit  uint32 `cbor:"1,keyasint"`
	Epoch uint64 `cbor:"2,keyasint"`
}

// Grant answers Borrow.
type Grant struct {
	ID      uint64        `cbor:"1,keyasint"` // of the Borrow
	Lease   uint64        `cbor:"2,keyasint"`
	Units   []UnitEpoch   `cbor:"3,keyasint"`
	TTL     time.Duration `cbor:"4,keyasint"` // from receipt of the Borrow; renew before
	Version uint64        `cbor:"5,keyasint"` // of the lender's table after this change
}

// Deny answers Borrow.
type Deny struct {
	ID         uint64        `cbor:"1,keyasint"`
	Reason     string        `cbor:"2,keyasint"`
	Available  int           `cbor:"3,keyasint"`
	RetryAfter time.Duration `cbor:"4,keyasint"`
	Version    uint64        `cbor:"5,keyasint"`
}

// Return gives units back of the borrower's own accord.
type Return struct {
	ID    uint64      `cbor:"1,keyasint"`
	Units []UnitEpoch `cbor:"2,keyasint"`
}

// Reclaim asks a borrower for Want units by Deadline from now; the borrower
// chooses which.
type Reclaim struct {
	ID       uint64        `cbor:"1,keyasint"`
	Want     int           `cbor:"2,keyasint"`
	Deadline time.Duration `cbor:"3,keyasint"`
	Version  uint64        `cbor:"4,keyasint"`
}

// Released answers Return (from the lender, as its acknowledgement) and
// Reclaim (from the borrower, possibly in several parts).
type Released struct {
	ID      uint64      `cbor:"1,keyasint"` // of the Return or Reclaim
	Units   []UnitEpoch `cbor:"2,keyasint"`
	Done    bool        `cbor:"3,keyasint"` // last part
	Version uint64      `cbor:"4,keyasint"`
	// Part numbers the parts that answer a Reclaim; the lender acknowledges
	// each with a Released of the same ID and Part, whose Units are those
	// that it took. 0 in the acknowledgement of a Return.
	Part uint64 `cbor:"5,keyasint"`
}

// Renew extends all leases of the sender; the answer is a Renewed.
type Renew struct {
	ID uint64 `cbor:"1,keyasint"`
}

// Renewed answers Renew.
type Renewed struct {
	ID      uint64        `cbor:"1,keyasint"`
	TTL     time.Duration `cbor:"2,keyasint"`
	Version uint64        `cbor:"3,keyasint"`
}

// Sync carries the lender's whole view of one borrower's units. With Ask set
// it is the borrower's question, sent after a gap in versions; it renews the
// borrower's leases like a Renew.
type Sync struct {
	Ask     bool          `cbor:"1,keyasint"`
	Version uint64        `cbor:"2,keyasint"`
	Units   []UnitEpoch   `cbor:"3,keyasint"` // lent to the receiver; with Ask and Version 0, known to the sender
	ID      uint64        `cbor:"4,keyasint"` // of the question; 0: unasked, after units were fenced
	TTL     time.Duration `cbor:"5,keyasint"` // from receipt of the question
	// Fenced were taken from the receiver, under its epochs; it Returns them
	// as soon as it no longer writes to them.
	Fenced []UnitEpoch `cbor:"6,keyasint"`
}

// Bye ends a link in good order: a borrower says it after returning everything.
type Bye struct {
	Reason string `cbor:"1,keyasint"`
}

// The messages between the gateway and a model process.

// Submit starts a generation.
type Submit struct {
	ID        string   `cbor:"1,keyasint"`
	Tokens    []int32  `cbor:"2,keyasint"`
	MaxTokens int      `cbor:"3,keyasint"`
	StopIDs   []int32  `cbor:"4,keyasint"`
	IgnoreEOS bool     `cbor:"5,keyasint"`
	Sampling  Sampling `cbor:"6,keyasint"`
	// Priority orders the queue: lower first.
	Priority int `cbor:"7,keyasint,omitempty"`
	// Tenant is whose request it is, for fair shares; empty: nobody's in particular.
	Tenant string `cbor:"8,keyasint,omitempty"`
	// Salt keeps the tenant's cached prefixes apart; at most MaxSalt bytes.
	Salt []byte `cbor:"9,keyasint"`
	// UpTo: MaxTokens is all the room that the model has, not what was asked for.
	// Where it has less at present, the answer may be shorter.
	UpTo bool `cbor:"10,keyasint,omitempty"`
}

// Sampling mirrors sampling.Params on the wire.
type Sampling struct {
	Temperature       float32           `cbor:"1,keyasint"`
	TopK              int               `cbor:"2,keyasint"`
	TopP              float32           `cbor:"3,keyasint"`
	MinP              float32           `cbor:"4,keyasint"`
	RepetitionPenalty float32           `cbor:"5,keyasint"`
	PresencePenalty   float32           `cbor:"6,keyasint"`
	FrequencyPenalty  float32           `cbor:"7,keyasint"`
	Seed              uint64            `cbor:"8,keyasint"`
	Logprobs          int               `cbor:"9,keyasint"`
	LogitBias         map[int32]float32 `cbor:"10,keyasint"`
}

// Cancel ends a generation wherever it is.
type Cancel struct {
	ID string `cbor:"1,keyasint"`
}

// TokenLogprob is one alternative of a token.
type TokenLogprob struct {
	ID      int32   `cbor:"1,keyasint"`
	Logprob float32 `cbor:"2,keyasint"`
}

// Chunk carries new tokens of a generation. First counts the tokens before
// this chunk, so that a lost or repeated chunk is noticed.
type Chunk struct {
	ID       string           `cbor:"1,keyasint"`
	First    int              `cbor:"2,keyasint"`
	Tokens   []int32          `cbor:"3,keyasint"`
	Logprobs []float32        `cbor:"4,keyasint"`
	Top      [][]TokenLogprob `cbor:"5,keyasint"`
}

// Finished ends a generation in good order. Tokens is the total number of
// tokens sent; a receiver that saw fewer must report an error, not success.
type Finished struct {
	ID         string `cbor:"1,keyasint"`
	Reason     string `cbor:"2,keyasint"` // "stop", "length", "cancelled"
	Tokens     int    `cbor:"3,keyasint"`
	Prompt     int    `cbor:"4,keyasint"`
	Cached     int    `cbor:"5,keyasint"`
	LogitsHash uint64 `cbor:"6,keyasint"`
	// Receipt.
	Preemptions int     `cbor:"7,keyasint"`
	Borrowed    int     `cbor:"8,keyasint"` // most borrowed blocks held at once
	QueueMS     float64 `cbor:"9,keyasint"`
	PrefillMS   float64 `cbor:"10,keyasint"`
	TotalMS     float64 `cbor:"11,keyasint"`
	Receipt     Receipt `cbor:"12,keyasint"`
}

// Receipt says where a prompt's tokens came from (scheduler.Receipt).
type Receipt struct {
	Local       int     `cbor:"1,keyasint,omitempty"` // tokens, as all up to Declined
	Borrowed    int     `cbor:"2,keyasint,omitempty"`
	Host        int     `cbor:"3,keyasint,omitempty"`
	Pool        int     `cbor:"4,keyasint,omitempty"`
	Declined    int     `cbor:"5,keyasint,omitempty"` // cached, and computed all the same
	PredictedMS float64 `cbor:"6,keyasint,omitempty"`
	RecomputeMS float64 `cbor:"7,keyasint,omitempty"`
}

// Failed ends a generation with an error.
type Failed struct {
	ID      string `cbor:"1,keyasint"`
	Code    string `cbor:"2,keyasint"` // an OpenAI error code, e.g. "context_length_exceeded", "overloaded", "internal_error"
	Message string `cbor:"3,keyasint"`
	// RetryAfter is set where trying later makes sense (HTTP 429, 503).
	RetryAfter time.Duration `cbor:"4,keyasint"`
}

// StatusAsk asks a model process for its Status.
type StatusAsk struct {
	ID uint64 `cbor:"1,keyasint"`
}

// Status is what kvlend status shows of one model process.
type Status struct {
	ID        uint64      `cbor:"1,keyasint"`
	Model     ModelStatus `cbor:"2,keyasint"`
	Running   int         `cbor:"3,keyasint"`
	Waiting   int         `cbor:"4,keyasint"`
	Finished  uint64      `cbor:"5,keyasint"`
	FailedN   uint64      `cbor:"6,keyasint"`
	Preempted uint64      `cbor:"7,keyasint"`
	Tokens    uint64      `cbor:"8,keyasint"` // generated since start
	Blocks    BlockStatus `cbor:"9,keyasint"`
	Units     []UnitCount `cbor:"10,keyasint"`
	Loaded    int64       `cbor:"11,keyasint"` // bytes loaded from borrowed memory since start
	Stored    int64       `cbor:"12,keyasint"`
	Kernels   string      `cbor:"13,keyasint"`
	Degraded  []string    `cbor:"14,keyasint"`

	Links    []LinkStatus    `cbor:"30,keyasint"`
	Lending  []LendingStatus `cbor:"31,keyasint"`
	Moved    []Count         `cbor:"32,keyasint"` // evacuated blocks by destination
	Stale    uint64          `cbor:"33,keyasint"` // borrowed blocks whose epoch had passed when they were loaded
	Evicted  uint64          `cbor:"34,keyasint"` // sequences that lost their place and are computed again
	Corrupt  uint64          `cbor:"35,keyasint"` // borrowed blocks that did not match their checksum
	Restarts int             `cbor:"36,keyasint"` // times that the process was started again
	Draining bool            `cbor:"37,keyasint"`
	// AuditLost counts audit records that could not be kept.
	AuditLost uint64 `cbor:"38,keyasint"`
	// Interference is a worker's; empty of others.
	Interference Interference `cbor:"39,keyasint"`
	// LinkBudget is what a master moves to and from one lender's arena at most,
	// in bytes per second; 0: no limit.
	LinkBudget int64 `cbor:"40,keyasint"`
	// SatOut counts steps that sequences sat out because their KV is streamed,
	// RatherWaited how often a request stayed in the queue because streaming
	// would have cost more than waiting.
	SatOut       uint64 `cbor:"41,keyasint"`
	RatherWaited uint64 `cbor:"42,keyasint"`
	// Disks are a master's part of the overflow pool.
	Disks []DiskStatus `cbor:"43,keyasint"`
}

// ModelStatus is the fixed part of a Status.
type ModelStatus struct {
	Name           string `cbor:"1,keyasint"`
	Role           string `cbor:"2,keyasint"`
	PID            int    `cbor:"3,keyasint"`
	Arena          int64  `cbor:"4,keyasint"` // bytes
	MaxTokens      int    `cbor:"5,keyasint"` // longest sequence it can serve
	MaxTokensAlone int    `cbor:"6,keyasint"` // without lending
	NLSC           int    `cbor:"7,keyasint"`
	NRC            int    `cbor:"8,keyasint"`
	// UsableTokens is the longest sequence at present: less than MaxTokens while
	// devices of the overflow pool are out of use.
	UsableTokens int `cbor:"9,keyasint,omitempty"`
}

// BlockStatus counts full blocks: used by requests, kept by prefix for later
// ones, and free.
type BlockStatus struct {
	LocalUsed    int `cbor:"1,keyasint"`
	LocalFree    int `cbor:"2,keyasint"`
	BorrowedUsed int `cbor:"3,keyasint"`
	BorrowedFree int `cbor:"4,keyasint"`
	LocalKept    int `cbor:"5,keyasint,omitempty"`
	BorrowedKept int `cbor:"6,keyasint,omitempty"`
	HostKept     int `cbor:"7,keyasint,omitempty"`
	HostFree     int `cbor:"8,keyasint,omitempty"`
	PoolKept     int `cbor:"9,keyasint,omitempty"`
	PoolFree     int `cbor:"10,keyasint,omitempty"`
	HostUsed     int `cbor:"11,keyasint,omitempty"`
	PoolUsed     int `cbor:"12,keyasint,omitempty"`
}

// UnitCount counts units per owner (a worker's view) or per lender (a master's view).
type UnitCount struct {
	Peer       string `cbor:"1,keyasint"`
	Local      int    `cbor:"2,keyasint"`
	Lent       int    `cbor:"3,keyasint"`
	Reclaiming int    `cbor:"4,keyasint"`
	Fenced     int    `cbor:"5,keyasint"`
	Version    uint64 `cbor:"6,keyasint"`
}
