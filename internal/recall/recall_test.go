package recall

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlend/kvlend/internal/dialogue"
)

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wants fails unless an error says what it should.
func wants(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Fatalf("the error is %v, want one with %q", err, text)
	}
}

// small are options of a short run.
func small() Options {
	return Options{Seed: 1, Lengths: []int{300, 1000}, Facts: []int{1, 6}, Kinds: dialogue.Kinds(), Dialogues: 3, Probes: 8}
}

// fake is an answerer; answer may be nil.
type fake struct {
	answer func(Request) (Reply, error)
	wait   func(context.Context) error // before it; may be nil
	mu     sync.Mutex
	asked  []Request
}

func (f *fake) Count(_ context.Context, text string) (int, error) {
	return dialogue.Estimate(text), nil
}

func (f *fake) Ask(ctx context.Context, q Request) (Reply, error) {
	if f.wait != nil {
		if err := f.wait(ctx); err != nil {
			return Reply{}, err
		}
	}
	f.mu.Lock()
	f.asked = append(f.asked, q)
	f.mu.Unlock()
	if f.answer == nil {
		return Reply{Text: "You have not told me that."}, nil
	}
	return f.answer(q)
}

// knowing answers every probe of a run right.
func knowing(t *testing.T, o Options) *fake {
	t.Helper()
	answers := map[string]string{}
	r := &run{opt: o}
	r.plan()
	for _, c := range r.tasks {
		d, probes, err := dialogue.Probes(o.Seed, c.seeded(), r.dialogueOptions(c.length, c.facts))
		noError(t, err)
		for _, p := range probes {
			answers[digest(Request{Messages: d.Messages, Question: p.Question})] = p.Answer
		}
	}
	return &fake{answer: func(q Request) (Reply, error) {
		a, ok := answers[digest(q)]
		if !ok {
			return Reply{}, fmt.Errorf("nobody expected %q", q.Question)
		}
		return Reply{Text: a, Prompt: 100, Hash: "1", Tiers: Tiers{Cached: 80, Local: 50, Borrowed: 30, BorrowedBlocks: 2}}, nil
	}}
}

// guessing answers right, wrong or not at all, by the question's bytes.
func guessing(t *testing.T, o Options) *fake {
	t.Helper()
	k := knowing(t, o)
	return &fake{answer: func(q Request) (Reply, error) {
		h := fnv.New32a()
		h.Write([]byte(q.Question + q.Messages[0].Content))
		switch h.Sum32() % 4 {
		case 0:
			return Reply{Text: "You have not told me that."}, nil
		case 1:
			return Reply{Text: "It is the last one."}, nil
		}
		return k.answer(q)
	}}
}

func runs(t *testing.T, a Answerer, o Options) *Result {
	t.Helper()
	r, err := Run(t.Context(), a, o)
	noError(t, err)
	r.Seconds = 0
	return r
}

func TestAllRight(t *testing.T) {
	o := small()
	var last Progress
	o.Progress = func(p Progress) { last = p }
	f := knowing(t, o)
	r := runs(t, f, o)
	if r.All.Asked != len(f.asked) || r.All.Right != r.All.Asked || r.All.Exact != r.All.Asked || r.False.False != 0 {
		t.Fatalf("all %+v, false %+v, %d asked", r.All, r.False, len(f.asked))
	}
	if last.Done != r.All.Asked || last.Total != last.Done {
		t.Errorf("the last progress was %+v of %d", last, r.All.Asked)
	}
	// 300 tokens hold one fact and not six.
	for i, want := range []Cell{{300, 1, 0, "", false}, {300, 6, 0, "too short for so many facts", false}, {1000, 1, 0, "", false}, {1000, 6, 0, "", false}} {
		got := r.Cells[i]
		if (got.Asked > 0) != (want.Missing == "") {
			t.Errorf("cell %+v", got)
		}
		if got.Asked = 0; got != want {
			t.Errorf("cell %+v, want %+v", got, want)
		}
	}
	total := 0
	for _, g := range r.ByKind {
		if total += g.Asked; g.Asked == 0 {
			t.Errorf("no question of kind %s", g.Name)
		}
	}
	if total != r.All.Asked {
		t.Errorf("%d questions by kind, %d asked", total, r.All.Asked)
	}
	for name, groups := range map[string][]Group{"length": r.ByLength, "distance": r.ByDistance, "facts": r.ByFacts, "position": r.ByPosition} {
		total := 0
		for _, g := range groups {
			total += g.Asked
		}
		if total != r.Single.Asked {
			t.Errorf("%d questions by %s, %d for single facts", total, name, r.Single.Asked)
		}
	}
	u := r.Underneath
	if n := int64(r.All.Asked); u.PromptTokens != 100*n || u.Cached != 80*n || u.Local != 50*n || u.Borrowed != 30*n || u.BorrowedBlocks != 2 {
		t.Errorf("underneath %+v of %d requests", u, n)
	}
}

// TestSameResults: neither clients nor turns change what is asked, or how it is
// summed up.
func TestSameResults(t *testing.T) {
	o := small()
	want := runs(t, guessing(t, o), o)
	if want.All.Right == 0 || want.All.Right == want.All.Asked || want.False.False == 0 {
		t.Fatalf("the answers are all alike: %+v", want.All)
	}
	for _, x := range [][2]int{{1, 0}, {5, 1}, {1, 4}, {3, 100}} {
		p := o
		p.Clients, p.Interleave = x[0], x[1]
		got := runs(t, guessing(t, o), p)
		got.Options = want.Options
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%d clients, %d in turn: %+v, want %+v", x[0], x[1], got.All, want.All)
		}
	}
	o.Seed++
	if other := runs(t, &fake{}, o); other.Probes[0].Digest == want.Probes[0].Digest {
		t.Error("another seed asks the same")
	}
}

// TestTurns: dialogues that are asked about in turn.
func TestTurns(t *testing.T) {
	o := small()
	o.Lengths, o.Facts, o.Dialogues, o.Interleave, o.Probes = []int{300}, []int{1}, 3, 3, 2
	f := &fake{}
	runs(t, f, o)
	if len(f.asked) != 6 {
		t.Fatalf("%d requests, want 6", len(f.asked))
	}
	for i, q := range f.asked {
		if first := f.asked[i%3]; &q.Messages[0] != &first.Messages[0] {
			t.Errorf("request %d is not of dialogue %d", i, i%3)
		}
	}
}

func TestQuestionsAreBalanced(t *testing.T) {
	o := small()
	o.Lengths, o.Facts, o.Probes = []int{3000}, []int{32}, 12
	r := runs(t, &fake{}, o)
	if r.All.Asked != 36 || r.Single.Asked != 18 {
		t.Fatalf("%d questions, %d for single facts, want 36 and 18", r.All.Asked, r.Single.Asked)
	}
	for _, g := range r.ByKind[2:] {
		if g.Asked != 6 {
			t.Errorf("%d questions of kind %s, want 6", g.Asked, g.Name)
		}
	}
	o.Kinds = []dialogue.Kind{dialogue.Corrected}
	if r := runs(t, &fake{}, o); r.ByKind[0].Asked == 0 || r.ByKind[0].Asked != r.All.Asked {
		t.Errorf("%+v", r.ByKind)
	}
	o.Kinds = []dialogue.Kind{dialogue.Recall}
	if r := runs(t, &fake{}, o); r.All.Asked != 36 {
		t.Errorf("%d questions, want 36", r.All.Asked)
	}
}

func TestWhatDoesNotFit(t *testing.T) {
	o := small()
	o.Facts, o.Longest = []int{1}, 600
	r := runs(t, &fake{}, o)
	if c := r.Cells[1]; !c.NoFit || c.Asked != 0 || !strings.Contains(c.Missing, "600") {
		t.Errorf("cell %+v", c)
	}
	o.Longest = 0
	refuses := &fake{answer: func(q Request) (Reply, error) {
		if len(q.Messages) > 20 {
			return Reply{}, fmt.Errorf("%w: so the server says", ErrTooLong)
		}
		return Reply{}, nil
	}}
	var last Progress
	o.Progress = func(p Progress) { last = p }
	r = runs(t, refuses, o)
	if c := r.Cells[1]; !c.NoFit || c.Asked != 0 || !strings.Contains(c.Missing, "the server says") || r.Cells[0].Asked == 0 {
		t.Errorf("cells %+v", r.Cells)
	}
	if last.Done != last.Total {
		t.Errorf("the last progress was %+v", last)
	}
	if long := len(refuses.asked) - r.All.Asked; long != 1 {
		t.Errorf("%d dialogues were tried that do not fit, want 1", long)
	}
	// An answer takes no more than is left.
	o.Lengths, o.Longest = []int{300}, 300
	f := &fake{}
	runs(t, f, o)
	for _, q := range f.asked {
		used := dialogue.Estimate(dialogue.Message{Role: "user", Content: q.Question}.Text())
		for _, m := range q.Messages {
			used += dialogue.Estimate(m.Text())
		}
		if q.MaxTokens < 1 || used+q.MaxTokens > 300 {
			t.Errorf("%d tokens, and %d for the answer", used, q.MaxTokens)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small()
		o.Facts, o.MaxTime = []int{1, 6, 16}, 10*time.Second
		r := runs(t, &fake{answer: func(Request) (Reply, error) {
			time.Sleep(time.Second) // of the bubble's clock
			return Reply{}, nil
		}}, o)
		if r.Cut != timeOver || r.All.Asked != 10 {
			t.Fatalf("%d asked, cut %q, want 10", r.All.Asked, r.Cut)
		}
		if c := r.Cells[4]; c.Missing != timeOver {
			t.Errorf("cell %+v", c)
		}
		for facts, want := range map[int]string{8: noAsk, 16: noRoom} {
			if _, why := r.place(1024, facts); why != want {
				t.Errorf("%d facts: %q, want %q", facts, why, want)
			}
		}
	})
}

// TestTimeEndsWhatIsUnderWay: a server that does not answer is not waited for.
func TestTimeEndsWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small()
		o.MaxTime, o.Clients = 10*time.Second, 2
		start := time.Now()
		r := runs(t, &fake{wait: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}, o)
		if r.Cut != timeOver || r.All.Asked != 0 || time.Since(start) != o.MaxTime {
			t.Errorf("%d asked in %v, cut %q", r.All.Asked, time.Since(start), r.Cut)
		}
	})
}

func TestErrorsEndTheRun(t *testing.T) {
	broken := errors.New("the wire broke")
	f := &fake{answer: func(Request) (Reply, error) { return Reply{}, broken }}
	o := small()
	_, err := Run(t.Context(), f, o)
	wants(t, err, "dialogue 0 of 300 tokens with 1 facts: the wire broke")
	if !errors.Is(err, broken) || len(f.asked) != 1 {
		t.Errorf("%d requests, error %v", len(f.asked), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := Run(ctx, f, o)
	if !errors.Is(err, context.Canceled) || r != nil {
		t.Errorf("error %v, result %+v", err, r)
	}
}

// TestWhatWasAskedIsKept: an error and an interruption leave the answers so far.
func TestWhatWasAskedIsKept(t *testing.T) {
	broken := errors.New("the wire broke")
	for name, want := range map[string]struct {
		cut, err string
		is       error
	}{
		"error":     {wasBroken, "the wire broke", broken},
		"interrupt": {wasInterrupted, "interrupted after 20 of ", context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			o := small()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			all := knowing(t, o)
			f := &fake{}
			f.answer = func(q Request) (Reply, error) {
				if len(f.asked) == 20 && name == "interrupt" {
					cancel()
				}
				if len(f.asked) > 20 {
					return Reply{}, broken
				}
				return all.answer(q)
			}
			r, err := Run(ctx, f, o)
			wants(t, err, want.err)
			if !errors.Is(err, want.is) {
				t.Errorf("error %v", err)
			}
			if r == nil || r.Cut != want.cut || r.All.Right != 20 || r.All.Asked != 20 {
				t.Fatalf("result %+v", r)
			}
			var b bytes.Buffer
			noError(t, r.WriteTable(&b))
			if !strings.Contains(b.String(), "what was left when "+want.cut) {
				t.Errorf("%s does not say that it is not all", b.String())
			}
		})
	}
}

func TestBadOptionsAreNamed(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"lengths is empty":                    func(o *Options) { o.Lengths = nil },
		"lengths has 100, want 224 to":        func(o *Options) { o.Lengths = []int{300, 100} },
		"facts has 0, want 1 to":              func(o *Options) { o.Facts = []int{0} },
		"facts has 6 twice":                   func(o *Options) { o.Facts = []int{6, 1, 6} },
		"kinds is empty":                      func(o *Options) { o.Kinds = nil },
		`kinds has "guess", want some of`:     func(o *Options) { o.Kinds = []dialogue.Kind{"guess"} },
		"kinds has count twice":               func(o *Options) { o.Kinds = []dialogue.Kind{"count", "count"} },
		"dialogues has 0, want 1 to 10000":    func(o *Options) { o.Dialogues = 0 },
		"probes has 2000, want 1 to 1000":     func(o *Options) { o.Probes = 2000 },
		"clients has -1, want 0 to 64":        func(o *Options) { o.Clients = -1 },
		"interleave has 5000, want 0 to 1000": func(o *Options) { o.Interleave = 5000 },
		"max-time is -1s, want 0 or more":     func(o *Options) { o.MaxTime = -time.Second },
	} {
		o := small()
		change(&o)
		_, err := Run(t.Context(), &fake{}, o)
		wants(t, err, want)
	}
}

func TestThresholds(t *testing.T) {
	o := small()
	r := runs(t, knowing(t, o), o)
	noError(t, r.Check(Thresholds{Accuracy: 1, False: 0}))
	r = runs(t, guessing(t, o), o)
	noError(t, r.Check(Thresholds{Accuracy: r.All.Rate, False: r.False.Rate}))
	wants(t, r.Check(Thresholds{Accuracy: r.All.Rate + 1e-9, False: 1}), "of the answers are right, at least")
	wants(t, r.Check(Thresholds{False: r.False.Rate - 1e-9}), "never told have an answer, at most")
	wants(t, new(Result).Check(Thresholds{False: 1}), "nothing was asked")
}

func TestCompare(t *testing.T) {
	o := small()
	before := runs(t, knowing(t, o), o)
	now := runs(t, guessing(t, o), o)
	c, err := now.Compare(before)
	noError(t, err)
	wrong := now.All.Asked - now.All.Exact
	if wrong == 0 || len(c.Changed) != wrong || c.Same != now.All.Exact || c.Hashes != 0 || c.OnlyHere+c.OnlyThere != 0 {
		t.Fatalf("%d changed, %+v; %d are wrong", len(c.Changed), c, wrong)
	}
	wants(t, c.Err(), fmt.Sprintf("%d of %d answers are not", wrong, now.All.Asked))
	var b bytes.Buffer
	now.Comparison = c
	noError(t, now.WriteTable(&b))
	if x := c.Changed[0]; !strings.Contains(b.String(), x.ID) || !strings.Contains(b.String(), x.Now) || !strings.Contains(b.String(), x.Before) {
		t.Errorf("%s lacks %+v", b.String(), x)
	}
	// Against itself nothing changes, but for what only one run has.
	half := o
	half.Lengths = []int{1000}
	part := runs(t, knowing(t, o), half)
	part.Probes[0].Hash = "2"
	c, err = before.Compare(part)
	noError(t, err)
	wants(t, c.Err(), fmt.Sprintf("%d of %d questions are not among those of the yardstick", before.All.Asked-part.All.Asked, before.All.Asked))
	cut := *part
	cut.Cut = timeOver
	c, err = before.Compare(&cut)
	noError(t, err)
	noError(t, c.Err())
	c, err = part.Compare(before)
	noError(t, err)
	if c.Err() != nil || c.Same != part.All.Asked || c.Hashes != 1 || c.OnlyHere != 0 || c.OnlyThere != before.All.Asked-part.All.Asked {
		t.Errorf("%+v", c)
	}
	for want, change := range map[string]func(*Options){
		"the seed is 2, and 1":        func(o *Options) { o.Seed = 2 },
		"the words of training":       func(o *Options) { o.TrainingWords = true },
		"only one has both":           func(o *Options) { o.Kinds = []dialogue.Kind{dialogue.Recall} },
		"lengths are [500], and":      func(o *Options) { o.Lengths = []int{500} },
		"numbers of facts are [2]":    func(o *Options) { o.Facts = []int{2} },
		"want the same tokenizer, or": func(*Options) {},
	} {
		other := Result{Options: o}
		change(&other.Options)
		_, err := other.Compare(before)
		wants(t, err, want)
	}
}

func TestWrites(t *testing.T) {
	o := small()
	o.Lengths, o.Facts, o.Longest = append(o.Lengths, 4000), append(o.Facts, 100), 2000
	r := runs(t, guessing(t, o), o)
	r.Model = "a<b>"
	r.Underneath.System = &System{UnitsLent: 3, Granted: 9, Loaded: 5 << 20}
	var text, drawn, data bytes.Buffer
	noError(t, r.WriteTable(&text))
	for _, want := range []string{"a<b>", "no fit", "no room", r.Single.String(), "300 tokens with 6 facts, 300 tokens with 100 facts, 1000 tokens with 100 facts, 4000 tokens with 100 facts: too short for so many facts",
		"4000 tokens with 1 facts, 4000 tokens with 6 facts: the model's context has 2000 tokens", "at most 3 units lent at once, 9 granted, 0 asked back, 0 taken back; 5.0 MiB streamed in"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, text.String())
		}
	}
	noError(t, r.WriteSVG(&drawn))
	x := xml.NewDecoder(&drawn)
	var words []string
	for {
		tok, err := x.Token()
		if err == io.EOF {
			break
		}
		noError(t, err)
		if s, ok := tok.(xml.CharData); ok {
			words = append(words, string(s))
		}
	}
	all := strings.Join(words, "\n")
	for _, want := range []string{"What a<b> recalls", "no fit", "no room", "facts in play, up to", fmt.Sprintf("of %d", r.Grid[0].Asked)} {
		if !strings.Contains(all, want) {
			t.Errorf("the picture lacks %q:\n%s", want, all)
		}
	}
	noError(t, r.WriteJSON(&data))
	again, err := Read(bytes.NewReader(data.Bytes()))
	noError(t, err)
	c, err := r.Compare(again)
	noError(t, err)
	if c.Same != r.All.Asked || c.Err() != nil || again.All.Right != r.All.Right {
		t.Errorf("%+v, all %+v", c, again.All)
	}
	for _, bad := range []string{"", "[]", "{}", `{"options": {"kinds": 3}}`} {
		_, err := Read(strings.NewReader(bad))
		wants(t, err, "no result of kvlend eval recall --json")
	}
}

// FuzzRead: a yardstick may be any file.
func FuzzRead(f *testing.F) {
	r := &Result{Options: small(), Probes: []Asked{{ID: "300/1/0/0", Digest: "1", Reply: "a"}}}
	data, err := json.Marshal(r)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"options": {"kinds": ["recall"], "lengths": [300]}, "probes": [{}, {}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		read, err := Read(bytes.NewReader(data))
		if err != nil {
			return
		}
		if c, err := r.Compare(read); err == nil && c.Same+len(c.Changed)+c.OnlyHere != 1 {
			t.Errorf("%+v of one probe", c)
		}
	})
}

// TestRestartsAreNoNegativeFigures: a process that began anew counts from zero.
func TestRestartsAreNoNegativeFigures(t *testing.T) {
	var s System
	s.Add(System{Loaded: 100, Granted: 5}, System{Loaded: 130, Granted: 5})
	s.Add(System{Loaded: 130, Granted: 5}, System{Loaded: 7})
	s.Add(System{Loaded: 7}, System{Loaded: 9, Moved: 1})
	if want := (System{Loaded: 39, Moved: 1, Restarts: 1}); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
}
