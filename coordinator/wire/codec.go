package wire

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// Errors of Parse. They are wrapped: use errors.Is.
var (
	ErrShort   = errors.New("message shorter than its two-byte header")
	ErrLong    = fmt.Errorf("message longer than %d bytes", MaxMessage)
	ErrVersion = fmt.Errorf("message version unknown, this release speaks %d", Version)
	ErrType    = errors.New("message type unknown")
	ErrInvalid = errors.New("message invalid")
)

const headerLen = 2

// The CBOR modes are immutable and safe for concurrent use.
var (
	encMode = mustEnc()
	decMode = mustDec()
)

func mustEnc() cbor.UserBufferEncMode {
	m, err := cbor.EncOptions{
		Sort:          cbor.SortCoreDeterministic,
		IndefLength:   cbor.IndefLengthForbidden,
		TagsMd:        cbor.TagsForbidden,
		NilContainers: cbor.NilContainerAsNull,
	}.UserBufferEncMode()
	if err != nil {
		panic(fmt.Sprintf("BUG: CBOR encoding options: %v", err))
	}
	return m
}

func mustDec() cbor.DecMode {
	m, err := cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		MaxNestedLevels:   5, // a Chunk's alternatives: map, list, list, map
		MaxArrayElements:  MaxTokens,
		MaxMapPairs:       MaxLogitBias,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		UTF8:              cbor.UTF8RejectInvalid,
		NaN:               cbor.NaNDecodeForbidden,
		Inf:               cbor.InfDecodeForbidden,
	}.DecMode()
	if err != nil {
		panic(fmt.Sprintf("BUG: CBOR decoding options: %v", err))
	}
	return m
}

// Append appends the encoding of m to dst. It fails only when m is not valid
// or too long; dst is then returned as it was.
func Append(dst []byte, m Message) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return dst, invalid(m.Type(), err)
	}
	// The header comes first so that the buffer can grow in place.
	buf := bytes.NewBuffer(append(dst, Version, byte(m.Type())))
	if err := encMode.MarshalToBuffer(m, buf); err != nil {
		return dst, invalid(m.Type(), err)
	}
	out := buf.Bytes()
	if n := len(out) - len(dst); n > MaxMessage {
		return dst, fmt.Errorf("%s: %d bytes: %w", m.Type(), n, ErrLong)
	}
	return out, nil
}

// Encode is Append to a new slice.
func Encode(m Message) ([]byte, error) { return Append(nil, m) }

// Parse decodes one message. The message does not alias b. Peers are not
// trusted: Parse never panics, and what it returns is valid.
func Parse(b []byte) (Message, error) {
	switch {
	case len(b) < headerLen:
		return nil, fmt.Errorf("%d bytes: %w", len(b), ErrShort)
	case len(b) > MaxMessage:
		return nil, fmt.Errorf("%d bytes: %w", len(b), ErrLong)
	case b[0] != Version:
		return nil, fmt.Errorf("version %d: %w", b[0], ErrVersion)
	}
	t := Type(b[1])
	if int(t) >= len(kinds) || kinds[t].make == nil {
		return nil, fmt.Errorf("type %#02x: %w", b[1], ErrType)
	}
	if len(b) == headerLen || b[headerLen]&0xe0 != cborMap {
		return nil, invalid(t, errNotMap)
	}
	m := kinds[t].make()
	if err := decMode.Unmarshal(b[headerLen:], m); err != nil {
		return nil, invalid(t, err)
	}
	if err := m.Validate(); err != nil {
		return nil, invalid(t, err)
	}
	return m, nil
}

// cborMap is the major type of a map; without this check the decoder would
// take null for an empty message.
const cborMap = 0xa0

var errNotMap = errors.New("body is not a CBOR map")

func invalid(t Type, err error) error {
	return fmt.Errorf("%s: %w: %w", t, ErrInvalid, err)
}
