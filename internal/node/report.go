package node

import (
	"context"
	"fmt"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// maxAsks bounds the questions of one kind that may wait.
const maxAsks = 16

// ask queues a question; when too many wait, whoever asks gets no answer.
func (n *Node) ask(queue chan uint64, id uint64) {
	select {
	case queue <- id:
	default:
		n.opt.Log.Warn("too many questions are waiting, one is dropped")
	}
}

// answer answers questions, one at a time, beside the link's goroutine: caches
// and agents are asked under their locks, and a check takes time proportional
// to units and blocks.
func (n *Node) answer(ctx context.Context, queue <-chan uint64, f func(id uint64) wire.Message) {
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-queue:
			n.out.push(f(id))
		}
	}
}

// report checks the process.
func (n *Node) report(id uint64) *wire.CheckReport {
	c := n.opt.Model.Config
	r := &wire.CheckReport{ID: id, Model: c.Name, Role: c.Role, PID: n.opt.Hello.PID, Index: uint32(n.opt.Model.Index)}
	if n.opt.Check != nil {
		n.opt.Check(r)
	}
	return r
}

// degraded names what does not work as it should, for people.
func degraded(st *wire.Status) []string {
	var out []string
	add := func(format string, args ...any) {
		if len(out) < wire.MaxDegraded/2 { // the role has lines of its own
			out = append(out, wire.Clip(fmt.Sprintf(format, args...), wire.MaxText))
		}
	}
	for _, l := range st.Links {
		switch {
		case l.Refused:
			add("the link to %s is refused: %s", l.Peer, l.Reason)
		case !l.Up:
			add("the link to %s is down: %s", l.Peer, l.Reason)
		}
	}
	for _, u := range st.Units {
		if u.Fenced > 0 {
			add("%d units of %s are fenced", u.Fenced, u.Peer)
		}
	}
	if st.Corrupt > 0 {
		add("%d borrowed blocks did not match their checksums", st.Corrupt)
	}
	if st.AuditLost > 0 {
		add("%d audit records were lost", st.AuditLost)
	}
	return out
}
