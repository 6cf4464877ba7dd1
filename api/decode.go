package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"
)

// drainMost bounds what is read and thrown away of a body that is too large.
// A client that is still sending when the answer comes would otherwise see a
// broken connection instead of the answer.
const drainMost = 256 << 20

// decode reads a JSON body into v. Unknown fields are tolerated: SDKs send
// extras of other servers.
func (g *Gateway) decode(c *gin.Context, v any) *apiError {
	body, e := g.readBody(c)
	if e != nil {
		return e
	}
	return parseJSON(body, v)
}

func (g *Gateway) readBody(c *gin.Context) ([]byte, *apiError) {
	r := c.Request
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, &apiError{status: http.StatusUnsupportedMediaType, kind: typeInvalid, code: "unsupported_encoding",
			message: fmt.Sprintf("Content-Encoding %s is not supported: send the JSON as it is", quote(enc))}
	}
	if r.ContentLength > g.opt.MaxBody {
		if c.GetHeader("Expect") == "" { // one that waits for leave to send is given none
			g.drain(c)
		}
		c.Header("Connection", "close")
		return nil, g.tooLarge()
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, g.opt.MaxBody+1))
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return nil, &apiError{status: http.StatusRequestTimeout, kind: typeInvalid, code: "request_timeout",
			message: fmt.Sprintf("The body did not arrive within %v", g.opt.ReadTimeout)}
	case err != nil:
		return nil, badParam("", "invalid_body", "The body could not be read: "+err.Error())
	case int64(len(body)) > g.opt.MaxBody:
		g.drain(c)
		return nil, g.tooLarge()
	}
	arrived(c)
	return body, nil
}

func (g *Gateway) tooLarge() *apiError {
	return &apiError{status: http.StatusRequestEntityTooLarge, kind: typeInvalid, code: "request_too_large",
		message: fmt.Sprintf("The body is larger than %d bytes, the limit of this server", g.opt.MaxBody)}
}

// drain throws the rest of the body away.
func (g *Gateway) drain(c *gin.Context) {
	c.Header("Connection", "close")
	// A failure means that the client stopped sending, which ends it as well.
	_, _ = io.Copy(io.Discard, io.LimitReader(c.Request.Body, drainMost))
}

// arrived says that the whole request is here: the connection is no longer one
// that may be waiting for nothing, and the deadline for reading, which would
// otherwise look like the client's departure, is lifted.
func arrived(c *gin.Context) {
	if p, ok := c.Request.Context().Value(placeKey{}).(*place); ok {
		p.serving.Store(true)
	}
	// Handlers under test may have no connection; they have no deadline either.
	_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Time{})
}

// parseJSON decodes one JSON value and says where it went wrong.
func parseJSON(body []byte, v any) *apiError {
	if len(strings.TrimSpace(string(body[:min(len(body), 64)]))) == 0 && len(body) <= 64 {
		return badParam("", "invalid_json", "The body is empty: a JSON object is needed")
	}
	if !utf8.Valid(body) {
		return badParam("", "invalid_utf8", fmt.Sprintf("The body is not valid UTF-8 (byte %d)", firstInvalid(body)))
	}
	err := json.Unmarshal(body, v)
	if err == nil {
		return nil
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		field := fieldPath(kind.Field)
		if field == "" {
			return badParam("", "invalid_type", fmt.Sprintf("The body is a JSON %s: it must be an object", kind.Value))
		}
		return badParam(field, "invalid_type",
			fmt.Sprintf("%s is a JSON %s: it must be %s", field, kind.Value, typeName(kind.Type.String())))
	case errors.As(err, &syntax):
		return badParam("", "invalid_json", fmt.Sprintf("The body is not valid JSON (byte %d): %v", syntax.Offset, err))
	}
	return badParam("", "invalid_json", "The body is not valid JSON: "+err.Error())
}

// fieldPath removes the names of embedded Go structs, which clients do not know.
func fieldPath(f string) string { return strings.ReplaceAll(f, "Sampling.", "") }

// typeName says in JSON's words what a Go type accepts.
func typeName(t string) string {
	t = strings.TrimPrefix(t, "*")
	switch {
	case t == "string":
		return "a string"
	case t == "bool":
		return "true or false"
	case strings.HasPrefix(t, "float"):
		return "a number"
	case t == "int", t == "int64":
		return "an integer of at most 64 bits"
	case t == "int32":
		return "an integer of at most 32 bits"
	case strings.HasPrefix(t, "[]"):
		return "a list"
	}
	return "an object"
}

func firstInvalid(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(b)
}
