package jinja

// expr is an expression, node a statement.
type (
	expr interface{}
	node interface{}
)

// Expressions.
type (
	constant struct{ value any }
	name     struct{ name string }
	listLit  struct {
		items []expr
		tuple bool
	}
	dictLit struct{ keys, values []expr }
	unary   struct {
		op string // "not", "-" or "+"
		x  expr
	}
	binary struct {
		op   string // an arithmetic operator, "~", "and" or "or"
		a, b expr
	}
	compare struct {
		first expr
		ops   []string
		rest  []expr
	}
	conditional struct{ test, yes, no expr } // no may be nil
	getAttr     struct {
		x    expr
		name string
	}
	getItem struct{ x, key expr }
	slice   struct{ x, start, stop, step expr } // each may be nil but x
	call    struct {
		fn   expr
		args arguments
		line int
	}
	filter struct {
		x    expr // nil in filter blocks
		name string
		args arguments
		line int
	}
	test struct {
		x    expr
		name string
		args arguments
		line int
	}
)

// arguments of a call, as written.
type arguments struct {
	positional []expr
	names      []string // of the keyword arguments
	values     []expr
}

// Statements.
type (
	data   struct{ text string }
	output struct {
		x    expr
		line int
	}
	ifNode struct {
		tests  []expr
		bodies [][]node // one more than tests if there is an else
		line   int
	}
	forNode struct {
		target    expr // name or listLit of targets
		iter      expr
		cond      expr // may be nil
		recursive bool
		body      []node
		otherwise []node
		line      int
	}
	setNode struct {
		target expr // name, nsRef or listLit of them
		value  expr // nil for a block
		filter []*filter
		body   []node
		line   int
	}
	nsRef     struct{ object, attr string }
	macroNode struct {
		name     string
		params   []string
		defaults []expr // of the last parameters
		body     []node
	}
	filterNode struct {
		filters []*filter
		body    []node
		line    int
	}
	withNode struct {
		targets []expr
		values  []expr
		body    []node
		line    int
	}
	scoped      struct{ body []node } // generation
	loopControl struct{ signal signal }
)

// signal is how a list of statements ended.
type signal uint8

const (
	proceed signal = iota
	breakLoop
	continueLoop
)
