package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/scheduler"
)

// TestLack: a request that only fits what was configured is told to come again, and
// why; one that never fits is the client's mistake.
func TestLack(t *testing.T) {
	why := "ssd0 is out of use"
	n := &Node{}
	n.opt.Model = &planner.Model{Config: &configs.Model{Role: configs.RoleMaster}, Capacity: elastic.Capacity{Tokens: 1000}}
	n.opt.Lack = func() string { return why }
	long := func(prompt, most int) error {
		return n.lacking(&scheduler.TooLongError{PromptTokens: prompt, MaxTokens: most, Limit: 100, LimitedBy: scheduler.LimitCache})
	}
	f := failure("x", long(900, 100))
	if f.Code != "unavailable" || f.RetryAfter != retryLack || !strings.Contains(f.Message, why) || !strings.Contains(f.Message, "100 tokens that can be served at present, of 1000") {
		t.Errorf("%+v", f)
	}
	if f := failure("x", long(900, 101)); f.Code != "context_length_exceeded" || f.RetryAfter != 0 {
		t.Errorf("it would never fit: %+v", f)
	}
	byModel := n.lacking(&scheduler.TooLongError{PromptTokens: 1, MaxTokens: 1, LimitedBy: scheduler.LimitModel})
	if f := failure("x", byModel); f.Code != "context_length_exceeded" {
		t.Errorf("the model's own limit: %+v", f)
	}
	why = ""
	if f := failure("x", long(900, 100)); f.Code != "context_length_exceeded" {
		t.Errorf("nothing is out of use: %+v", f)
	}
	if other := errors.New("other"); n.lacking(other) != other || n.lacking(nil) != nil {
		t.Error("another error was changed")
	}
}
