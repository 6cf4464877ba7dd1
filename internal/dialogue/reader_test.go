package dialogue

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// reader answers questions by reading a dialogue as a person would, with
// keywords: it knows none of the generator's phrases and nothing of its state.
type reader struct {
	told map[string][]string // attribute of an entity ("colour/Mira"): values in order
	list map[string][]string // entity: its attributes in order
	last string              // key of what was told last
	kind *regexp.Regexp      // what its values look like
}

// meant finds the value of a correction that does not say of what it is.
var meant = regexp.MustCompile(`^(?:No, it is |It is not .*, it is |No, not .*\. It is |Sorry, I meant |Sorry, it is |Sorry, |No, |I meant |Wait, it is |Wait, not .*\. It is |Not .*, but )(.*)\.$`)

// clues are words that give an attribute away, and what its values look like.
var clues = []struct {
	attribute   string
	clue, value *regexp.Regexp
}{
	{"colour", regexp.MustCompile(`colour`), regexp.MustCompile(`(?i)((dark|light|pale|bright|deep|soft) )?\b(red|blue|green|yellow|orange|purple|brown|black|white|grey|pink|silver|gold|violet)\b`)},
	{"food", regexp.MustCompile(`food|\beat\b`), regexp.MustCompile(`(?i)\b\w+ (bread|cake|curry|noodles|pancakes|pie|salad|soup|stew|tart)\b`)},
	{"weight", regexp.MustCompile(`gram|weigh|[Hh]ow heavy`), regexp.MustCompile(`\b\d+\b`)},
	{"number", regexp.MustCompile(`luck`), regexp.MustCompile(`\b\d+\b`)},
	{"code", regexp.MustCompile(`door`), regexp.MustCompile(`\b(\d{4}|[A-Z]\d[A-Z]\d)\b`)},
	{"dog", regexp.MustCompile(`\bdog`), petName},
	{"cat", regexp.MustCompile(`\bcat\b`), petName},
	{"age", regexp.MustCompile(`\bage\b|\bold\b|turned`), regexp.MustCompile(`\b\d\d?\b`)},
	{"town", regexp.MustCompile(`town|live|home`), regexp.MustCompile(`((North|South|Little|Great) )?[A-Z][a-z]+(berg|bridge|bury|dale|field|ford|gate|ham|haven|hill|mere|mouth|port|stead|ton|wick)\b`)},
	{"place", regexp.MustCompile(``), regexp.MustCompile(`(?i)the \w+ (attic|cabin|cellar|chest|closet|cupboard|drawer|garage|hall|kitchen|locker|office|shed|stable|tower|workshop)\b`)},
}

var (
	petName  = regexp.MustCompile(`\b(Bix|Bo|Chi|Co|Dot|Fi|Fuz|Gi|Jo|Ki|Lu|Mo|Nib|Pip|Po|Ru|Sku|Ti|To|Wi|Zu)((bo|by|ca|dy|go|ka|ki|lo|mo|my|na|ny|pa|pi|po|ro|sy|ta|to|zi){1,2})\b`)
	thing    = regexp.MustCompile(`(?i)the \w+ (bag|basket|bell|book|box|camera|candle|clock|coat|hammer|key|kite|lamp|ladder|map|radio|ring|rope|tent|umbrella|violin|watch)\b`)
	owner    = regexp.MustCompile(`\b([A-Z][a-z]+)('s)? |\b(?:for|of|about) ([A-Z][a-z]+)\b|brings ([A-Z][a-z]+) `)
	self     = regexp.MustCompile(`\b(my|me|I)\b|\bMy\b`)
	sentence = regexp.MustCompile(`[^.?!]+[.?!]`)
	negated  = regexp.MustCompile(`\bnot [^:.]+[:.]`)
	notNames = regexp.MustCompile(`^(The|Please|You|Here|One|No|Sorry|It|Oh|By|Of|To|When|With|For|At|In|We|This|Now|A|Tell|Before|Let|What|Which|Where|How|Do|Can|Count|About|North|South|Little|Great|Not|And|Remember|Well|Did|Just|Have|Forget|That|Sum)$`)
)

// whom finds what a sentence is about. known are names that count as such.
func whom(s string, known map[string]bool, value string) string {
	if m := thing.FindString(s); m != "" {
		return "t" + m[1:] // The box is the box
	}
	for _, m := range owner.FindAllStringSubmatch(s, -1) {
		name := m[1] + m[3] + m[4]
		if !notNames.MatchString(name) && !strings.Contains(value, name) && (known == nil || known[name]) {
			return name
		}
	}
	words := strings.FieldsFunc(strings.ReplaceAll(s, "'s", " "), func(r rune) bool { return strings.ContainsRune(" ,:?.", r) })
	for _, w := range words {
		if known[w] && !strings.Contains(value, w) {
			return w
		}
	}
	if self.MatchString(s) {
		return ""
	}
	return "?"
}

// tell reads a message for facts about the names that occur in the dialogue.
func (r *reader) tell(content string, known map[string]bool) {
	if m := meant.FindStringSubmatch(content); m != nil && r.last != "" && strings.EqualFold(r.kind.FindString(m[1]), m[1]) {
		r.told[r.last] = append(r.told[r.last], m[1])
		return
	}
	for _, s := range sentence.FindAllString(content, -1) {
		s = strings.TrimSpace(negated.ReplaceAllString(s, ""))
		if i := strings.LastIndex(s, ": "); i >= 0 && !strings.Contains(s, "weight of") {
			s = s[i+2:]
		}
		for _, c := range clues {
			if c.attribute == "place" && !thing.MatchString(s) || !c.clue.MatchString(s) {
				continue
			}
			var value string
			for _, v := range c.value.FindAllString(s, -1) {
				if value == "" && !known[v] {
					value = v
				}
			}
			if value == "" {
				continue
			}
			e := whom(s, known, value)
			key := c.attribute + "/" + e
			if r.told[key] == nil {
				r.list[e] = append(r.list[e], c.attribute)
			}
			r.told[key] = append(r.told[key], value)
			r.last, r.kind = key, c.value
			break
		}
	}
}

// answer answers the question of a kind in a message: what was told.
func (r *reader) answer(content string, known map[string]bool) (kind Kind, value string) {
	all := sentence.FindAllString(content, -1)
	s := strings.TrimSpace(all[len(all)-1])
	if i := strings.LastIndex(s, ": "); i >= 0 {
		s = s[i+2:]
	}
	for _, frame := range []string{"Tell me, ", "I forgot it. ", "Before we go on, "} {
		s = strings.TrimPrefix(s, frame)
	}
	e := whom(s, known, "")
	lower := strings.ToLower(s)
	switch {
	case strings.Contains(lower, "count") || strings.Contains(lower, "how many facts") || strings.Contains(lower, "how many things"):
		if strings.Contains(lower, "about me?") || strings.Contains(lower, "about me,") {
			e = ""
		}
		if n := len(r.list[e]); n > 0 {
			return Count, strconv.Itoa(n)
		}
		return Count, "nothing"
	case strings.Contains(lower, "know about") || strings.Contains(lower, "told you about") || strings.Contains(lower, "tell you about") || strings.Contains(lower, "what do you remember?"):
		return About, fmt.Sprint(len(r.list[e]))
	}
	for _, c := range clues {
		if c.clue.MatchString(s) {
			values := r.told[c.attribute+"/"+e]
			switch len(values) {
			case 0:
				return Unknown, ""
			case 1:
				return Recall, values[0]
			}
			return Corrected, values[len(values)-1]
		}
	}
	return "?", s
}
