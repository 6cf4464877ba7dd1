package api

import (
	"fmt"
	"net/http"
	"runtime/debug"

	"github.com/gin-gonic/gin"
)

// prepare runs first: it keeps the account of which connections are at work.
func (g *Gateway) prepare(c *gin.Context) {
	if c.Request.ContentLength == 0 || c.Request.Body == http.NoBody {
		arrived(c)
	}
	c.Next()
	if p, ok := c.Request.Context().Value(placeKey{}).(*place); ok {
		p.rest()
	}
}

// recoverPanic turns a bug in a handler into an error for that one client.
func (g *Gateway) recoverPanic(c *gin.Context) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if r == http.ErrAbortHandler {
			panic(r)
		}
		g.opt.Logger.Error("handler panicked", "path", c.Request.URL.Path, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		if c.Writer.Written() {
			// Part of an answer is out: a broken connection is the only honest end.
			panic(http.ErrAbortHandler)
		}
		g.fail(c, internalError("The gateway failed on this request; its log says where"))
	}()
	c.Next()
}

// reject answers a request that never reached a model.
func (g *Gateway) reject(c *gin.Context, model string, e *apiError) {
	if m := g.byName[model]; m != nil {
		g.metrics.rejected(m)
	}
	g.fail(c, e)
}
