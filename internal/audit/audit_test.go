package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, dir string, opt Options) *Log {
	t.Helper()
	l, err := Open(dir, "birch", opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// read returns the records of one file and how many lines are none.
func read(t *testing.T, path string) ([]Record, int) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []Record
	damaged, err := Scan(bytes.NewReader(raw), func(r Record) error { out = append(out, r); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return out, damaged
}

func kinds(rs []Record) string {
	var out []string
	for _, r := range rs {
		out = append(out, r.Kind)
	}
	return strings.Join(out, " ")
}

func TestRecordsAreKeptInOrder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	l := open(t, dir, Options{})
	l.Record(Record{Kind: "grant", Peer: "atlas", PeerPID: 7, Units: [][2]uint64{{3, 9}}, Reason: "r\x00\n"})
	l.Record(Record{Kind: "reclaim", N: 4})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l.Record(Record{Kind: "after the end"})
	got, damaged := read(t, Path(dir, "birch"))
	if kinds(got) != "begin grant reclaim end" || damaged != 0 || l.Lost() != 0 {
		t.Fatalf("%s, %d damaged, %d lost", kinds(got), damaged, l.Lost())
	}
	for i, r := range got {
		if r.Seq != uint64(i+1) || r.By != "birch" || r.PID != os.Getpid() || time.Since(r.Time) > time.Minute {
			t.Errorf("record %d: %+v", i, r)
		}
	}
	if g := got[1]; g.Peer != "atlas" || g.PeerPID != 7 || g.Units[0] != [2]uint64{3, 9} || g.Reason != "r\x00\n" {
		t.Errorf("grant: %+v", g)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, Path(dir, "birch"): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: mode %v (%v), want %v", path, st.Mode(), err, want)
		}
	}
	var none *Log
	none.Record(Record{})
	if none.Lost() != 0 || none.Close() != nil {
		t.Error("a log that is not there does something")
	}
}

func TestATornLineDamagesNoOther(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	l.Record(Record{Kind: "grant"})
	l.Close()
	whole, err := os.ReadFile(Path(dir, "birch"))
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(whole) {
		if err := os.WriteFile(Path(dir, "birch"), whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		before, torn := read(t, Path(dir, "birch"))
		open(t, dir, Options{}).Close()
		after, still := read(t, Path(dir, "birch"))
		// Only the newline can be missing from the last line: then it becomes
		// a record again.
		if n := len(after) - len(before); n < 2 || n > 3 || still > torn {
			t.Fatalf("cut at %d: %s (%d torn), then %s (%d)", cut, kinds(before), torn, kinds(after), still)
		}
	}
}

func TestRotationBoundsWhatIsKept(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{MaxBytes: 1000, Keep: 2})
	const n = 100
	for i := range n {
		l.Record(Record{Kind: "grant", N: i})
	}
	l.Close()
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(files) != 3 {
		t.Fatalf("files %v", files)
	}
	last := uint64(0)
	for _, name := range []string{"birch.2", "birch.1", "birch"} {
		rs, damaged := read(t, Path(dir, name))
		if damaged != 0 || len(rs) == 0 {
			t.Fatalf("%s: %d records, %d damaged", name, len(rs), damaged)
		}
		for _, r := range rs {
			if last != 0 && r.Seq != last+1 {
				t.Fatalf("%s: number %d after %d", name, r.Seq, last)
			}
			last = r.Seq
		}
		if st, _ := os.Stat(Path(dir, name)); st.Size() > 1200 {
			t.Errorf("%s has %d bytes", name, st.Size())
		}
	}
	if last != n+2 {
		t.Errorf("the last number is %d, want %d", last, n+2)
	}
}

// The log's goroutine waits in Failed, as it does on a disk that hangs.
func TestRecordNeverWaitsAndLossesAreRecorded(t *testing.T) {
	dir := t.TempDir()
	entered, leave := make(chan struct{}), make(chan struct{})
	l := open(t, dir, Options{Queue: 4, MaxBytes: 1, Failed: func(error) {
		close(entered)
		<-leave
	}})
	// Rotation after the first record fails: a directory is in the way.
	if err := os.Mkdir(Path(dir, "birch.8"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(Path(dir, "birch.8"), "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.Record(Record{Kind: "grant"})
	<-entered
	for range 10 {
		l.Record(Record{Kind: "return"})
	}
	if got := l.Lost(); got < 6 {
		t.Errorf("%d lost with a queue of 4 that nobody empties", got)
	}
	if err := os.RemoveAll(Path(dir, "birch.8")); err != nil {
		t.Fatal(err)
	}
	close(leave)
	l.Close()
	lost, kept := 0, 0
	files, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	for _, f := range files {
		rs, _ := read(t, f)
		for _, r := range rs {
			switch r.Kind {
			case KindLost:
				lost += r.N
			case "grant", "return":
				kept++
			}
		}
	}
	if uint64(lost) != l.Lost() || lost+kept != 11 {
		t.Errorf("%d records kept, %d recorded as lost, %d lost, of 11", kept, lost, l.Lost())
	}
}

func TestLargeRecordsAreSplit(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	big := make([][2]uint64, 2*maxUnits+1)
	for i := range big {
		big[i] = [2]uint64{1<<32 - 1, 1<<48 - 1}
	}
	l.Record(Record{Kind: "grant", Units: big, Reason: strings.Repeat("\x01", 8<<10)})
	l.Close()
	rs, damaged := read(t, Path(dir, "birch"))
	n := 0
	for _, r := range rs {
		n += len(r.Units)
	}
	if n != len(big) || damaged != 0 {
		t.Errorf("%d units of %d, %d lines too long", n, len(big), damaged)
	}
}

func TestFollowGoesOnAcrossRotation(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got, done := make(chan Record, 64), make(chan error, 1)
	go func() {
		_, err := Follow(ctx, Path(dir, "birch"), func(r Record) error { got <- r; return nil })
		done <- err
	}()
	l := open(t, dir, Options{MaxBytes: 400})
	for i := range 8 { // one at a time, so that no file is put aside twice between two looks
		l.Record(Record{Kind: "grant", N: i + 1})
		for r := range got {
			if r.Kind == "grant" {
				if r.N != i+1 {
					t.Fatalf("record %d after %d", r.N, i)
				}
				break
			}
		}
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) < 2 {
		t.Fatalf("nothing was rotated: %v", files)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	stop := errors.New("stop")
	if _, err := Follow(t.Context(), Path(dir, "birch"), func(Record) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

func TestOpenSaysWhichSettingIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(file, "x"), "birch", Options{}); err == nil || !strings.Contains(err.Error(), "audit.dir") {
		t.Error(err)
	}
}

func TestScanFindsRecordsAmongRubbish(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var file bytes.Buffer
		want, rubbish := 0, 0
		for i := range rapid.IntRange(0, 20).Draw(t, "lines") {
			if rapid.Bool().Draw(t, "record") {
				line, _ := json.Marshal(Record{V: version, Seq: uint64(i + 1), Kind: "grant"})
				fmt.Fprintf(&file, "%s\n", line)
				want++
				continue
			}
			n := rapid.SampledFrom([]int{1, 100, 64 << 10, MaxLine, MaxLine + 1, MaxLine + 2}).Draw(t, "bytes")
			file.WriteString(strings.Repeat("{", n) + "\n")
			rubbish++
		}
		got := 0
		damaged, err := Scan(&file, func(Record) error { got++; return nil })
		if got != want || damaged != rubbish || err != nil {
			t.Fatalf("%d records and %d others, want %d and %d (%v)", got, damaged, want, rubbish, err)
		}
	})
}

func FuzzScan(f *testing.F) {
	line, _ := json.Marshal(Record{V: version, Seq: 1, Kind: "grant", Units: [][2]uint64{{1, 2}}})
	f.Add(append(line, '\n'))
	f.Add(line)
	f.Add([]byte("{}\n[1\n\x00\xff\n\r\n" + string(line) + "\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		n := 0
		damaged, err := Scan(bytes.NewReader(raw), func(r Record) error {
			n++
			b, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Parse(b); err != nil && len(b) <= MaxLine {
				t.Fatalf("what was read is not a record when written again: %v", err)
			}
			return nil
		})
		if lines := bytes.Count(raw, []byte("\n")); err != nil || n > lines || n+damaged > lines+1 {
			t.Fatalf("%d records and %d damaged in %d lines: %v", n, damaged, lines, err)
		}
	})
}
