package trace

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func sample(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func parse(t testing.TB, text string, format Format) *Trace {
	t.Helper()
	tr, err := Read(strings.NewReader(text), "t", format, 0)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestSamples(t *testing.T) {
	for name, want := range map[string]struct {
		format Format
		size   Size
	}{
		"mooncake.jsonl": {Mooncake, Size{16, 16, 132140, 5590, 18060}},
		"agentic.jsonl":  {Agentic, Size{3, 12, 601697, 4223, 116652}},
		"azure.csv":      {Azure, Size{20, 20, 11540, 1674, 2236}},
		"sharegpt.csv":   {ShareGPT, Size{12, 12, 12132, 8024, 2889}},
		"vidur.csv":      {Vidur, Size{20, 20, 59430, 3933, 3991}},
	} {
		t.Run(name, func(t *testing.T) {
			raw := sample(t, name)
			plain, err := Load("testdata/"+name, "", 0)
			if err != nil {
				t.Fatal(err)
			}
			if plain.Format != want.format || plain.Size() != want.size {
				t.Errorf("format %q, size %+v; want %q, %+v", plain.Format, plain.Size(), want.format, want.size)
			}
			if plain.Sessions[0].Start != 0 {
				t.Errorf("the first session starts at %v, want 0", plain.Sessions[0].Start)
			}
			var packed bytes.Buffer
			z := gzip.NewWriter(&packed)
			z.Write(raw)
			z.Close()
			unpacked, err := Read(&packed, name, want.format, 0)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(plain, unpacked); d != "" {
				t.Errorf("gzipped it reads differently:\n%s", d)
			}
			two, err := Read(bytes.NewReader(raw), name, "", 2)
			if err != nil {
				t.Fatal(err)
			}
			if len(two.Sessions) != 2 || !cmp.Equal(two.Sessions, plain.Sessions[:2]) {
				t.Errorf("a limit of 2 gives %d sessions, or not the first", len(two.Sessions))
			}
		})
	}
}

func TestMooncakeSharesBlocks(t *testing.T) {
	tr := parse(t, `{"timestamp": 1500, "input_length": 1000, "output_length": 0, "hash_ids": [7, 8]}
{"timestamp": 500, "input_length": 1300, "output_length": 9, "hash_ids": [7, 8, 9], "more": 1}`, "")
	a, b := tr.Sessions[1], tr.Sessions[0] // by time
	if b.Start != 0 || a.Start != time.Second || a.Turns[0].Output != 1 || b.Turns[0].Output != 9 {
		t.Errorf("starts %v and %v, outputs %d and %d", b.Start, a.Start, b.Turns[0].Output, a.Turns[0].Output)
	}
	c := Content{Seed: 3, Vocab: 256}
	x, y := c.Prompt(&a.Turns[0], nil, nil), c.Prompt(&b.Turns[0], nil, nil)
	if len(x) != 1000 || len(y) != 1300 || !slices.Equal(x, y[:1000]) {
		t.Errorf("prompts of %d and %d tokens do not share the first 1000", len(x), len(y))
	}
	if other := (Content{Seed: 4, Vocab: 256}).Prompt(&a.Turns[0], nil, nil); slices.Equal(x, other) {
		t.Error("another seed gives the same prompt")
	}
}

// TestAgenticChains follows a session with kept blocks, unhashed tails, times
// that are not known and a sub-agent.
func TestAgenticChains(t *testing.T) {
	tr := parse(t, oneLine(`{"id":"s","blk":64,"cols":["t","in","out","api_time","think_time","ttft","stop"],"reqs":[
{"v":[0,200,5,2.5,0,null,"x"],"h":[0,1,3]},
{"sub":"a","t":4.5,"reqs":[{"v":[0,100,6,1,0,null,"x"],"h":[0,90,1]}]},
{"v":[10,260,7,null,null,null,"x"],"h":[2,50,2]},
{"v":[30,150,8,null,9,null,"x"],"h":[1,50,1]}]}`), "")
	s := tr.Sessions[0]
	if got := s.Prompts(); !slices.Equal(got, []int{200, 260, 150}) {
		t.Fatalf("prompts of %v tokens", got)
	}
	sec := func(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }
	for k, want := range [][2]time.Duration{{0, 0}, {sec(10), sec(7.5)}, {sec(30), sec(9)}} {
		if got := [2]time.Duration{s.Turns[k].At, s.Turns[k].Think}; got != want {
			t.Errorf("turn %d is at %v after %v, want %v", k, got[0], got[1], want)
		}
	}
	if sub := s.Subs[0]; sub.After != 0 || sub.At != sec(4.5) || sub.Think != sec(2) || sub.Session.ID != "s/a" {
		t.Errorf("sub-agent %+v", sub)
	}
	c := Content{Vocab: 256}
	var prompts [][]int32
	var last []int32
	for k := range s.Turns {
		last = c.Prompt(&s.Turns[k], last, nil)
		prompts = append(prompts, last)
	}
	if got := common(prompts[0], prompts[1]); got != 128 {
		t.Errorf("the first two share %d tokens, want the 128 of 2 kept blocks", got)
	}
	if got := common(prompts[1], prompts[2]); got != 64 {
		t.Errorf("the last two share %d tokens, want the 64 of a kept block", got)
	}
	// Block 50 comes second in one chain and third in the other, with the same text.
	if !slices.Equal(prompts[1][128:192], prompts[2][64:128]) {
		t.Error("a block has different tokens in two requests")
	}
}

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", "") }

// common is how many tokens two prompts begin with alike.
func common(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func TestSessionsOfOtherLinesAreOtherText(t *testing.T) {
	tr := parse(t, string(sample(t, "agentic.jsonl")), "")
	c := Content{Vocab: 256}
	a, b := c.Prompt(&tr.Sessions[0].Turns[0], nil, nil), c.Prompt(&tr.Sessions[1].Turns[0], nil, nil)
	if got := common(a, b); got > 8 {
		t.Errorf("two sessions share %d tokens: block ids are a session's own", got)
	}
}

func TestAzureTimes(t *testing.T) {
	const head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	for name, rows := range map[string]string{
		"2023": "2023-11-16 18:15:46.6805900,3,4\n2023-11-16 18:15:50.9305900,5,6\n",
		"2024": "2024-05-10 00:00:00.009930+00:00,3,4\r\n2024-05-10 00:00:04.259930+00:00,5,6\r\n",
	} {
		if tr := parse(t, head+rows, ""); tr.Sessions[1].Start != 4250*time.Millisecond {
			t.Errorf("%s: the second request is at %v, want 4.25s", name, tr.Sessions[1].Start)
		}
	}
}

func TestShareGPTTakesOneTokenizer(t *testing.T) {
	tr := parse(t, string(sample(t, "sharegpt.csv")), "")
	if len(tr.Sessions) != 12 || len(tr.Notes) != 1 || !strings.Contains(tr.Notes[0], "llama-3.1-8b; 6 rows") {
		t.Errorf("%d sessions, notes %q", len(tr.Sessions), tr.Notes)
	}
}

func TestVidurArrivals(t *testing.T) {
	tr := parse(t, "num_decode_tokens,arrived_at,num_prefill_tokens\n3,10.5,20\n4,12,30\n", "")
	if s := tr.Sessions[1]; s.Start != 1500*time.Millisecond || s.Prompts()[0] != 30 || s.Turns[0].Output != 4 {
		t.Errorf("second session %+v", s)
	}
}

// TestBadInput: every error names the place, the field, the value and what is
// accepted.
func TestBadInput(t *testing.T) {
	agentic := func(reqs string) string {
		return `{"id":"s","blk":64,"cols":["t","in","out","api_time","think_time","ttft","stop"],"reqs":[` + reqs + `]}`
	}
	const azure, share, vidur = "TIMESTAMP,ContextTokens,GeneratedTokens\n", "tokenizer,arrival_ns,input_toks,output_toks\n", "num_prefill_tokens,num_decode_tokens\n"
	for name, tc := range map[string]struct {
		format Format
		text   string
		want   []string // parts of the message
	}{
		"unknown format":        {"", "hello\nworld", []string{"t:1: line", "hello", "mooncake"}},
		"wrong format":          {"csv", "x", []string{`"csv"`, "mooncake"}},
		"empty":                 {Mooncake, "\n", []string{"no requests"}},
		"no JSON":               {Mooncake, "\nx", []string{"t:2: line", `"x"`, "JSON"}},
		"kind":                  {Mooncake, `{"timestamp":0,"input_length":"many","output_length":1,"hash_ids":[1]}`, []string{"t:1: input_length", "string", "int"}},
		"missing field":         {Mooncake, `{"timestamp":0,"input_length":5,"hash_ids":[1]}`, []string{"t:1: line", "output_length"}},
		"negative time":         {Mooncake, `{"timestamp":-1,"input_length":5,"output_length":1,"hash_ids":[1]}`, []string{"t:1: timestamp", `"-1"`, "from 0"}},
		"no input":              {Mooncake, `{"timestamp":0,"input_length":0,"output_length":1,"hash_ids":[]}`, []string{"input_length", `"0"`, "from 1 to"}},
		"huge input":            {Mooncake, `{"timestamp":0,"input_length":99999999,"output_length":1,"hash_ids":[]}`, []string{"input_length", `"99999999"`}},
		"too few hashes":        {Mooncake, `{"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[1]}`, []string{"hash_ids", `"1 ids"`, "2: one per 512"}},
		"other columns":         {Agentic, `{"id":"s","blk":64,"cols":["t"],"reqs":[]}`, []string{"t:1: cols", "[t]", "api_time"}},
		"no requests":           {Agentic, agentic(""), []string{"reqs", "at least one"}},
		"block size":            {Agentic, `{"id":"s","blk":0,"cols":["t","in","out","api_time","think_time","ttft","stop"],"reqs":[]}`, []string{"blk", `"0"`, "from 16"}},
		"few values":            {Agentic, agentic(`{"v":[0,1],"h":[0]}`), []string{"reqs[0].v", "2 values", "7"}},
		"value":                 {Agentic, agentic(`{"v":[0,"x",1,1,0,null,""],"h":[0]}`), []string{"reqs[0].in", "x", "a number"}},
		"tokens":                {Agentic, agentic(`{"v":[0,1.5,1,1,0,null,""],"h":[0]}`), []string{"reqs[0].in", "1.5", "whole number from 1"}},
		"null tokens":           {Agentic, agentic(`{"v":[0,null,1,1,0,null,""],"h":[0]}`), []string{"reqs[0].in", "null"}},
		"time":                  {Agentic, agentic(`{"v":[-2,5,1,1,0,null,""],"h":[0]}`), []string{"reqs[0].t", `"-2"`, "from 0"}},
		"even chain":            {Agentic, agentic(`{"v":[0,5,1,1,0,null,""],"h":[0,1]}`), []string{"reqs[0].h", "2 numbers", "odd"}},
		"keeps what was not":    {Agentic, agentic(`{"v":[0,64,1,1,0,null,""],"h":[1]}`), []string{"reqs[0].h[0]", `"1"`, "from 0 to 0"}},
		"keeps too much":        {Agentic, agentic(`{"v":[0,256,1,1,0,null,""],"h":[0,1,4]},{"v":[1,64,1,1,0,null,""],"h":[3]}`), []string{"reqs[1].h[0]", `"3"`, "at most 1"}},
		"chain longer than it":  {Agentic, agentic(`{"v":[0,100,1,1,0,null,""],"h":[0,1,3]}`), []string{"reqs[0].h[2]", `"3"`, "from 0 to 2"}},
		"negative id":           {Agentic, agentic(`{"v":[0,100,1,1,0,null,""],"h":[0,-1,1]}`), []string{"reqs[0].h[1]", `"-1"`}},
		"sub-agent's time":      {Agentic, agentic(`{"sub":"a","reqs":[]}`), []string{"reqs[0].t", "absent"}},
		"sub-agent's request":   {Agentic, agentic(`{"sub":"a","t":1,"reqs":[{"v":[0,0,1,1,0,null,""],"h":[0]}]}`), []string{"reqs[0].reqs[0].in", `"0"`}},
		"missing column":        {Azure, "TIMESTAMP,ContextTokens\n", []string{"t:1: header", "GeneratedTokens"}},
		"Azure time":            {Azure, azure + "yesterday,1,2\n", []string{"t:2: TIMESTAMP", "yesterday", "2006-01-02"}},
		"Azure tokens":          {Azure, azure + "2023-11-16 18:15:46.68,1,2\n2023-11-16 18:15:46.68,0,2\n", []string{"t:3: ContextTokens", `"0"`, "from 1"}},
		"Azure far away":        {Azure, azure + "2023-11-16 18:15:46,1,2\n1623-11-16 18:15:46,1,2\n", []string{"t:3: TIMESTAMP", "1623"}},
		"ragged row":            {Azure, azure + "1,2\n", []string{"line 2", "fields"}},
		"ShareGPT output":       {ShareGPT, share + "x,0,5,-1\n", []string{"t:2: output_toks", `"-1"`, "from 0"}},
		"ShareGPT arrival":      {ShareGPT, share + "x,soon,5,1\n", []string{"t:2: arrival_ns", "soon", "a number"}},
		"ShareGPT not a number": {ShareGPT, share + "x,NaN,5,1\n", []string{"t:2: arrival_ns", "NaN"}},
		"Vidur tokens":          {Vidur, vidur + "many,1\n", []string{"t:2: num_prefill_tokens", "many", "whole number"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(strings.NewReader(tc.text), "t", tc.format, 0)
			if err == nil {
				t.Fatal("it was accepted")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the message %q does not say %q", err, w)
				}
			}
		})
	}
	var line *LineError
	if _, err := Read(strings.NewReader(strings.Repeat("x", 500)), "t", Mooncake, 0); !errors.As(err, &line) || len(err.Error()) > 300 {
		t.Errorf("a long bad line gives %v", err)
	}
}
