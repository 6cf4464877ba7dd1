package dialogue

import (
	"slices"
	"strconv"
	"strings"
)

// The words of names and values. Most names are made of syllables, and most
// values of two parts, for two reasons: there are enough of them that no model
// can learn them by heart, and those that are held out consist of parts that
// training has seen.
var (
	givenNames = strings.Fields(`Ada Amir Anna Bela Ben Carl Chen Clara Dara David Ella Emil Erik Eva Finn
		Frida Greta Hana Hugo Ida Igor Ines Ivan Jana Jonah Julia Karim Kofi Lara Lena Leo Lina Luca Maja Maria
		Mira Nadia Nina Noah Nora Olga Oscar Otto Paul Petra Priya Rania Rosa Ruben Sami Sara Simon Sofia Tariq
		Tessa Timo Vera Viktor Yara Zoe`)
	nameHead   = strings.Fields(`Al Bar Bel Bor Cal Dan Del Dor El Fal Fen Gar Gil Hal Har Il Jor Kal Kel Lor Mal Mar Mel Nor Or Pel Ran Rin Sal Sel Tal Tor Ul Val Vin Wil Yor Zan`)
	nameMiddle = strings.Fields(`a e i o u an en in or ar el`)
	nameTail   = strings.Fields(`bert da dan den dra go ka kin la len lia lo man mar mi mon na nia no ra ren ri ro sa ta ti ton va vin wen`)

	townHead   = strings.Fields(`Ash Bram Brook Cold Dun Elm Fair Green Hazel High Kings Lang Mill New Oak Old Red Rock Sand Stone Sun Wal West White Win Wood`)
	townTail   = strings.Fields(`berg bridge bury dale field ford gate ham haven hill mere mouth port stead ton wick`)
	townPrefix = []string{"", "", "", "North ", "South ", "Little ", "Great "}

	shades  = []string{"", "dark ", "light ", "pale ", "bright ", "deep ", "soft "}
	colours = strings.Fields(`red blue green yellow orange purple brown black white grey pink silver gold violet`)

	petHead = strings.Fields(`Bix Bo Chi Co Dot Fi Fuz Gi Jo Ki Lu Mo Nib Pip Po Ru Sku Ti To Wi Zu`)
	petTail = strings.Fields(`bo by ca dy go ka ki lo mo my na ny pa pi po ro sy ta to zi`)

	ingredients = strings.Fields(`apple bean carrot cheese cherry fish lemon lentil mushroom nut onion plum potato pumpkin rice spinach tomato`)
	dishes      = strings.Fields(`bread cake curry noodles pancakes pie salad soup stew tart`)

	thingKinds = strings.Fields(`big broken heavy little new plain round spare square thin wooden`)
	things     = strings.Fields(`bag basket bell book box camera candle clock coat hammer key kite lamp ladder map radio ring rope tent umbrella violin watch`)

	placeKinds = strings.Fields(`back bottom empty first front last left low narrow right second small tall top upper wide`)
	places     = strings.Fields(`attic cabin cellar chest closet cupboard drawer garage hall kitchen locker office shed stable tower workshop`)
)

func drawName(r *random) string {
	if r.chance(20) {
		return pick(r, givenNames)
	}
	if r.chance(12) {
		return drawStrange(r)
	}
	if word, ok := oddly(r); ok {
		return capital(word)
	}
	name := pick(r, nameHead)
	if r.chance(40) {
		name += pick(r, nameMiddle)
	}
	return name + pick(r, nameTail)
}

// drawStrange draws a name of any letters: what no list has is copied, too.
func drawStrange(r *random) string { return capital(anyLetters(r, 2, 3)) }

// anyLetters draws a word of so many syllables, which may end like no other.
func anyLetters(r *random, least, most int) string {
	const vowels, others = "aeiouy", "bcdfghjklmnpqrstvwxz"
	var b strings.Builder
	for range r.between(least, most) {
		b.WriteByte(others[r.intn(len(others))])
		b.WriteByte(vowels[r.intn(len(vowels))])
	}
	return b.String()
}

// oddly draws a word of any letters instead of one from lists, now and then.
func oddly(r *random) (string, bool) {
	if r.odd == 0 || !r.chance(r.odd) {
		return "", false
	}
	word := anyLetters(r, 1, 4)
	if r.chance(50) {
		word += pick(r, oddEnds)
	}
	return word, true
}

var oddEnds = strings.Fields(`l n r s t x ck rd sh st th nd`)

func drawTown(r *random) string {
	if word, ok := oddly(r); ok {
		return capital(word)
	}
	return pick(r, townPrefix) + pick(r, townHead) + pick(r, townTail)
}

func drawColour(r *random) string {
	if word, ok := oddly(r); ok {
		return word
	}
	return pick(r, shades) + pick(r, colours)
}

// drawPet draws a name that no person has.
func drawPet(r *random) string {
	if word, ok := oddly(r); ok {
		return capital(word)
	}
	for {
		name := pick(r, petHead) + pick(r, petTail)
		if r.chance(30) {
			name += pick(r, petTail)
		}
		if !slices.Contains(givenNames, name) {
			return name
		}
	}
}

func drawFood(r *random) string {
	if word, ok := oddly(r); ok {
		return word
	}
	return pick(r, ingredients) + " " + pick(r, dishes)
}

func drawThing(r *random) string { return "the " + pick(r, thingKinds) + " " + pick(r, things) }

func drawPlace(r *random) string { return "the " + pick(r, placeKinds) + " " + pick(r, places) }

func drawAge(r *random) string { return strconv.Itoa(r.between(4, 99)) }

// drawNumber draws a number of three to five digits.
func drawNumber(r *random) string {
	for {
		if s := drawDigits(r, r.between(3, 5)); s[0] != '0' {
			return s
		}
	}
}

// drawDigits draws n different digits. A digit that comes twice in a number
// makes its copy ambiguous to a model that finds its place by the last token.
func drawDigits(r *random, n int) string {
	digits := []byte("0123456789")
	for i := range n {
		j := r.between(i, len(digits)-1)
		digits[i], digits[j] = digits[j], digits[i]
	}
	return string(digits[:n])
}

// drawCode draws four digits, or letters and digits in turn, all different.
func drawCode(r *random) string {
	if r.chance(50) {
		return drawDigits(r, 4)
	}
	const letters = "ABCDEFGHKLMNPRSTUVWXZ"
	first, second := r.intn(len(letters)), r.intn(len(letters)-1)
	if second >= first {
		second++
	}
	digits := drawDigits(r, 2)
	return string([]byte{letters[first], digits[0], letters[second], digits[1]})
}
