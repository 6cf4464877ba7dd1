package tokenizer

// class is a set of the properties of a character that tokenizers ask for.
type class uint8

const (
	classLetter  class = 1 << iota // \p{L}
	classNumber                    // \p{N}
	classNumeric                   // of the Digits pre-tokenizer
	classSpace                     // White_Space
	classPunct                     // of the Punctuation pre-tokenizer
	classMark                      // of StripAccents and of canonical ordering
	classWord                      // \w, for single_word
	classDecomp                    // NFKD changes it
)

func (c class) is(x class) bool { return c&x != 0 }

// classPages holds the classes of all characters in pages of 256, equal ones
// shared. It is built once and never written to again.
var classPages = buildClasses()

func buildClasses() *[0x1100]*[256]class {
	var pages [0x1100]*[256]class
	for _, t := range classTables {
		for i := 0; i < len(t.ranges); i += 2 {
			for c := t.ranges[i]; c <= t.ranges[i+1]; c++ {
				page := pages[c>>8]
				if page == nil {
					page = new([256]class)
					pages[c>>8] = page
				}
				page[c&0xff] |= t.class
			}
		}
	}
	shared := map[[256]class]*[256]class{}
	for i, page := range pages {
		if page == nil {
			page = new([256]class)
		}
		if shared[*page] == nil {
			shared[*page] = page
		}
		pages[i] = shared[*page]
	}
	return &pages
}

// classOf returns the classes of a character.
func classOf(r rune) class {
	if uint32(r) > 0x10ffff {
		return 0
	}
	return classPages[uint32(r)>>8][r&0xff]
}
