package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// adminTrace answers GET /admin/trace?model=NAME&duration=2s with a wire.Trace:
// the timeline of a model's process from now on.
func (g *Gateway) adminTrace(c *gin.Context) {
	m, bad := g.model(c.Query("model"))
	if bad != nil {
		g.fail(c, bad)
		return
	}
	length, err := time.ParseDuration(c.Query("duration"))
	if err != nil || length <= 0 || length > wire.MaxTrace {
		g.fail(c, badParam("duration", "invalid_value", fmt.Sprintf("duration is %s; want a duration such as 2s, at most %v",
			quote(c.Query("duration")), wire.MaxTrace)))
		return
	}
	if !m.Upstream.Alive() {
		g.fail(c, unavailable(m.Name, "is not running"))
		return
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), length+checkTimeout)
	defer cancel()
	trace, err := m.Upstream.Trace(ctx, length)
	if err != nil {
		g.fail(c, unavailable(m.Name, "does not answer: "+err.Error()))
		return
	}
	g.writeJSON(c, http.StatusOK, trace)
}
