package api

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/kvlend/kvlend/api/openai"
	"github.com/kvlend/kvlend/coordinator/wire"
)

// The error types of the protocol.
const (
	typeInvalid   = "invalid_request_error"
	typeServer    = "server_error"
	typeRateLimit = "rate_limit_error"
)

// apiError is an error on its way to a client.
type apiError struct {
	status     int
	kind       string // OpenAI's "type"
	code       string
	param      string
	message    string
	retryAfter time.Duration
	outcome    string // for the metrics; "" means by status
}

// Error implements error.
func (e *apiError) Error() string { return fmt.Sprintf("%d %s: %s", e.status, e.code, e.message) }

func (e *apiError) body() openai.ErrorBody {
	b := openai.ErrorBody{Error: openai.Error{Message: e.message, Type: e.kind}}
	if e.param != "" {
		b.Error.Param = &e.param
	}
	if e.code != "" {
		b.Error.Code = &e.code
	}
	return b
}

func badParam(param, code, message string) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: typeInvalid, code: code, param: param, message: message}
}

// outOfRange is the error for a value outside its accepted range.
func outOfRange(field string, value any, accept string) *apiError {
	return badParam(field, "invalid_value", fmt.Sprintf("%s is %v: it must be %s", field, value, accept))
}

func internalError(message string) *apiError {
	return &apiError{status: http.StatusInternalServerError, kind: typeServer, code: "internal_error", message: message}
}

func unavailable(model, message string) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, kind: typeServer, code: "model_unavailable",
		message: fmt.Sprintf("The model %s %s", quote(model), message), retryAfter: time.Second}
}

// fromFailed turns a model process's error into the client's.
func fromFailed(f *wire.Failed) *apiError {
	e := &apiError{kind: typeServer, code: f.Code, message: f.Message, retryAfter: f.RetryAfter}
	switch f.Code {
	case "context_length_exceeded", "invalid_value", "invalid_request":
		e.status, e.kind = http.StatusBadRequest, typeInvalid
	case "rate_limit_exceeded", "overloaded":
		e.status, e.kind = http.StatusTooManyRequests, typeRateLimit
	case "unavailable", "model_unavailable", "shutting_down":
		e.status = http.StatusServiceUnavailable
	default:
		e.status = http.StatusInternalServerError
		if e.code == "" {
			e.code = "internal_error"
		}
	}
	if e.message == "" {
		e.message = "The model process ended the request without saying why"
	}
	if e.retryAfter > 0 && e.status == http.StatusInternalServerError {
		e.status = http.StatusServiceUnavailable
	}
	return e
}

// fail answers with e, once, and ends the handler chain.
func (g *Gateway) fail(c *gin.Context, e *apiError) {
	if e.status == http.StatusTooManyRequests || e.status == http.StatusServiceUnavailable {
		c.Header("Retry-After", strconv.Itoa(max(1, int(math.Ceil(e.retryAfter.Seconds())))))
	}
	g.writeJSON(c, e.status, e.body())
	c.Abort()
}

// writeJSON writes v as it is: no HTML escapes, which clients in other
// languages would have to undo.
func (g *Gateway) writeJSON(c *gin.Context, status int, v any) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("BUG: an answer did not encode: " + err.Error())
	}
	c.Header("Content-Type", "application/json")
	c.Header("Content-Length", strconv.Itoa(b.Len()))
	c.Status(status)
	// Handlers under test may have no connection, and then no deadline.
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(g.opt.WriteTimeout))
	// An error means that the client is gone; there is nobody left to tell.
	_, _ = c.Writer.WriteString(b.String())
}

// quote shows a client's text in a message, cut to a length that fits one.
func quote(s string) string {
	const most = 64
	if len(s) > most {
		return strconv.Quote(strings.ToValidUTF8(s[:most], "")) + "..."
	}
	return strconv.Quote(s)
}

func (g *Gateway) noRoute(c *gin.Context) {
	g.fail(c, &apiError{status: http.StatusNotFound, kind: typeInvalid, code: "not_found",
		message: fmt.Sprintf("There is no %s %s. Routes: /v1/chat/completions, /v1/completions, /v1/models, "+
			"/tokenize, /detokenize, /health, /version, /metrics", c.Request.Method, quote(c.Request.URL.Path))})
}

func (g *Gateway) noMethod(c *gin.Context) {
	g.fail(c, &apiError{status: http.StatusMethodNotAllowed, kind: typeInvalid, code: "method_not_allowed",
		message: fmt.Sprintf("%s does not accept %s; it accepts %s",
			quote(c.Request.URL.Path), c.Request.Method, c.Writer.Header().Get("Allow"))})
}
