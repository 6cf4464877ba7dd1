// Package e2e tests whole systems: real processes of the kvlend binary, real
// sockets, shared memory and HTTP. It has no code of its own beside its tests.
//
// Every answer is compared with a reference that the test process computes
// itself, with one engine and a plain cache: same tokens, same hash of the
// logits, to the bit. Whatever memory moved meanwhile must not show.
//
// A System is one `kvlend up`. When its test ends it must be idle, with all
// memory at home, end in order on SIGINT, and leave no process, socket, shared
// memory or run directory behind.
package e2e
