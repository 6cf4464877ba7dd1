package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// fileJSON is tokenizer.json.
type fileJSON struct {
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

// addedToken is an entry of added_tokens.
type addedToken struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// maxDepth bounds the nesting of Sequence components.
const maxDepth = 16

// Parse reads the content of a tokenizer.json file.
func Parse(data []byte) (*Tokenizer, error) {
	var file fileJSON
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	t := new(Tokenizer)
	var err error
	if t.normalize, err = parseNormalizer(file.Normalizer, 0); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	var pre preConfig
	if pre, err = parsePreTokenizer(file.PreTokenizer, 0); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	t.pre, t.byteLevel = pre.chain(), pre.byteLevel
	t.lossless = t.byteLevel && t.normalize == nil && !pre.custom
	if t.post, err = parsePostProcessor(file.PostProcessor, 0); err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	if t.decoders, err = parseDecoder(file.Decoder, 0); err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	if t.model, err = parseModel(file.Model, t.byteLevel); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if t.added, err = newAddedVocab(file.AddedTokens, t.model, t.normalize); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	return t, nil
}

// isNull reports whether a component is absent.
func isNull(raw json.RawMessage) bool {
	return len(raw) == 0 || bytes.Equal(bytes.TrimSpace(raw), []byte("null"))
}

// component returns the type of a component.
func component(raw json.RawMessage, depth int) (string, error) {
	if depth > maxDepth {
		return "", fmt.Errorf("a Sequence is nested more than %d deep", maxDepth)
	}
	var c struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", err
	}
	if c.Type == "" {
		return "", errors.New(`has no "type"`)
	}
	return c.Type, nil
}

// unsupported is the refusal of a component type.
func unsupported(kind string) error {
	return fmt.Errorf("type %q is not supported", kind)
}

// unmarshal decodes the fields of the component called kind.
func unmarshal(raw json.RawMessage, kind string, dst any) error {
	if err := json.Unmarshal(raw, dst); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return nil
}

// patternJSON is {"String": s} or {"Regex": r}.
type patternJSON struct {
	String *string
	Regex  *string
}

// compile returns the pattern; custom reports a general regular expression.
func (p patternJSON) compile() (pat pattern, custom bool, err error) {
	switch {
	case p.String != nil && p.Regex == nil:
		return literal(*p.String), false, nil
	case p.Regex != nil && p.String == nil:
		return compileRegex(*p.Regex)
	}
	return nil, false, errors.New(`pattern must have one of "String" and "Regex"`)
}

// postPiece is a step of the post-processor's template: the text's own ids,
// or constant ones.
type postPiece struct {
	sequence bool
	ids      []int32
}

// parsePostProcessor returns the template for single texts.
func parsePostProcessor(raw json.RawMessage, depth int) ([]postPiece, error) {
	identity := []postPiece{{sequence: true}}
	if isNull(raw) {
		return identity, nil
	}
	kind, err := component(raw, depth)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "ByteLevel": // moves offsets only
		return identity, nil
	case "TemplateProcessing":
		return parseTemplate(raw)
	case "Sequence":
		var c struct {
			Processors []json.RawMessage `json:"processors"`
		}
		if err := unmarshal(raw, kind, &c); err != nil {
			return nil, err
		}
		all := identity
		for _, r := range c.Processors {
			outer, err := parsePostProcessor(r, depth+1)
			if err != nil {
				return nil, err
			}
			if all, err = nest(outer, all); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	return nil, unsupported(kind)
}

// nest puts inner in the place of outer's sequences.
func nest(outer, inner []postPiece) ([]postPiece, error) {
	var all []postPiece
	for _, p := range outer {
		if p.sequence {
			all = append(all, inner...)
		} else {
			all = append(all, p)
		}
		if len(all) > maxTemplate {
			return nil, fmt.Errorf("the template has more than %d pieces", maxTemplate)
		}
	}
	return all, nil
}

const maxTemplate = 1024

func parseTemplate(raw json.RawMessage) ([]postPiece, error) {
	var c struct {
		Single []struct {
			SpecialToken *struct {
				ID string `json:"id"`
			}
			Sequence *struct {
				ID string `json:"id"`
			}
		} `json:"single"`
		SpecialTokens map[string]struct {
			IDs []int32 `json:"ids"`
		} `json:"special_tokens"`
	}
	if err := unmarshal(raw, "TemplateProcessing", &c); err != nil {
		return nil, err
	}
	if len(c.Single) > maxTemplate {
		return nil, fmt.Errorf("the template has more than %d pieces", maxTemplate)
	}
	var pieces []postPiece
	for _, p := range c.Single {
		switch {
		case p.Sequence != nil:
			if p.Sequence.ID != "A" {
				return nil, fmt.Errorf("in TemplateProcessing: single has sequence %q: it must be A", p.Sequence.ID)
			}
			pieces = append(pieces, postPiece{sequence: true})
		case p.SpecialToken != nil:
			tok, ok := c.SpecialTokens[p.SpecialToken.ID]
			if !ok {
				return nil, fmt.Errorf("in TemplateProcessing: special_tokens lacks %q", p.SpecialToken.ID)
			}
			pieces = append(pieces, postPiece{ids: tok.IDs})
		default:
			return nil, errors.New("in TemplateProcessing: a piece is neither SpecialToken nor Sequence")
		}
	}
	return pieces, nil
}
