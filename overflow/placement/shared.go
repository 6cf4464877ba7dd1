package placement

import "math"

// shared divides each run by the devices' weights.
//
// # Division
//
// A device's due x_i is p_i * blocks and what is carried: the sum over earlier
// calls of what it was due beyond what it got. Each device gets floor(x_i)
// blocks and the remainder goes, one block each, to some of them (Eq. 2), so
// that nobody is ever a whole block away from its share of all blocks so far.
//
// With nothing carried, and a run of at least as many blocks as there are
// devices, the remainder goes to the largest shares: exactly Algorithm 1. (Its
// line 10 could be read as giving all of the remainder to one device; the text
// beside it says devices.) Ties go to the lower index. Otherwise Algorithm 1
// would give small devices nothing for as long as runs are short, and the
// remainder goes to those that would soonest be a whole block behind: the
// earliest-deadline form of the quota method of apportionment (Balinski & Young,
// "The quota method of apportionment", 1975; Tijdeman, "The chairman assignment
// problem", 1980: with constant weights there is always an order in which nobody
// gets a block ahead or behind). When weights change, or a run by Algorithm 1
// has left many small devices behind at once, a device may be somewhat more than
// a block away from its share; it is among the next to be served then.
//
// A device that gets all that it has room for, or takes no blocks, carries nothing.
type shared struct {
	name   string
	byRate bool
	of     []share // by device; longer than needed after a call with more devices
}

// share is a device's part in the division.
type share struct {
	carried float64 // due so far less what it got
	fences  int     // Device.Fences that ramp knows of
	ramp    int     // blocks that it has to be given before it weighs in full

	// Of one call.
	weight float64 // 0: takes no part
	due    float64
	count  int
	claim  float64 // to a block of the remainder
}

const (
	slowWeight = 0.25
	lowSlots   = 8  // below 1/lowSlots of its slots a device counts as nearly full
	rampBlocks = 16 // per doubling
	rampSteps  = 4
	// noise is what sums of carried fractions may be off by.
	noise = 1e-9
)

func (s *shared) Name() string { return s.name }

func (s *shared) Place(dst []Part, devices []Device, blocks int) []Part {
	if blocks <= 0 {
		return dst
	}
	s.weigh(devices)
	of := s.of[:len(devices)]
	for left := blocks; left > 0; {
		sum, members, carried, fresh := total(of)
		if members == 0 {
			break
		}
		divide(of, left, sum, carried, fresh && left >= members)
		over := settleFull(of, devices)
		if over == 0 {
			break
		}
		left -= over
	}
	for i := range of {
		d := &of[i]
		if d.weight > 0 {
			d.carried = d.due - float64(d.count)
		} else {
			d.carried = 0
		}
		if d.count > 0 {
			d.ramp = max(0, d.ramp-d.count)
			dst = append(dst, Part{i, d.count})
		}
	}
	return dst
}

func (s *shared) Shares(dst []float64, devices []Device) []float64 {
	s.weigh(devices)
	of := s.of[:len(devices)]
	sum, _, _, _ := total(of)
	for i := range of {
		if sum > 0 {
			dst = append(dst, of[i].weight/sum)
		} else {
			dst = append(dst, 0)
		}
	}
	return dst
}

// weigh sets the weight of each device and forgets the last call's counts.
func (s *shared) weigh(devices []Device) {
	for len(s.of) < len(devices) {
		s.of = append(s.of, share{})
	}
	unknown := 1.0
	if s.byRate {
		if r := slowest(devices); !math.IsInf(r, 1) {
			unknown = r
		}
	}
	for i := range devices {
		d, of := &devices[i], &s.of[i]
		if d.Fences != of.fences {
			of.fences, of.ramp = d.Fences, rampSteps*rampBlocks
		}
		of.count, of.due, of.weight = 0, 0, 0
		if !d.takes() {
			continue
		}
		switch {
		case !s.byRate:
			of.weight = 1
		case d.known():
			of.weight = d.Rate
		default:
			of.weight = unknown
		}
		of.weight *= health(d, of.ramp)
	}
}

// health is what a device's condition takes off its weight, in (0, 1].
func health(d *Device, ramp int) float64 {
	h := 1.0
	if d.State == Slow {
		h = slowWeight
	}
	if free, low := float64(d.Free), float64(d.Slots)/lowSlots; free < low {
		h *= free / low
	}
	if ramp > 0 {
		h /= float64(int(1) << ((ramp + rampBlocks - 1) / rampBlocks))
	}
	return h
}

// total says what those who take part weigh and carry together, and whether none
// of them carries anything.
func total(of []share) (sum float64, members int, carried float64, fresh bool) {
	fresh = true
	for i := range of {
		if d := &of[i]; d.weight > 0 {
			sum += d.weight
			members++
			carried += d.carried
			fresh = fresh && math.Abs(d.carried) < noise
		}
	}
	return sum, members, carried, fresh
}

// divide gives out n blocks among those who take part. carried is what they
// carry together: not 0 where others carried the opposite and now take no part,
// and shared by all then. byShare: the remainder goes to the largest shares.
func divide(of []share, n int, sum, carried float64, byShare bool) {
	given := 0
	rest := float64(n) - carried
	for i := range of {
		d := &of[i]
		if d.weight == 0 {
			continue
		}
		if byShare {
			// What is left of noise must not change a floor.
			d.due = d.weight * float64(n) / sum
		} else {
			d.due = d.carried + d.weight*rest/sum
		}
		d.count = int(max(0, math.Floor(d.due)))
		d.claim = d.claims(byShare)
		given += d.count
	}
	for ; given < n; given++ {
		d := &of[next(of)]
		d.count++
		d.claim = nobody
	}
	for ; given > n; given-- {
		of[ahead(of)].count--
	}
}

// nobody is less than any claim.
const nobody = -math.MaxFloat64

// claims says how much the device is entitled to a block of the remainder: by its
// share, or by how soon it would be a whole block behind without it.
func (d *share) claims(byShare bool) float64 {
	open := d.due - float64(d.count)
	switch {
	case byShare:
		return d.weight
	case open > noise:
		return (open - 1) / d.weight
	}
	return nobody
}

// next is who gets a block of the remainder: who claims most, or where rounding
// leaves no claims, who is most behind.
func next(of []share) int {
	best, most := -1, nobody
	for i := range of {
		if d := &of[i]; d.claim > most && d.weight > 0 {
			best, most = i, d.claim
		}
	}
	if best >= 0 {
		return best
	}
	for i := range of {
		if d := &of[i]; d.weight > 0 && d.due-float64(d.count) > most {
			best, most = i, d.due-float64(d.count)
		}
	}
	return best
}

// ahead is who gives a block back when more are a whole block behind than there
// are blocks: the one that has waited least.
func ahead(of []share) int {
	best, least := -1, math.Inf(1)
	for i := range of {
		d := &of[i]
		if d.weight == 0 || d.count == 0 {
			continue
		}
		if wait := (d.due - float64(d.count)) / d.weight; wait < least {
			best, least = i, wait
		}
	}
	return best
}

// settleFull leaves those who got more than they have room for with what they
// have room for, and takes them out of the division. It says how many
// blocks that are. 0: all have room for what they got.
func settleFull(of []share, devices []Device) int {
	settled := 0
	for i := range of {
		if d := &of[i]; d.weight > 0 && d.count > devices[i].Free {
			d.count, d.weight = devices[i].Free, 0
			settled += d.count
		}
	}
	return settled
}
