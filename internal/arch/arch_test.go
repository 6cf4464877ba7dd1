package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	module      = "github.com/kvlend/kvlend"
	maxFile     = 800 // lines
	maxFunction = 80  // lines
)

// layers says what the packages of each top-level directory may import of
// kvlend's own. Imports point one way (DESIGN section 9): a directory that is
// not listed here fails the test, so that every new one is a decision.
var layers = map[string][]string{
	"configs":     {"elastic"},
	"elastic":     {},
	"nvlink":      {},
	"engine":      {},
	"prefix":      {},
	"coordinator": {"elastic"},
	"lsc":         {"nvlink"},
	"scheduler":   {"engine", "prefix"},
	"overflow":    {"nvlink", "prefix"},
	"planner":     {"configs", "elastic", "nvlink", "engine", "lsc", "prefix", "scheduler", "overflow", "coordinator", "master", "worker", "internal"},
	"master":      {"overflow", "elastic", "nvlink", "engine", "lsc", "prefix", "scheduler", "coordinator"},
	"worker":      {"elastic", "nvlink", "engine", "prefix", "scheduler", "coordinator"},
	"api":         {"coordinator", "engine"},
	"bench":       {"overflow", "planner", "configs", "elastic", "nvlink", "engine", "lsc", "prefix", "scheduler", "coordinator", "api", "internal", "master", "worker"},
	"internal":    {"overflow", "configs", "planner", "elastic", "nvlink", "engine", "prefix", "scheduler", "coordinator"},
	"cmd":         {"overflow", "configs", "elastic", "nvlink", "engine", "lsc", "prefix", "scheduler", "coordinator", "api", "master", "worker", "planner", "bench", "internal"},
}

type sourceFile struct {
	path string // slash-separated, from the repository's root
	pkg  string // directory
	file *ast.File
	fset *token.FileSet
}

var generated = regexp.MustCompile(`^// Code generated .* DO NOT EDIT\.$`)

func (s sourceFile) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s sourceFile) isGenerated() bool {
	for _, g := range s.file.Comments {
		for _, c := range g.List {
			if generated.MatchString(c.Text) {
				return true
			}
		}
	}
	return false
}

func load(t *testing.T) []sourceFile {
	t.Helper()
	root := filepath.Join("..", "..")
	var out []sourceFile
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			// tools/ holds modules of their own.
			if rel == "tools" || rel == ".git" || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		out = append(out, sourceFile{rel, filepath.ToSlash(filepath.Dir(rel)), f, fset})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("only %d Go files found: the walk looks in the wrong place", len(out))
	}
	return out
}

func top(dir string) string { return strings.SplitN(dir, "/", 2)[0] }

func TestImportsPointOneWay(t *testing.T) {
	for _, s := range load(t) {
		if s.isTest() {
			continue // tests may reach across, e.g. for a reference
		}
		from := top(s.pkg)
		allowed, ok := layers[from]
		if !ok {
			t.Errorf("%s: directory %q has no entry in the layer table", s.path, from)
			continue
		}
		for _, im := range s.file.Imports {
			p := strings.Trim(im.Path.Value, `"`)
			if !strings.HasPrefix(p, module+"/") {
				continue
			}
			to := top(strings.TrimPrefix(p, module+"/"))
			if to == from || contains(allowed, to) {
				continue
			}
			t.Errorf("%s imports %s: %s may import only %v", s.path, p, from, allowed)
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	docs := map[string]bool{}
	for _, s := range load(t) {
		if s.isTest() {
			continue
		}
		text := strings.TrimSpace(s.file.Doc.Text())
		want := "Package " + s.file.Name.Name + " "
		if s.file.Name.Name == "main" {
			want = "Command "
		}
		docs[s.pkg] = docs[s.pkg] || strings.HasPrefix(text, want)
	}
	for pkg, ok := range docs {
		if !ok {
			t.Errorf("%s has no package comment that begins with \"Package ...\" (\"Command ...\" for a main)", pkg)
		}
	}
}

func TestSizeCaps(t *testing.T) {
	for _, s := range load(t) {
		if s.isGenerated() {
			continue
		}
		if n := s.fset.File(s.file.Pos()).LineCount(); n > maxFile {
			t.Errorf("%s has %d lines, the cap is %d", s.path, n, maxFile)
		}
		if s.isTest() {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			lines := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			if lines > maxFunction {
				t.Errorf("%s: function %s has %d lines, the cap is %d", s.path, f.Name.Name, lines, maxFunction)
			}
		}
	}
}

func TestUnsafeStandsApart(t *testing.T) {
	for _, s := range load(t) {
		if s.isGenerated() || strings.HasSuffix(s.path, "_unsafe.go") {
			continue
		}
		for _, im := range s.file.Imports {
			if im.Path.Value == `"unsafe"` {
				t.Errorf("%s imports unsafe: only files named *_unsafe.go may", s.path)
			}
		}
	}
}

func TestOnlyMainExits(t *testing.T) {
	forbidden := map[string]map[string]bool{
		"os":  {"Exit": true},
		"log": {"Fatal": true, "Fatalf": true, "Fatalln": true},
	}
	for _, s := range load(t) {
		if top(s.pkg) == "cmd" || s.isTest() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && forbidden[x.Name][sel.Sel.Name] {
				t.Errorf("%s calls %s.%s: libraries return errors, only main exits", s.path, x.Name, sel.Sel.Name)
			}
			return true
		})
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
