package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/scheduler"
)

// retryLack is when a client may come again after a request that is too long for
// what is left of the overflow pool: somebody has to see to its devices.
const retryLack = 30 * time.Second

// lackError refuses a request that the configuration promises to serve and that
// does not fit at present.
type lackError struct {
	long       *scheduler.TooLongError
	configured int
	why        string
}

func (e *lackError) Error() string {
	return fmt.Sprintf("%d prompt tokens and max_tokens %d exceed the %d tokens that can be served at present, of %d: %s",
		e.long.PromptTokens, e.long.MaxTokens, e.long.Limit, e.configured, e.why)
}

// lack says why there is less room than configured.
func (n *Node) lack() string {
	if n.opt.Lack == nil {
		return ""
	}
	return n.opt.Lack()
}

// lacking turns the refusal of a request into one that says whose fault it is: not the
// client's, if the request would fit what was configured.
func (n *Node) lacking(err error) error {
	var long *scheduler.TooLongError
	if !errors.As(err, &long) || long.LimitedBy != scheduler.LimitCache {
		return err
	}
	configured, _ := n.opt.Model.MaxTokens()
	if why := n.lack(); why != "" && long.PromptTokens+long.MaxTokens <= configured {
		return &lackError{long, configured, why}
	}
	return err
}

// most is how many tokens a request may generate: fewer than it says where it only
// says how much room there should be, and there is less at present.
func (n *Node) most(m *wire.Submit) int {
	limit, _ := n.sched.Limit()
	if !m.UpTo || n.lack() == "" {
		return m.MaxTokens
	}
	return min(m.MaxTokens, max(1, limit-len(m.Tokens)))
}
