package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
)

// find compares against every key, so that the time does not tell which one
// matched; nil: none did.
func (s keySet) find(key string) *tenant {
	h := sha256.Sum256([]byte(key))
	at := -1
	for i := range s {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(h[:], s[i].hash[:]), i, at)
	}
	if at < 0 {
		return nil
	}
	return s[at].tenant
}

// authenticate guards every route but /health when keys are set, routes that
// do not exist included.
func (g *Gateway) authenticate(c *gin.Context) {
	if len(g.keys) == 0 || c.Request.URL.Path == "/health" {
		return
	}
	key := c.GetHeader("x-api-key")
	if scheme, rest, ok := strings.Cut(c.GetHeader("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		key = strings.TrimSpace(rest)
	}
	if key != "" {
		if t := g.keys.find(key); t != nil {
			c.Set(tenantKey, t)
			return
		}
	}
	message := "Incorrect API key"
	if key == "" {
		message = `An API key is needed: send "Authorization: Bearer KEY" or "x-api-key: KEY"`
	}
	c.Header("WWW-Authenticate", "Bearer")
	g.fail(c, &apiError{status: http.StatusUnauthorized, kind: typeInvalid, code: "invalid_api_key", message: message})
}
