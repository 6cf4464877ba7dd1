package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvlend/kvlend/configs"
)

func recommend(t testing.TB, text string) *Recommendation {
	t.Helper()
	r, err := Recommend([]byte(text), "test.yaml", Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// checkRecommendation: what is recommended parses, plans to what it promises,
// is better, and differs in nothing but the changes.
func checkRecommendation(t rapid.TB, text string, r *Recommendation) {
	t.Helper()
	var printed bytes.Buffer
	if err := r.WriteText(&printed); err != nil {
		t.Fatal(err)
	}
	cfg, err := configs.Parse(printed.Bytes(), "out.yaml")
	if err != nil {
		t.Fatalf("the recommended configuration is refused: %v\n%s", err, printed.String())
	}
	after, err := New(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if after.total() != r.After.total() || len(after.Findings) != len(r.After.Findings) {
		t.Fatalf("promised %d tokens and %v, planned %d and %v", r.After.total(), r.After.Findings, after.total(), after.Findings)
	}
	if len(r.Changes) == 0 {
		if r.Config != text || !strings.Contains(printed.String(), "no change is needed") {
			t.Fatalf("no changes, but the text is another:\n%s", printed.String())
		}
		return
	}
	worse := r.Before.Count(Error) < after.Count(Error) ||
		r.Before.Count(Error) == after.Count(Error) && r.Before.Count(Warning) < after.Count(Warning)
	same := r.Before.Count(Error) == after.Count(Error) && r.Before.Count(Warning) == after.Count(Warning) && after.total() <= r.Before.total()
	if worse || same {
		t.Fatalf("not better: before %s %d tokens, after %s %d tokens, %+v", counts(r.Before), r.Before.total(), counts(after), after.total(), r.Changes)
	}
	var undo []Change
	for _, c := range r.Changes {
		if c.Reason == "" || !strings.Contains(printed.String(), "plan: "+c.Path[strings.LastIndex(c.Path, ".")+1:]+" was "+c.Old) {
			t.Fatalf("%+v has no comment in\n%s", c, printed.String())
		}
		undo = append(undo, Change{Path: c.Path, Old: c.New, New: c.Old})
	}
	back, err := edit(printed.Bytes(), undo)
	if err != nil {
		t.Fatal(err)
	}
	was, err := configs.Parse([]byte(text), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !parsesTo(back, "back.yaml", was) {
		t.Fatalf("more than the changes differs: %+v\n%s", r.Changes, printed.String())
	}
	if again, err := Recommend(printed.Bytes(), "out.yaml", Options{}); err != nil || len(again.Changes) > 0 {
		t.Fatalf("of its own recommendation it recommends %+v (%v)", again.Changes, err)
	}
}

func TestRecommendNothing(t *testing.T) {
	for _, name := range []string{configs.DefaultName, "swiftcache-4xh20.yaml", "h100-qwen3.yaml"} {
		r := recommend(t, example(t, name))
		if len(r.Changes) > 0 {
			t.Errorf("%s: %+v", name, r.Changes)
		}
		checkRecommendation(t, example(t, name), r)
	}
}

// needy has one of everything that can be better.
const needy = `# our server
version: 1
devices:
  - {name: g0, kind: H20}
  - {name: g1, kind: L4}
  - {name: g2, kind: H20}
links: [{from: g0, to: g1, bandwidth: 20GB/s}, {from: g2, to: g0, bandwidth: 200GB/s}]
models:
  # the writer
  - name: writer
    source: catalog:Qwen3-14B
    role: master
    device: g0
    arena: "30GiB"   # a guess
    block_tokens: 48
    max_batch_tokens: 2048
  - {name: helper, source: "catalog:Qwen3-8B", role: worker, device: g1, arena: 12GiB, floor: 12185MiB}
  - name: other
    source: catalog:Qwen3-8B
    role: worker
    device: g2
    arena: 40GiB
    block_tokens: 80
    floor: 40GiB
`

func TestRecommendGolden(t *testing.T) {
	r := recommend(t, needy)
	golden(t, "recommended.yaml", r.WriteText)
	checkRecommendation(t, needy, r)
	for _, path := range []string{"models[0].arena", "models[1].arena", "models[1].floor", "models[2].floor"} {
		if !strings.Contains(fmt.Sprint(r.Changes), path) {
			t.Errorf("%s is not changed: %+v", path, r.Changes)
		}
	}
	if !r.After.Fits || r.Before.Fits {
		t.Errorf("before %s after %s", counts(r.Before), counts(r.After))
	}
}

// TestRecommendProperties draws servers, good and bad ones.
func TestRecommendProperties(t *testing.T) {
	models := []string{"LWM-1M-Text", "Qwen3-8B", "Qwen3-14B", "Qwen3-4B", "Llama-3.1-8B"}
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		b.WriteString("version: 1\ndevices:\n")
		n := rapid.IntRange(2, 4).Draw(t, "models")
		for i := range n {
			fmt.Fprintf(&b, "  - {name: g%d, kind: %s}\n", i, rapid.SampledFrom([]string{"H20", "L4", "A100-80G-SXM", "cpu"}).Draw(t, "kind"))
		}
		b.WriteString("models:\n")
		for i := range n {
			role := rapid.SampledFrom([]string{"master", "worker", "worker", "local"}).Draw(t, "role")
			if i == 0 {
				role = "master"
			}
			arena := rapid.SampledFrom([]int{64, 100, 3000, 20000, 70000}).Draw(t, "arena")
			extra := ""
			if role == "worker" {
				extra = fmt.Sprintf(", floor: %dMiB", arena*rapid.IntRange(0, 10).Draw(t, "floor")/10)
			}
			if role == "master" {
				extra = fmt.Sprintf(", lsc: {buffers: %d}", rapid.IntRange(1, 2).Draw(t, "buffers"))
			}
			fmt.Fprintf(&b, "  - {name: m%d, source: \"catalog:%s\", role: %s, device: g%d, arena: %dMiB, block_tokens: %d, max_batch_tokens: 1024%s}\n", i,
				rapid.SampledFrom(models).Draw(t, "model"), role, i, arena, rapid.SampledFrom([]int{16, 16, 32, 48, 80}).Draw(t, "block"), extra)
		}
		fmt.Fprintf(&b, "lending: {unit: {policy: %s}}\n", rapid.SampledFrom([]string{"lcm", "layer-lcm", "padded"}).Draw(t, "policy"))
		r, err := Recommend([]byte(b.String()), "test.yaml", Options{})
		if err != nil {
			// A combination that no configuration can have: reported as such.
			var list configs.Errors
			if !errors.As(err, &list) {
				t.Fatal(err)
			}
			return
		}
		checkRecommendation(t, b.String(), r)
	})
}

func TestEdit(t *testing.T) {
	for _, c := range []struct{ name, text, path, value, want string }{
		{"block", "a:\n  b: 1 # one\n  c: 2\n", "a.b", "3", "a:\n  # plan: b was 0; r\n  b: 3 # one\n  c: 2\n"},
		{"flow", "a: {b: 1, c: 2}\n", "a.c", "30", "# plan: c was 0; r\na: {b: 1, c: 30}\n"},
		{"quotes", "a: \"x\"\n", "a", "y", "# plan: a was 0; r\na: y\n"},
		{"wide characters", "a: {ü: 'ä', c: 1}\n", "a.c", "2", "# plan: c was 0; r\na: {ü: 'ä', c: 2}\n"},
		{"list", "m:\n  - {n: a, b: 1}\n  - n: c\n    b: 2\n", "m[1].b", "5", "m:\n  - {n: a, b: 1}\n  - n: c\n    # plan: b was 0; r\n    b: 5\n"},
		{"missing in a block", "m:\n  - n: c\n    b: 2\n", "m[0].x", "5", "m:\n  - n: c\n    # plan: x was 0; r\n    x: 5\n    b: 2\n"},
		{"missing in a flow", "m: [{n: c}]\n", "m[0].x", "5", "# plan: x was 0; r\nm: [{x: 5, n: c}]\n"},
		{"missing in nothing", "m: {}\n", "m.x", "5", "# plan: x was 0; r\nm: {x: 5}\n"},
		{"missing section", "v: 1\nm: []\n", "l.u.p", "x", "v: 1\n# plan: p was 0; r\nl: {u: {p: x}}\nm: []\n"},
		{"carriage returns", "a: 1\r\nb: 2\r\n", "b", "3", "a: 1\n# plan: b was 0; r\nb: 3\n"},
		{"alias", "a: &x 1\nb: *x\n", "b", "3", ""},
		{"anchor", "a: &x 1\n", "a", "3", ""},
		{"null", "a:\n", "a.b", "3", ""},
		{"no such element", "a: [1]\n", "a[1]", "3", ""},
		{"only sections", "a:\n  b:\n    c: 1\n", "a.x", "3", ""},
	} {
		got, err := edit([]byte(c.text), []Change{{c.path, "0", c.value, "r"}})
		if (c.want == "") != errors.Is(err, errNoPlace) || string(got) != c.want {
			t.Errorf("%s: %v\n%s", c.name, err, got)
		}
	}
	two, err := edit([]byte("a: {b: 1, c: 2}\n"), []Change{{"a.b", "1", "10", "r"}, {"a.c", "2", "20", "s"}})
	if want := "# plan: b was 1; r\n# plan: c was 2; s\na: {b: 10, c: 20}\n"; err != nil || string(two) != want {
		t.Errorf("two on a line: %v\n%s", err, two)
	}
	long, err := edit([]byte("a: 1\n"), []Change{{"a", "1", "2", strings.Repeat("word ", 40)}})
	if err != nil || strings.Count(string(long), "\n# ") != 2 {
		t.Errorf("a long reason: %v\n%s", err, long)
	}
}

// TestRecommendAnchors: what cannot be edited in place is printed anew first.
func TestRecommendAnchors(t *testing.T) {
	text := strings.Replace(strings.Replace(needy, "arena: \"30GiB\"", "arena: &size 30GiB", 1), "arena: 40GiB", "arena: *size", 1)
	text = strings.Replace(text, "floor: 40GiB", "floor: *size", 1)
	r := recommend(t, text)
	if len(r.Changes) == 0 {
		t.Fatal("nothing is changed")
	}
	checkRecommendation(t, text, r)
}

func FuzzEdit(f *testing.F) {
	f.Add(needy, "models[1].floor", "1GiB")
	f.Add("a: {b: 1}", "a.c.d", "2")
	f.Add("", "a", "")
	f.Add("a: 1\rb: {c: 1}\u0085d: 2", "b.d", "1")
	f.Add("a: 1\u2028b: 1\rc:\r  d: 1", "c.e", "1")
	f.Fuzz(func(t *testing.T, text, path, value string) {
		if len(text) > 1<<12 {
			return
		}
		_, _ = edit([]byte(text), []Change{{Path: path, Old: "x", New: value, Reason: "r"}, {Path: path + ".z", New: value}})
	})
}

func TestRecommendRefusesBadInput(t *testing.T) {
	if _, err := Recommend([]byte("version: 2"), "bad.yaml", Options{}); err == nil || !strings.Contains(err.Error(), "bad.yaml:1:10: version") {
		t.Errorf("error %v", err)
	}
	if err := (&Recommendation{Before: &Plan{}, After: &Plan{}}).WriteJSON(io.Discard); err != nil {
		t.Error(err)
	}
}
