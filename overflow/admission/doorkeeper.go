package admission

import (
	"fmt"
	"math/bits"

	"github.com/kvlend/kvlend/prefix"
)

// MaxAfter is the largest DoorkeeperOptions.After: what a counter can hold and
// the filter's one.
const MaxAfter = maxCount + 1

// DoorkeeperOptions describe a Doorkeeper.
type DoorkeeperOptions struct {
	// After is at which use a block is worth a write, in [1, MaxAfter]. 1: at
	// once, which needs no memory.
	After int
	// Window is how many uses are remembered, in [1, 1<<30]: after so many, all
	// counts are halved. A few times the blocks that the pool holds is right. A
	// use costs 3 bytes of memory (up to 6, since it is a power of two).
	Window int
}

func (o DoorkeeperOptions) validate() error {
	if o.After < 1 || o.After > MaxAfter {
		return fmt.Errorf("admit_after: %d: must be in [1, %d]", o.After, MaxAfter)
	}
	if o.Window < 1 || o.Window > maxWindow {
		return fmt.Errorf("admission window: %d uses: must be in [1, %d]", o.Window, maxWindow)
	}
	return nil
}

// Doorkeeper counts how often blocks were used lately, about: TinyLFU's sketch
// (Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission
// Policy", ACM Transactions on Storage 13(4), 2017). A block's first use sets
// bits in a Bloom filter, the doorkeeper proper. Further ones raise the least of
// its four 4-bit counters in a count-min sketch, so that the many blocks that
// are used once take no counters. After each Window uses the counts are halved
// and the filter is emptied. As in W-TinyLFU's implementations, what belongs to a
// key lies in one cache line, here of the filter and one of the sketch.
//
// Within a window it never counts too few uses of a block. It may count too many,
// where others have the same bits: then a block is written that need not be. So
// nobody can keep another's blocks out by choosing theirs.
//
// The counts end with the process, and are not worth keeping: what they admitted is in
// the pool, and stays admitted; what was seen once before a restart has to be seen
// twice after it. A window for a million blocks would be 12 to 24 MB on each device.
//
// Not safe for concurrent use. Methods do not allocate.
type Doorkeeper struct {
	after  int
	window int
	uses   int // since the last aging
	agings uint64
	filter []uint64 // lines of 8 words: 512 bits
	counts []uint64 // lines of 8 words: 4 rows of 32 counters
}

const (
	maxCount  = 15
	maxWindow = 1 << 30

	lineWords = 8
	// A line of the filter is for 64 uses (8 bits each), one of the sketch for 32
	// (4 counters each).
	filterUses = 64
	countUses  = 32
	rows       = 4
	probes     = 4 // bits in the filter
	lowNibbles = 0x7777777777777777
)

// NewDoorkeeper makes a doorkeeper that has seen nothing. An error names the
// option and its range.
func NewDoorkeeper(o DoorkeeperOptions) (*Doorkeeper, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	d := &Doorkeeper{after: o.After, window: o.Window}
	if o.After > 1 {
		d.filter = make([]uint64, lineWords*lines(o.Window, filterUses))
		d.counts = make([]uint64, lineWords*lines(o.Window, countUses))
	}
	return d, nil
}

// lines is how many lines of each uses the window takes: a power of two.
func lines(window, each int) int {
	n := (window + each - 1) / each
	return 1 << bits.Len(uint(n-1))
}

// Admit counts a use of the block and says whether it is worth a write: whether
// this is use After or a later one. It is asked once per use, also of blocks that
// are in the pool, whose counts decide when they have left it.
func (d *Doorkeeper) Admit(key prefix.Key) bool {
	if d.after == 1 {
		return true
	}
	if d.uses >= d.window {
		d.age()
	}
	d.uses++
	return d.count(key) >= d.after
}

// Seen is about how often the block was used lately, at most MaxAfter. It counts
// no use. Where After is 1 nothing is counted and it is 0.
func (d *Doorkeeper) Seen(key prefix.Key) int {
	if d.after == 1 {
		return 0
	}
	n, _ := d.least(key)
	if d.filtered(key, false) {
		n++
	}
	return n
}

// Agings is how often the counts were halved.
func (d *Doorkeeper) Agings() uint64 { return d.agings }

// Bytes is the memory that it takes.
func (d *Doorkeeper) Bytes() int { return 8 * (len(d.filter) + len(d.counts)) }

// count adds a use and says how many there are.
func (d *Doorkeeper) count(key prefix.Key) int {
	known := d.filtered(key, true)
	n, line := d.least(key)
	if !known {
		return n + 1
	}
	if n < maxCount {
		d.raise(key, line, n)
		n++
	}
	return n + 1
}

// filtered says whether the filter has the key, and adds it if asked to. Keys
// are hashes, so their bits serve as they are: the upper half chooses the line,
// the lower one the bits.
func (d *Doorkeeper) filtered(key prefix.Key, add bool) bool {
	line := d.filter[lineWords*(key.Hi&uint64(len(d.filter)/lineWords-1)):][:lineWords]
	known := true
	h := key.Lo
	for range probes {
		word, bit := &line[h>>6&(lineWords-1)], uint64(1)<<(h&63)
		known = known && *word&bit != 0
		if add {
			*word |= bit
		}
		h >>= 9
	}
	return known
}

// least is the least of the key's counters and the line that they lie in.
func (d *Doorkeeper) least(key prefix.Key) (int, []uint64) {
	line := d.counts[lineWords*(bits.RotateLeft64(key.Hi, 32)&uint64(len(d.counts)/lineWords-1)):][:lineWords]
	n := uint64(maxCount)
	for row := range rows {
		word, shift := counter(key, row)
		n = min(n, line[word]>>shift&maxCount)
	}
	return int(n), line
}

// raise adds one to those of the key's counters that are n, the least.
func (d *Doorkeeper) raise(key prefix.Key, line []uint64, n int) {
	for row := range rows {
		word, shift := counter(key, row)
		if line[word]>>shift&maxCount == uint64(n) {
			line[word] += 1 << shift
		}
	}
}

// counter is where in its line the key's counter of a row lies: 5 bits of the
// key that the filter does not use choose one of the row's 32.
func counter(key prefix.Key, row int) (word int, shift uint64) {
	c := key.Lo >> (36 + 5*row) & 31
	return 2*row + int(c>>4), 4 * (c & 15)
}

// age halves all counts and empties the filter.
func (d *Doorkeeper) age() {
	for i, w := range d.counts {
		d.counts[i] = w >> 1 & lowNibbles
	}
	clear(d.filter)
	d.uses = 0
	d.agings++
}
