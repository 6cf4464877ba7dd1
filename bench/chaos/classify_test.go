package chaos

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/kvlend/kvlend/engine"
	"github.com/kvlend/kvlend/engine/kernels"
)

// TestOutcomes: what an answer that is cut, or pretends to be whole, counts as.
func TestOutcomes(t *testing.T) {
	const finish = `data: {"choices":[{"finish_reason":"length"}],"kvlend":{"logits_hash":"1","token_ids":[1]}}` + "\n\n"
	for _, tc := range []struct {
		name, stream string
		end          error
		want         outcome
	}{
		{"whole", finish + "data: [DONE]\n\n", io.EOF, right},
		{"cut in the middle", finish, io.ErrUnexpectedEOF, broken},
		{"ended without DONE", finish, io.EOF, improper},
		{"DONE without a finish reason", "data: {\"choices\":[{}]}\n\ndata: [DONE]\n\n", io.EOF, improper},
		{"no receipt", `data: {"choices":[{"finish_reason":"length"}]}` + "\n\ndata: [DONE]\n\n", io.EOF, improper},
		{"an error", `data: {"error":{"message":"m","code":"model_unavailable"}}` + "\n\n", io.EOF, "model_unavailable"},
		{"an error without a code", `data: {"error":{"message":"m"}}` + "\n\n", io.EOF, improper},
		{"an internal error", `data: {"error":{"message":"m","code":"internal_error"}}` + "\n\n", io.EOF, improper},
	} {
		body := io.MultiReader(bytes.NewBufferString(tc.stream), failing{tc.end})
		_, err := readStream(body, func(int) {})
		if got := classify(err, false, false); got != tc.want {
			t.Errorf("%s: %q (%v), want %q", tc.name, got, err, tc.want)
		}
	}
	late := errors.New("context deadline exceeded")
	if got := classify(late, true, false); got != hung {
		t.Errorf("an answer that does not come: %q", got)
	}
	if got := classify(late, true, true); got != cancelled {
		t.Errorf("a client that hangs up: %q", got)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestAnswersAreCompared: one wrong token or one wrong bit is seen.
func TestAnswersAreCompared(t *testing.T) {
	m, err := engine.Builtin("random-birch", engine.Options{KVDType: kernels.BF16})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	a := ask{Model: "birch", Prompt: []int32{1, 2, 3}, MaxTokens: 4}
	if err := a.compute(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := a.right(a.tokens, a.hash); err != nil {
		t.Error(err)
	}
	if a.right(a.tokens[:3], a.hash) == nil || a.right(a.tokens, "0000000000000000") == nil {
		t.Error("a wrong answer counts as right")
	}
}

// TestRecovery: percentiles of few times.
func TestRecovery(t *testing.T) {
	got := recovery([]time.Duration{3, 1, 2})
	if want := (Recovery{N: 3, P50: 2, P99: 3, Max: 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := recovery(nil); got != (Recovery{}) {
		t.Errorf("%+v of nothing", got)
	}
}
