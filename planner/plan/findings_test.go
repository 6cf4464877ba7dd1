package plan

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func has(p *Plan, s Severity, code, path, value string) bool {
	return slices.ContainsFunc(p.Findings, func(f Finding) bool {
		return f.Severity == s && f.Code == code && f.Path == path && f.Value == value
	})
}

// server is a configuration that has no warnings. Tests change a line of it.
const server = `
version: 1
devices:
  - {name: g0, kind: H100-SXM}
  - {name: g1, kind: H100-SXM}
links:
  - {from: g0, to: g1, bandwidth: 200GB/s}
models:
  - name: m
    source: catalog:Qwen3-14B
    role: master
    device: g0
    arena: 40GiB
    max_batch_tokens: 2048
  - name: w
    source: catalog:Qwen3-8B
    role: worker
    device: g1
    arena: 50GiB
    floor: 10GiB
`

const second = `  - {name: m2, source: "catalog:Qwen3-32B", role: master, device: g2, arena: 4GiB}
`

func TestServerIsClean(t *testing.T) {
	if p := mustPlan(t, server); !p.Fits || p.Count(Warning) > 0 {
		t.Fatalf("findings %v", p.Findings)
	}
}

func TestFindings(t *testing.T) {
	for _, c := range []struct {
		name, old, new string
		severity       Severity
		code           string
		path, value    string
		text           string
	}{
		{"arena too large", "arena: 50GiB", "arena: 70GiB", Error, codeFit, "devices[1].memory", "74.5 GiB", "too much"},
		{"weights too large", "catalog:Qwen3-14B", "catalog:Llama-3.1-70B", Error, codeFit, "devices[0].memory", "74.5 GiB", "a larger GPU"},
		{"floor", "floor: 10GiB", "floor: 51199MiB", Warning, codeFloor, "models[1].floor", "51199MiB", "a floor of at most"},
		{"floor of all workers", "floor: 10GiB", "floor: 51199MiB", Error, codeLending, "models[0].borrow_from", "", "single block"},
		{"unit", "arena: 50GiB\n    floor: 10GiB", "arena: 20MiB", Warning, codeUnit, "models[1].arena", "20MiB", "larger than all of it"},
		{"few units", "arena: 50GiB\n    floor: 10GiB", "arena: 100MiB", Note, codeCoarse, "models[1].arena", "100MiB", "only 4 units"},
		{"stuck", "arena: 50GiB\n    floor: 10GiB", "arena: 100MiB", Warning, codeStuck, "models[1].arena", "100MiB", "10 MiB of 100 MiB idle"},
		{"odd block", "floor: 10GiB", "floor: 10GiB\n    block_tokens: 112", Warning, codeBlock, "models[1].block_tokens", "112", "no powers of two"},
		{"lcm", "catalog:Qwen3-8B", "catalog:GPT-OSS-120B", Note, codeShape, "models[1].source", "catalog:GPT-OSS-120B", "SWA"},
		{"lsc", "arena: 40GiB", "arena: 512MiB", Warning, codeLSC, "models[0].arena", "512MiB", "stay unused"},
		{"slow link", "200GB/s", "1GB/s", Warning, codeLink, "models[0].max_batch_tokens", "2048", "wait for the link"},
		{"fast link", "200GB/s", "900GB/s", Warning, codeLinkSpeed, "links[0].bandwidth", "900GB/s", "450 GB/s"},
		{"no link", "links:\n  - {from: g0, to: g1, bandwidth: 200GB/s}\n", "", Note, codeLinkAssumed, "links", "", "NVLink"},
		{"decoding", "", "", Note, codeDecode, "models[0]", "", "one new token"},
		{"kind", "g0, kind: H100-SXM", "g0, kind: H1000", Note, codeKind, "devices[0].kind", "H1000", "not a GPU"},
		{"speed", "g0, kind: H100-SXM", "g0, kind: H1000", Note, codeLinkUnknown, "models[0].device", "g0", "H1000"},
		{"no lender", "role: worker\n    device: g1\n    arena: 50GiB\n    floor: 10GiB", "role: local\n    device: g1\n    arena: 50GiB", Warning, codeNoLender, "models[0].role", "master", "no worker"},
		{"no borrower", "role: master", "role: local", Warning, codeNoBorrower, "models[1].role", "worker", "no master"},
		{"own device", "device: g1\n    arena: 50GiB", "device: g0\n    arena: 11GiB", Warning, codeDevice, "models[0].device", "g0", "its own device"},
		{"trained", "", "", Note, codeTrained, "models[0].arena", "40GiB", "not longer ones"},
		{"elements", "floor: 10GiB", "floor: 10GiB\n    kv_dtype: f32", Note, codeMixedElement, "models[1].kv_dtype", "f32", "bytes"},
		{"padding", "floor: 10GiB\n", "floor: 10GiB\nlending: {unit: {policy: padded, max_waste: 30%}}\n", Note, codeWaste, "lending.unit.max_waste", "30%", "padding loses"},
		{"short arena", "arena: 50GiB\n    floor: 10GiB", "arena: 4GiB", Note, codeOverTrained, "models[1].arena", "4GiB", "less than the 40960"},
		{"quotas", "floor: 10GiB\n", "floor: 10GiB\n    shares: [{master: m, quota: 30%, weight: 2}, {master: m2, quota: 20%}]\n" + second, Warning, codeShares, "models[1].shares", "", "never lent"},
		{"weights", "floor: 10GiB\n", "floor: 10GiB\n    shares: [{master: m, weight: 2}]\n" + second, Note, codeShares, "models[1].shares", "", "unequal weights"},
		{"shared", "floor: 10GiB\n", "floor: 10GiB\n" + second, Note, codeShared, "models[1].shares", "", "together they get"},
		{"all", "floor: 10GiB\n", "floor: 10GiB\n  - {name: m2, source: \"catalog:Qwen3-30B-A3B\", role: master, device: g2, arena: 4GiB}\n  - {name: m3, source: \"catalog:Qwen3-32B\", role: master, device: g2, arena: 4GiB}\n", Warning, codeLCM, "lending.unit.policy", "lcm", "few factors"},
	} {
		text := strings.Replace(server, c.old, c.new, 1)
		if strings.Contains(text, "device: g2") {
			text = strings.Replace(text, "links:", "  - {name: g2, kind: H200-SXM}\nlinks:", 1)
		}
		p := mustPlan(t, text)
		i := slices.IndexFunc(p.Findings, func(f Finding) bool { return f.Severity == c.severity && f.Code == c.code && f.Path == c.path })
		if i < 0 || p.Findings[i].Value != c.value || !strings.Contains(p.Findings[i].String(), c.text) {
			t.Errorf("%s: want %s %s of %s %s with %q, got %v", c.name, c.severity, c.code, c.path, c.value, c.text, p.Findings)
		}
		if p.Fits != (p.Count(Error) == 0) {
			t.Errorf("%s: fits %v with %d errors", c.name, p.Fits, p.Count(Error))
		}
	}
}

// TestFindingsAreDocumented: docs/planning.md has every code.
func TestFindingsAreDocumented(t *testing.T) {
	source, err := os.ReadFile("findings.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/planning.md")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`(?m)^\tcode\w+\s+= "([a-z-]+)"`).FindAllSubmatch(source, -1)
	if len(codes) < 20 {
		t.Fatalf("only %d codes found: the pattern is wrong", len(codes))
	}
	for _, c := range codes {
		if !strings.Contains(string(doc), "`"+string(c[1])+"`") {
			t.Errorf("docs/planning.md does not explain %s", c[1])
		}
	}
}
