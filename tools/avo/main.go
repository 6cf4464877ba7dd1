// Command avo generates the assembly of packages engine/kernels and
// bench/roofline: one .s file and its Go stubs per instruction set and group
// of kernels. Run it with
// go generate in engine/kernels; tools/gen-check compares its output with
// what is committed.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	if err := generate(*root); err != nil {
		fmt.Fprintln(os.Stderr, "avo:", err)
		os.Exit(1)
	}
}

// file is one generated pair of files.
type file struct {
	dir, name string
	fill      func(*gen)
}

func generate(root string) error {
	files := []file{
		{"engine/kernels", "avx512_mul_amd64", func(g *gen) { g.vec = zmm; genMul(g) }},
		{"engine/kernels", "avx512_attention_amd64", func(g *gen) { g.vec = zmm; genAttention(g) }},
		{"engine/kernels", "avx512_elementwise_amd64", func(g *gen) { g.vec = zmm; genElementwise(g) }},
		{"engine/kernels", "avx2_mul_amd64", func(g *gen) { g.vec = ymm; genMul(g) }},
		{"engine/kernels", "avx2_attention_amd64", func(g *gen) { g.vec = ymm; genAttention(g) }},
		{"engine/kernels", "avx2_elementwise_amd64", func(g *gen) { g.vec = ymm; genElementwise(g) }},
		{"bench/roofline", "peak_amd64", genRoofline},
	}
	var errs []error
	for _, f := range files {
		errs = append(errs, write(root, f))
	}
	return errors.Join(errs...)
}

// write builds one file. The name's suffix _amd64 is its build constraint.
func write(root string, f file) error {
	g := &gen{Context: build.NewContext()}
	f.fill(g)
	res, err := g.Result()
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	if err := pass.Compile.Execute(res); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	cfg := printer.Config{Name: "tools/avo", Pkg: filepath.Base(f.dir)}
	for _, p := range []struct {
		ext string
		printer.Printer
	}{{".s", printer.NewGoAsm(cfg)}, {".go", printer.NewStubs(cfg)}} {
		text, err := p.Print(res)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if err := os.WriteFile(filepath.Join(root, f.dir, f.name+p.ext), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// gen is a file under construction for one vector width.
type gen struct {
	*build.Context
	vec    vec
	labels int
}

// fn starts a function. Its pointers do not outlive the call.
func (g *gen) fn(name, signature, doc string) {
	g.labels = 0
	g.Function(g.vec.prefix + name)
	g.Attributes(attr.NOSPLIT)
	g.Pragma("noescape")
	g.SignatureExpr("func" + signature)
	g.Doc(g.vec.prefix + name + " " + doc)
}

// label returns a name that is new in the function.
func (g *gen) label(s string) string {
	g.labels++
	return fmt.Sprintf("%s%d", s, g.labels)
}
