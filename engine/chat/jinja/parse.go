package jinja

import (
	"fmt"
	"slices"
	"strconv"
)

// parser is a recursive-descent parser after jinja2.parser.
type parser struct {
	tokens []token
	pos    int
	depth  int
	loops  int // enclosing for bodies
}

// maxNesting bounds the recursion of the parser.
const maxNesting = 200

func (p *parser) peek() token { return p.tokens[p.pos] }

func (p *parser) look() token { return p.tokens[min(p.pos+1, len(p.tokens)-1)] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	if t.kind != tokEOF {
		p.pos++
	}
	return t
}

func (p *parser) is(kind tokenKind, text string) bool {
	t := p.peek()
	return t.kind == kind && t.text == text
}

func (p *parser) skip(kind tokenKind, text string) bool {
	ok := p.is(kind, text)
	if ok {
		p.pos++
	}
	return ok
}

func (p *parser) op(text string) bool      { return p.skip(tokOp, text) }
func (p *parser) keyword(text string) bool { return p.skip(tokName, text) }

func (p *parser) fail(format string, args ...any) error {
	return errorAt(p.peek().line, fmt.Errorf(format, args...))
}

func (p *parser) expect(kind tokenKind, text string) error {
	if p.skip(kind, text) {
		return nil
	}
	return p.fail("expected %q, found %q", text, p.peek().text)
}

func (p *parser) expectName() (string, error) {
	if t := p.peek(); t.kind == tokName {
		p.pos++
		return t.text, nil
	}
	return "", p.fail("expected a name, found %q", p.peek().text)
}

// enter guards recursion; call the result when done.
func (p *parser) enter() (leave func(), err error) {
	p.depth++
	if p.depth > maxNesting {
		return nil, p.fail("nested more than %d deep", maxNesting)
	}
	return func() { p.depth-- }, nil
}

// expression is jinja2's parse_expression: with the conditional.
func (p *parser) expression() (expr, error) {
	leave, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	x, err := p.or()
	if err != nil {
		return nil, err
	}
	for p.keyword("if") {
		c := conditional{yes: x}
		if c.test, err = p.or(); err != nil {
			return nil, err
		}
		if p.keyword("else") {
			if c.no, err = p.expression(); err != nil {
				return nil, err
			}
		}
		x = c
	}
	return x, nil
}

// chain parses left-associative operators between operands.
func (p *parser) chain(kind tokenKind, ops []string, operand func() (expr, error)) (expr, error) {
	x, err := operand()
	for err == nil && p.peek().kind == kind && slices.Contains(ops, p.peek().text) {
		b := binary{op: p.next().text, a: x}
		b.b, err = operand()
		x = b
	}
	return x, err
}

func (p *parser) or() (expr, error)  { return p.chain(tokName, []string{"or"}, p.and) }
func (p *parser) and() (expr, error) { return p.chain(tokName, []string{"and"}, p.not) }

func (p *parser) not() (expr, error) {
	if !p.keyword("not") {
		return p.comparison()
	}
	leave, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	x, err := p.not()
	return unary{"not", x}, err
}

func (p *parser) comparison() (expr, error) {
	first, err := p.sum()
	c := compare{first: first}
	for err == nil {
		var op string
		switch t := p.peek(); {
		case t.kind == tokOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			op = t.text
			p.pos++
		case p.keyword("in"):
			op = "in"
		case p.is(tokName, "not") && p.look().kind == tokName && p.look().text == "in":
			op = "not in"
			p.pos += 2
		default:
			if len(c.ops) == 0 {
				return first, nil
			}
			return c, nil
		}
		var x expr
		x, err = p.sum()
		c.ops, c.rest = append(c.ops, op), append(c.rest, x)
	}
	return nil, err
}

func (p *parser) sum() (expr, error) { return p.chain(tokOp, []string{"+", "-"}, p.concat) }

func (p *parser) concat() (expr, error) { return p.chain(tokOp, []string{"~"}, p.product) }

func (p *parser) product() (expr, error) {
	return p.chain(tokOp, []string{"*", "/", "//", "%"}, p.power)
}

func (p *parser) power() (expr, error) {
	return p.chain(tokOp, []string{"**"}, func() (expr, error) { return p.unary(true) })
}

func (p *parser) unary(filters bool) (x expr, err error) {
	leave, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	switch {
	case p.op("-"):
		x, err = p.unary(false)
		x = unary{"-", x}
	case p.op("+"):
		x, err = p.unary(false)
		x = unary{"+", x}
	default:
		x, err = p.primary()
	}
	if err == nil {
		x, err = p.postfix(x)
	}
	for err == nil && filters {
		switch t := p.peek(); {
		case t.kind == tokOp && t.text == "|":
			p.pos++
			x, err = p.filter(x)
		case t.kind == tokName && t.text == "is":
			p.pos++
			x, err = p.test(x)
		case t.kind == tokOp && t.text == "(":
			x, err = p.call(x)
		default:
			return x, nil
		}
	}
	return x, err
}

func (p *parser) primary() (expr, error) {
	switch t := p.next(); {
	case t.kind == tokName:
		switch t.text {
		case "true", "True":
			return constant{true}, nil
		case "false", "False":
			return constant{false}, nil
		case "none", "None":
			return constant{nil}, nil
		}
		return name{t.text}, nil
	case t.kind == tokString:
		s := t.text
		for p.peek().kind == tokString {
			s += p.next().text
		}
		return constant{s}, nil
	case t.kind == tokInt:
		n, err := strconv.ParseInt(t.text, 0, 64)
		if err != nil {
			return nil, p.fail("integer %s is too large", t.text)
		}
		return constant{n}, nil
	case t.kind == tokFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			return nil, p.fail("number %s is too large", t.text)
		}
		return constant{f}, nil
	case t.kind == tokOp && t.text == "(":
		return p.parenthesis()
	case t.kind == tokOp && t.text == "[":
		items, err := p.items("]")
		return listLit{items: items}, err
	case t.kind == tokOp && t.text == "{":
		return p.dict()
	default:
		return nil, errorAt(t.line, fmt.Errorf("unexpected %q", t.text))
	}
}

// items parses comma-separated expressions up to the closing bracket.
func (p *parser) items(closing string) ([]expr, error) {
	var items []expr
	for !p.op(closing) {
		if len(items) > 0 {
			if err := p.expect(tokOp, ","); err != nil {
				return nil, err
			}
			if p.op(closing) {
				break
			}
		}
		x, err := p.expression()
		if err != nil {
			return nil, err
		}
		items = append(items, x)
	}
	return items, nil
}

func (p *parser) parenthesis() (expr, error) {
	from := p.pos
	items, err := p.items(")")
	if err != nil {
		return nil, err
	}
	comma := p.tokens[p.pos-2]
	if len(items) == 1 && !(comma.kind == tokOp && comma.text == "," && p.pos-2 > from) {
		return items[0], nil
	}
	return listLit{items, true}, nil
}

func (p *parser) dict() (expr, error) {
	var d dictLit
	for !p.op("}") {
		if len(d.keys) > 0 {
			if err := p.expect(tokOp, ","); err != nil {
				return nil, err
			}
			if p.op("}") {
				break
			}
		}
		k, err := p.expression()
		if err == nil {
			err = p.expect(tokOp, ":")
		}
		if err != nil {
			return nil, err
		}
		v, err := p.expression()
		if err != nil {
			return nil, err
		}
		d.keys, d.values = append(d.keys, k), append(d.values, v)
	}
	return d, nil
}

func (p *parser) postfix(x expr) (expr, error) {
	for {
		var err error
		switch {
		case p.op("."):
			t := p.next()
			switch t.kind {
			case tokName:
				x = getAttr{x, t.text}
			case tokInt:
				n, convErr := strconv.ParseInt(t.text, 0, 64)
				x, err = getItem{x, constant{n}}, convErr
			default:
				err = errorAt(t.line, fmt.Errorf("expected a name after the dot, found %q", t.text))
			}
		case p.op("["):
			x, err = p.subscript(x)
		case p.is(tokOp, "("):
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) subscript(x expr) (expr, error) {
	var parts [3]expr
	n := 0
	for !p.op("]") {
		if p.op(":") {
			if n++; n > 2 {
				return nil, p.fail("too many colons in a slice")
			}
			continue
		}
		if parts[n] != nil {
			return nil, p.fail("expected %q, found %q", "]", p.peek().text)
		}
		part, err := p.expression()
		if err != nil {
			return nil, err
		}
		parts[n] = part
	}
	if n > 0 {
		return slice{x, parts[0], parts[1], parts[2]}, nil
	}
	if parts[0] == nil {
		return nil, p.fail("empty subscript")
	}
	return getItem{x, parts[0]}, nil
}

func (p *parser) call(fn expr) (expr, error) {
	line := p.peek().line
	args, err := p.arguments()
	return call{fn, args, line}, err
}

func (p *parser) arguments() (arguments, error) {
	var a arguments
	if err := p.expect(tokOp, "("); err != nil {
		return a, err
	}
	for first := true; !p.op(")"); first = false {
		if !first {
			if err := p.expect(tokOp, ","); err != nil {
				return a, err
			}
			if p.op(")") {
				break
			}
		}
		if p.is(tokOp, "*") || p.is(tokOp, "**") {
			return a, p.fail("unpacked arguments are not supported")
		}
		if p.peek().kind == tokName && p.look().kind == tokOp && p.look().text == "=" {
			a.names = append(a.names, p.next().text)
			p.pos++
		} else if len(a.names) > 0 {
			return a, p.fail("positional argument after a keyword argument")
		}
		x, err := p.expression()
		if err != nil {
			return a, err
		}
		if len(a.names) > len(a.values) {
			a.values = append(a.values, x)
		} else {
			a.positional = append(a.positional, x)
		}
	}
	return a, nil
}

// filter parses a filter's name and arguments.
func (p *parser) filter(x expr) (*filter, error) {
	f := &filter{x: x, line: p.peek().line}
	var err error
	if f.name, err = p.expectName(); err != nil {
		return nil, err
	}
	if _, ok := filters[f.name]; !ok {
		return nil, p.fail("filter %q is not supported", f.name)
	}
	if p.is(tokOp, "(") {
		f.args, err = p.arguments()
	}
	return f, err
}

func (p *parser) test(x expr) (expr, error) {
	negated := p.keyword("not")
	t := test{x: x, line: p.peek().line}
	var err error
	if t.name, err = p.expectName(); err != nil {
		return nil, err
	}
	if _, ok := tests[t.name]; !ok {
		return nil, p.fail("test %q is not supported", t.name)
	}
	switch next := p.peek(); {
	case next.kind == tokOp && next.text == "(":
		t.args, err = p.arguments()
	case next.kind == tokString || next.kind == tokInt || next.kind == tokFloat ||
		next.kind == tokOp && (next.text == "[" || next.text == "{") ||
		next.kind == tokName && !slices.Contains([]string{"else", "or", "and", "is", "if"}, next.text):
		var arg expr
		if arg, err = p.primary(); err == nil {
			arg, err = p.postfix(arg)
		}
		t.args.positional = []expr{arg}
	}
	if err != nil {
		return nil, err
	}
	if p.is(tokName, "is") {
		return nil, p.fail("tests cannot be chained")
	}
	if negated {
		return unary{"not", t}, nil
	}
	return t, nil
}
