// Package coordinator is the lending protocol: who may use which elastic unit,
// and how that changes. The state machines (Lender, Borrower) are pure: they
// take messages and the time and return messages, so that a simulator can
// drive them. Package wire defines the messages, package transport moves
// frames (ZeroMQ, or an in-memory simulator), package session makes a link out
// of frames: ordered, acknowledged, with heartbeats and redial. KV bytes never
// travel here.
package coordinator
