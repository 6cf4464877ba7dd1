package configs

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// Bytes is a size in bytes. In YAML: "16GiB", "384KiB", "4MB", "0B", or a plain
// number of bytes.
type Bytes int64

// Rate is a bandwidth in bytes per second. In YAML: "400GB/s".
type Rate int64

// Duration is a time span. In YAML: "60s", "5us", "1m30s".
type Duration time.Duration

// Percent is a share in hundredths. In YAML: "5%".
type Percent float64

// unit is a suffix and its factor, binary units before decimal ones of the
// same order so that a value prints in the form that people write.
type unit struct {
	suffix string
	factor int64
}

var byteUnits = [...]unit{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
}

// What each type accepts, for messages and the JSON Schema.
const (
	acceptBytes    = `a size such as 16GiB, 384KiB or 4MB`
	acceptRate     = `a bandwidth such as 400GB/s or 32GiB/s`
	acceptDuration = `a duration such as 60s, 250ms or 5us`
	acceptPercent  = `a share such as 5%`

	patternNumber   = `(0|[1-9][0-9]*)([.][0-9]+)?`
	patternBytes    = `^` + patternNumber + `([TGMK]iB|[TGMkK]?B)?$`
	patternRate     = `^` + patternNumber + `([TGMK]iB|[TGMkK]?B)/s$`
	patternDuration = `^(0|([0-9]+([.][0-9]+)?(h|m|s|ms|us|µs|ns))+)$`
	patternPercent  = `^` + patternNumber + `%$`
)

// parseQuantity reads number and unit into whole bytes, exactly.
func parseQuantity(s string, bare bool) (int64, error) {
	digits := strings.TrimRight(s, "TGMKkiB")
	factor := int64(0)
	suffix := s[len(digits):]
	for _, u := range byteUnits {
		if u.suffix == suffix {
			factor = u.factor
		}
	}
	if suffix == "" && bare {
		factor = 1
	}
	if factor == 0 {
		return 0, fmt.Errorf("unknown unit %q", suffix)
	}
	if strings.HasPrefix(digits, "-") {
		return 0, errors.New("less than 0")
	}
	if !isDecimal(digits) {
		return 0, fmt.Errorf("%q is not a number", digits)
	}
	v, ok := new(big.Rat).SetString(digits)
	if !ok {
		return 0, fmt.Errorf("%q is not a number", digits)
	}
	v.Mul(v, new(big.Rat).SetInt64(factor))
	if !v.IsInt() {
		return 0, errors.New("not a whole number of bytes")
	}
	if !v.Num().IsInt64() {
		return 0, fmt.Errorf("too large, at most %dTiB", int64(math.MaxInt64)>>40)
	}
	return v.Num().Int64(), nil
}

// isDecimal accepts short plain decimals: no sign, exponent or fraction bar,
// which big.Rat would take.
func isDecimal(s string) bool {
	whole, frac, dot := strings.Cut(s, ".")
	if whole == "" || len(s) > 32 || (dot && frac == "") || (len(whole) > 1 && whole[0] == '0') {
		return false
	}
	return strings.Trim(whole+frac, "0123456789") == ""
}

// formatQuantity prints v in its shortest exact form.
func formatQuantity(v int64) string {
	if v == 0 {
		return "0B"
	}
	best := ""
	for _, u := range byteUnits {
		if v%u.factor != 0 {
			continue
		}
		if s := strconv.FormatInt(v/u.factor, 10) + u.suffix; best == "" || len(s) < len(best) {
			best = s
		}
	}
	return best
}

// UnmarshalText parses a size.
func (b *Bytes) UnmarshalText(text []byte) error {
	v, err := parseQuantity(string(text), true)
	if err == nil {
		*b = Bytes(v)
	}
	return err
}

// String prints the size in its shortest exact form.
func (b Bytes) String() string { return formatQuantity(int64(b)) }

// MarshalText is String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText parses a bandwidth.
func (r *Rate) UnmarshalText(text []byte) error {
	quantity, ok := strings.CutSuffix(string(text), "/s")
	if !ok {
		return errors.New(`must end in "/s"`)
	}
	v, err := parseQuantity(quantity, false)
	if err == nil {
		*r = Rate(v)
	}
	return err
}

// String prints the bandwidth in its shortest exact form.
func (r Rate) String() string { return formatQuantity(int64(r)) + "/s" }

// MarshalText is String.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses a duration that is not negative.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New("no number with a unit of time")
	}
	if v < 0 || text[0] == '+' || text[0] == '-' {
		return errors.New("must not have a sign")
	}
	*d = Duration(v)
	return nil
}

// String prints the duration without zero parts: "10m", not "10m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return strings.Replace(s, "µ", "u", 1)
}

// MarshalText is String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// D is the duration as the standard library's type.
func (d Duration) D() time.Duration { return time.Duration(d) }

// UnmarshalText parses a share from 0% to 100%.
func (p *Percent) UnmarshalText(text []byte) error {
	digits, ok := strings.CutSuffix(string(text), "%")
	if !ok {
		return errors.New(`must end in "%"`)
	}
	if !isDecimal(digits) {
		return fmt.Errorf("%q is not a number", digits)
	}
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return fmt.Errorf("%q is not a number", digits)
	}
	if v > 100 {
		return errors.New("must be at most 100%")
	}
	*p = Percent(v)
	return nil
}

// String prints the share with its sign.
func (p Percent) String() string { return strconv.FormatFloat(float64(p), 'f', -1, 64) + "%" }

// MarshalText is String.
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Fraction is the share as a number from 0 to 1.
func (p Percent) Fraction() float64 { return float64(p) / 100 }

// APIKey is one key that clients may present: a literal string, or the path of
// a file that holds it. It never prints its value; see Config.Redacted.
type APIKey struct {
	Value string
	File  string
	// Tenant is whose key it is; keys of one tenant share cached prefixes.
	// Empty: the key is a tenant of its own.
	Tenant string
	// MaxInflight bounds the tenant's generations at once; 0: no bound.
	MaxInflight int
}

// keyForm is an APIKey that is written as a mapping.
type keyForm struct {
	Key         string `yaml:"key,omitempty" doc:"the key itself: printable ASCII without spaces"`
	File        string `yaml:"file,omitempty" doc:"path of a file that holds the key"`
	Tenant      string `yaml:"tenant,omitempty" doc:"whose key it is; keys of one tenant share cached prefixes and limits. None: the key is a tenant of its own"`
	MaxInflight int    `yaml:"max_inflight,omitempty" max:"1000000" doc:"generations of the tenant that may be under way at once; more get 429. 0: no limit"`
}

// String hides the key.
func (k APIKey) String() string {
	if k.File != "" {
		return "file:" + k.File
	}
	return "[hidden]"
}

// GoString hides the key from %#v.
func (k APIKey) GoString() string { return "configs.APIKey(" + k.String() + ")" }

// MarshalYAML writes the key in the shortest form that says everything.
func (k APIKey) MarshalYAML() (any, error) {
	if k.Value != "" && k.Tenant == "" && k.MaxInflight == 0 {
		return k.Value, nil
	}
	return keyForm{k.Value, k.File, k.Tenant, k.MaxInflight}, nil
}
