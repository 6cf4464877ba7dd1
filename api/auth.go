package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
)

// keySet holds hashes of the accepted API keys: hashes are of equal length, so
// a comparison tells nothing about a key's length either.
type keySet [][sha256.Size]byte

func newKeySet(keys []string) keySet {
	var s keySet
	for _, k := range keys {
		if k != "" {
			s = append(s, sha256.Sum256([]byte(k)))
		}
	}
	return s
}

// has compares against every key, so that the time does not tell which one matched.
func (s keySet) has(key string) bool {
	h := sha256.Sum256([]byte(key))
	found := 0
	for i := range s {
		found |= subtle.ConstantTimeCompare(h[:], s[i][:])
	}
	return found == 1
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
	if key != "" && g.keys.has(key) {
		return
	}
	message := "Incorrect API key"
	if key == "" {
		message = `An API key is needed: send "Authorization: Bearer KEY" or "x-api-key: KEY"`
	}
	c.Header("WWW-Authenticate", "Bearer")
	g.fail(c, &apiError{status: http.StatusUnauthorized, kind: typeInvalid, code: "invalid_api_key", message: message})
}
