package jinja

import (
	"slices"
)

// statements parses up to one of the ending tags, whose name it returns, or
// to the end of the template if there are none.
func (p *parser) statements(until []string) (body []node, end string, err error) {
	leave, err := p.enter()
	if err != nil {
		return nil, "", err
	}
	defer leave()
	for {
		switch t := p.next(); t.kind {
		case tokEOF:
			if until != nil {
				return nil, "", p.fail("expected the tag %q, found the end of the template", until[len(until)-1])
			}
			return body, "", nil
		case tokData:
			body = append(body, data{t.text})
		case tokVarBegin:
			x, err := p.tuple("}}")
			if err == nil {
				err = p.expect(tokVarEnd, "}}")
			}
			if err != nil {
				return nil, "", err
			}
			body = append(body, output{x, t.line})
		case tokBlockBegin:
			tag, err := p.expectName()
			if err != nil {
				return nil, "", err
			}
			if slices.Contains(until, tag) {
				return body, tag, nil
			}
			n, err := p.statement(tag, t.line)
			if err != nil {
				return nil, "", err
			}
			body = append(body, n)
		default:
			return nil, "", p.fail("unexpected %q", t.text)
		}
	}
}

// block parses the rest of a tag and a body that ends with the tag end.
func (p *parser) block(end string) ([]node, error) {
	if err := p.endTag(); err != nil {
		return nil, err
	}
	body, _, err := p.statements([]string{end})
	if err == nil {
		err = p.endTag()
	}
	return body, err
}

func (p *parser) endTag() error { return p.expect(tokBlockEnd, "%}") }

// statement parses the tag whose name has been consumed.
func (p *parser) statement(tag string, line int) (node, error) {
	switch tag {
	case "if":
		return p.ifStatement(line)
	case "for":
		return p.forStatement(line)
	case "set":
		return p.setStatement(line)
	case "macro":
		return p.macroStatement()
	case "with":
		return p.withStatement(line)
	case "filter":
		f, err := p.filterChain(nil)
		if err != nil {
			return nil, err
		}
		body, err := p.block("endfilter")
		return filterNode{f, body, line}, err
	case "generation":
		body, err := p.block("endgeneration")
		return scoped{body}, err
	case "break", "continue":
		if p.loops == 0 {
			return nil, p.fail("%s outside a loop", tag)
		}
		sig := breakLoop
		if tag == "continue" {
			sig = continueLoop
		}
		return loopControl{sig}, p.endTag()
	}
	return nil, p.fail("the tag %q is not supported here", tag)
}

// tuple is jinja2's parse_tuple: an expression, or several with commas.
func (p *parser) tuple(end string) (expr, error) {
	x, err := p.expression()
	if err != nil || !p.is(tokOp, ",") {
		return x, err
	}
	items := []expr{x}
	for p.op(",") {
		if t := p.peek(); t.text == end && (t.kind == tokBlockEnd || t.kind == tokVarEnd) {
			break
		}
		if x, err = p.expression(); err != nil {
			return nil, err
		}
		items = append(items, x)
	}
	return listLit{items, true}, nil
}

func (p *parser) ifStatement(line int) (node, error) {
	n := ifNode{line: line}
	for {
		x, err := p.tuple("%}")
		if err == nil {
			err = p.endTag()
		}
		if err != nil {
			return nil, err
		}
		body, end, err := p.statements([]string{"elif", "else", "endif"})
		if err != nil {
			return nil, err
		}
		n.tests, n.bodies = append(n.tests, x), append(n.bodies, body)
		switch end {
		case "elif":
			continue
		case "else":
			body, err := p.block("endif")
			n.bodies = append(n.bodies, body)
			return n, err
		}
		return n, p.endTag()
	}
}

// targets parses what is assigned to: names, in set also attributes of
// namespaces.
func (p *parser) targets(namespaces bool) (expr, error) {
	var items []expr
	tuple := false
	for {
		if len(items) > 0 && (p.is(tokName, "in") || p.is(tokOp, "=")) {
			break // a trailing comma
		}
		var x expr
		var err error
		if p.op("(") {
			leave, enterErr := p.enter()
			if enterErr != nil {
				return nil, enterErr
			}
			x, err = p.targets(namespaces)
			leave()
			if err == nil {
				err = p.expect(tokOp, ")")
			}
		} else {
			x, err = p.target(namespaces)
		}
		if err != nil {
			return nil, err
		}
		items = append(items, x)
		if !p.op(",") {
			break
		}
		tuple = true
	}
	if !tuple {
		return items[0], nil
	}
	return listLit{items, true}, nil
}

func (p *parser) target(namespaces bool) (expr, error) {
	n, err := p.expectName()
	if err != nil {
		return nil, err
	}
	if namespaces && p.op(".") {
		attr, err := p.expectName()
		return nsRef{n, attr}, err
	}
	return name{n}, nil
}

func (p *parser) forStatement(line int) (node, error) {
	n := forNode{line: line}
	var err error
	if n.target, err = p.targets(false); err != nil {
		return nil, err
	}
	if err = p.expect(tokName, "in"); err != nil {
		return nil, err
	}
	if n.iter, err = p.forIterable(); err != nil {
		return nil, err
	}
	if p.keyword("if") {
		if n.cond, err = p.expression(); err != nil {
			return nil, err
		}
	}
	n.recursive = p.keyword("recursive")
	if err = p.endTag(); err != nil {
		return nil, err
	}
	p.loops++
	body, end, err := p.statements([]string{"endfor", "else"})
	p.loops--
	if err != nil {
		return nil, err
	}
	n.body = body
	if end == "else" {
		n.otherwise, err = p.block("endfor")
		return n, err
	}
	return n, p.endTag()
}

// forIterable parses without the conditional, whose "if" filters the loop.
func (p *parser) forIterable() (expr, error) {
	x, err := p.or()
	if err != nil || !p.is(tokOp, ",") {
		return x, err
	}
	items := []expr{x}
	for p.op(",") && p.peek().kind != tokBlockEnd {
		if x, err = p.or(); err != nil {
			return nil, err
		}
		items = append(items, x)
	}
	return listLit{items, true}, nil
}

func (p *parser) setStatement(line int) (node, error) {
	n := setNode{line: line}
	var err error
	if n.target, err = p.targets(true); err != nil {
		return nil, err
	}
	if p.op("=") {
		if n.value, err = p.tuple("%}"); err != nil {
			return nil, err
		}
		return n, p.endTag()
	}
	if p.op("|") {
		if n.filter, err = p.filterChain(nil); err != nil {
			return nil, err
		}
	}
	n.body, err = p.block("endset")
	return n, err
}

// filterChain parses filters applied to a block: a, then b, for "a | b".
func (p *parser) filterChain(chain []*filter) ([]*filter, error) {
	for {
		f, err := p.filter(nil)
		if err != nil {
			return nil, err
		}
		chain = append(chain, f)
		if !p.op("|") {
			return chain, nil
		}
	}
}

func (p *parser) macroStatement() (node, error) {
	var n macroNode
	var err error
	if n.name, err = p.expectName(); err != nil {
		return nil, err
	}
	if err = p.expect(tokOp, "("); err != nil {
		return nil, err
	}
	for !p.op(")") {
		if len(n.params) > 0 {
			if err = p.expect(tokOp, ","); err != nil {
				return nil, err
			}
			if p.op(")") {
				break
			}
		}
		param, err := p.expectName()
		if err != nil {
			return nil, err
		}
		n.params = append(n.params, param)
		if p.op("=") {
			x, err := p.expression()
			if err != nil {
				return nil, err
			}
			n.defaults = append(n.defaults, x)
		} else if len(n.defaults) > 0 {
			return nil, p.fail("parameter %q without a default follows one with", param)
		}
	}
	loops := p.loops
	p.loops = 0
	n.body, err = p.block("endmacro")
	p.loops = loops
	return n, err
}

func (p *parser) withStatement(line int) (node, error) {
	n := withNode{line: line}
	for p.peek().kind != tokBlockEnd {
		if len(n.targets) > 0 {
			if err := p.expect(tokOp, ","); err != nil {
				return nil, err
			}
		}
		target, err := p.target(false)
		if err == nil {
			err = p.expect(tokOp, "=")
		}
		if err != nil {
			return nil, err
		}
		x, err := p.expression()
		if err != nil {
			return nil, err
		}
		n.targets, n.values = append(n.targets, target), append(n.values, x)
	}
	var err error
	n.body, err = p.block("endwith")
	return n, err
}
