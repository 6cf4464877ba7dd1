package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// AdminStatus answers GET /admin/status.
type AdminStatus struct {
	Version string       `json:"version"`
	Models  []AdminModel `json:"models"`
}

// AdminModel is one model in an AdminStatus.
type AdminModel struct {
	Name  string `json:"name"`
	Role  string `json:"role"`
	Alive bool   `json:"alive"`
	// MaxTokens is the longest sequence that the gateway admits at present.
	MaxTokens int `json:"max_tokens"`
	// Status is nil where the process did not answer.
	Status *wire.Status `json:"status"`
}

// AdminHandler returns the routes for operators. They have no keys of their
// own: serve them where only operators can reach them, such as a Unix socket
// with mode 0600, and never on the API's listener.
func (g *Gateway) AdminHandler() http.Handler {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.RedirectTrailingSlash = false
	e.Use(g.recoverPanic)
	e.NoRoute(func(c *gin.Context) {
		g.fail(c, &apiError{status: http.StatusNotFound, kind: typeInvalid, code: "not_found",
			message: "There is no " + quote(c.Request.URL.Path) + ". Routes: /admin/status"})
	})
	e.NoMethod(g.noMethod)
	e.GET("/admin/status", func(c *gin.Context) {
		out := AdminStatus{Version: g.opt.Version, Models: []AdminModel{}}
		for i, s := range askAll(c.Request.Context(), g.models) {
			m := g.models[i]
			out.Models = append(out.Models, AdminModel{Name: m.Name, Role: m.Role, Alive: m.Upstream.Alive(),
				MaxTokens: m.MaxTokens(), Status: s})
		}
		g.writeJSON(c, http.StatusOK, out)
	})
	return e
}
