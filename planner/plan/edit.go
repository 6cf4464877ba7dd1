package plan

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kvlend/kvlend/configs"
)

// Change is one setting with a new value.
type Change struct {
	Path   string `json:"path"` // such as models[1].floor
	Old    string `json:"old"`
	New    string `json:"new"`
	Reason string `json:"reason"`
}

// errNoPlace says that a value cannot be replaced where it stands: it is an
// alias, a merged key or a form that the editor does not know.
var errNoPlace = errors.New("no place to edit")

// rewrite applies changes to a configuration's text, each with a comment above
// it, and leaves the rest as it is. Text that cannot be edited in place is
// printed anew first. The result is proven: it parses to want.
func rewrite(text []byte, name string, changes []Change, want *configs.Config) ([]byte, error) {
	if out, err := edit(text, changes); err == nil && parsesTo(out, name, want) {
		return out, nil
	}
	base, err := configs.Parse(text, name)
	if err != nil {
		return nil, err
	}
	plain, err := base.Marshal()
	if err != nil {
		return nil, err
	}
	out, err := edit(plain, changes)
	if err != nil {
		return nil, fmt.Errorf("change the configuration: %w", err)
	}
	if !parsesTo(out, name, want) {
		return nil, errors.New("BUG: the changed configuration is not the recommended one")
	}
	return out, nil
}

func parsesTo(text []byte, name string, want *configs.Config) bool {
	got, err := configs.Parse(text, name)
	return err == nil && got.Hash() == want.Hash()
}

// patch replaces runes of a line, or adds a line below it.
type patch struct {
	line, column int // from 0
	remove       int // runes; -1: add a line below, indented by column
	text         string
	comment      string
}

func edit(text []byte, changes []Change) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil, errNoPlace
	}
	lines := strings.Split(string(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))), "\n")
	var patches []patch
	for _, c := range changes {
		p, err := locate(doc.Content[0], lines, c)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Path, err)
		}
		p.comment = fmt.Sprintf("plan: was %s; %s", c.Old, c.Reason)
		patches = append(patches, p)
	}
	// From the end, so that places before a patch stay where they are.
	slices.SortStableFunc(patches, func(a, b patch) int {
		return cmp.Or(b.line-a.line, b.column-a.column)
	})
	for i := 0; i < len(patches); {
		j := i
		for j < len(patches) && patches[j].line == patches[i].line {
			j++
		}
		lines = applyLine(lines, patches[i:j])
		i = j
	}
	return []byte(strings.Join(lines, "\n")), nil
}

// applyLine applies the patches of one line, rightmost first.
func applyLine(lines []string, patches []patch) []string {
	at := patches[0].line
	line := []rune(lines[at])
	var above, below []string
	for _, p := range patches {
		if p.remove < 0 {
			pad := strings.Repeat(" ", p.column)
			below = append(append(comments(pad, p.comment), pad+p.text), below...)
			continue
		}
		line = slices.Replace(line, p.column, p.column+p.remove, []rune(p.text)...)
		above = append(comments(indent(lines[at]), p.comment), above...)
	}
	return slices.Concat(lines[:at], above, []string{string(line)}, below, lines[at+1:])
}

func indent(line string) string { return line[:len(line)-len(strings.TrimLeft(line, " "))] }

// commentWidth is where comments wrap.
const commentWidth = 96

func comments(pad, text string) []string {
	var out []string
	line := pad + "#"
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > commentWidth && line != pad+"#" {
			out = append(out, line)
			line = pad + "#  "
		}
		line += " " + word
	}
	return append(out, line)
}

// locate finds where a change goes: the scalar that it replaces, or the nearest
// mapping that lacks the key.
func locate(node *yaml.Node, lines []string, c Change) (patch, error) {
	keys := splitPath(c.Path)
	for i, key := range keys {
		var next *yaml.Node
		switch node.Kind {
		case yaml.MappingNode:
			for k := 0; k+1 < len(node.Content); k += 2 {
				if node.Content[k].Value == key {
					next = node.Content[k+1]
				}
			}
			if next == nil {
				return insert(node, lines, keys[i:], c.New)
			}
		case yaml.SequenceNode:
			n, err := strconv.Atoi(key)
			if err != nil || n >= len(node.Content) {
				return patch{}, errNoPlace
			}
			next = node.Content[n]
		default:
			return patch{}, errNoPlace
		}
		node = next
	}
	return replace(node, lines, c.New)
}

// splitPath turns models[1].lsc.buffers into models, 1, lsc, buffers.
func splitPath(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
}

// replace finds a scalar in the text; it must stand there as it is, in quotes
// perhaps.
func replace(node *yaml.Node, lines []string, text string) (patch, error) {
	if node.Kind != yaml.ScalarNode || node.Line < 1 || node.Line > len(lines) {
		return patch{}, errNoPlace
	}
	line := []rune(lines[node.Line-1])
	from := node.Column - 1
	for _, form := range []string{node.Value, `"` + node.Value + `"`, "'" + node.Value + "'"} {
		if n := len([]rune(form)); n > 0 && from+n <= len(line) && string(line[from:from+n]) == form {
			return patch{line: node.Line - 1, column: from, remove: n, text: text}, nil
		}
	}
	return patch{}, errNoPlace
}

// insert adds keys, nested in braces beyond the first, to a mapping.
func insert(node *yaml.Node, lines []string, keys []string, value string) (patch, error) {
	text := keys[len(keys)-1] + ": " + value
	for i := len(keys) - 2; i >= 0; i-- {
		text = keys[i] + ": {" + text + "}"
	}
	if node.Style&yaml.FlowStyle != 0 {
		line := []rune(lines[node.Line-1])
		if node.Column > len(line) || line[node.Column-1] != '{' {
			return patch{}, errNoPlace
		}
		if len(node.Content) > 0 {
			text += ", "
		}
		return patch{line: node.Line - 1, column: node.Column, text: text}, nil
	}
	for k := 0; k+1 < len(node.Content); k += 2 {
		key, v := node.Content[k], node.Content[k+1]
		if v.Kind == yaml.ScalarNode && v.Line == key.Line && v.Style&(yaml.LiteralStyle|yaml.FoldedStyle) == 0 {
			return patch{line: key.Line - 1, column: key.Column - 1, remove: -1, text: text}, nil
		}
	}
	return patch{}, errNoPlace
}
