package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/kvlend/kvlend/coordinator/wire"
)

// checkTimeout bounds what a process may take to check itself; it takes time
// proportional to its units and blocks.
const checkTimeout = 20 * time.Second

// maxAdminBody bounds a request to the admin routes.
const maxAdminBody = 64 << 10

// AdminStatus answers GET /admin/status.
type AdminStatus struct {
	Version string       `json:"version"`
	Models  []AdminModel `json:"models"`
	// Links are those that rank lenders, with where their bandwidth comes from.
	Links []AdminLink `json:"links,omitempty"`
}

// AdminLink is one direction between two devices.
type AdminLink struct {
	From        string `json:"from"`
	To          string `json:"to"`
	BytesPerSec int64  `json:"bytes_per_sec"`
	Source      string `json:"source"` // "measured", "nvml" or "config"
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

// AdminCheck answers GET /admin/check: one round of reports.
type AdminCheck struct {
	Reports []*wire.CheckReport `json:"reports"`
	// Missing says which models did not report, and why.
	Missing []AdminMissing `json:"missing,omitempty"`
}

// AdminMissing is a model that did not report.
type AdminMissing struct {
	Model  string `json:"model"`
	Reason string `json:"reason"`
}

// AdminDrain is the body of POST /admin/drain; wire.DrainState answers it.
// Repeating it asks for the progress.
type AdminDrain struct {
	Model string `json:"model"`
	Undo  bool   `json:"undo"`
}

// AdminUnload is the body of POST /admin/pool/drain; wire.UnloadState answers it.
// Repeating it asks for the progress.
type AdminUnload struct {
	Model  string `json:"model"`
	Device string `json:"device"`
	Undo   bool   `json:"undo"`
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
			message: "There is no " + quote(c.Request.URL.Path) + ". Routes: /admin/status, /admin/check, /admin/drain, /admin/pool/drain, /admin/trace"})
	})
	e.NoMethod(g.noMethod)
	e.GET("/admin/status", g.adminStatus)
	e.GET("/admin/check", g.adminCheck)
	e.POST("/admin/drain", g.adminDrain)
	e.POST("/admin/pool/drain", g.adminUnload)
	e.GET("/admin/trace", g.adminTrace)
	return e
}

func (g *Gateway) adminStatus(c *gin.Context) {
	out := AdminStatus{Version: g.opt.Version, Models: []AdminModel{}, Links: g.opt.Links}
	for i, s := range askAll(c.Request.Context(), g.models) {
		m := g.models[i]
		out.Models = append(out.Models, AdminModel{Name: m.Name, Role: m.Role, Alive: m.Upstream.Alive(),
			MaxTokens: m.MaxTokens(), Status: s})
	}
	g.writeJSON(c, http.StatusOK, out)
}

func (g *Gateway) adminCheck(c *gin.Context) {
	ctx, cancel := context.WithTimeout(c.Request.Context(), checkTimeout)
	defer cancel()
	reports := make([]*wire.CheckReport, len(g.models))
	errs := make([]error, len(g.models))
	var wg sync.WaitGroup
	for i, m := range g.models {
		if !m.Upstream.Alive() {
			errs[i] = errors.New("its process is not connected")
			continue
		}
		wg.Go(func() { reports[i], errs[i] = m.Upstream.Check(ctx) })
	}
	wg.Wait()
	out := AdminCheck{Reports: []*wire.CheckReport{}}
	for i, m := range g.models {
		if errs[i] != nil {
			out.Missing = append(out.Missing, AdminMissing{m.Name, errs[i].Error()})
			continue
		}
		out.Reports = append(out.Reports, reports[i])
	}
	g.writeJSON(c, http.StatusOK, out)
}

// adminBody decodes the body of an admin request, or answers with what it must be.
func (g *Gateway) adminBody(c *gin.Context, in any, must string) bool {
	dec := json.NewDecoder(http.MaxBytesReader(c.Writer, c.Request.Body, maxAdminBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(in); err != nil {
		g.fail(c, badParam("", "invalid_json", "The body must be "+must+": "+err.Error()))
		return false
	}
	return true
}

// running finds a model whose process answers, or answers that there is none.
func (g *Gateway) running(c *gin.Context, name string) *Model {
	m, bad := g.model(name)
	if bad == nil && !m.Upstream.Alive() {
		bad = unavailable(m.Name, "is not running")
	}
	if bad != nil {
		g.fail(c, bad)
		return nil
	}
	return m
}

func (g *Gateway) adminUnload(c *gin.Context) {
	var in AdminUnload
	if !g.adminBody(c, &in, `{"model": NAME, "device": NAME, "undo": false}`) {
		return
	}
	m := g.running(c, in.Model)
	if m == nil {
		return
	}
	if in.Device == "" || len(in.Device) > wire.MaxName {
		g.fail(c, badParam("device", "invalid_value", fmt.Sprintf("device has %d bytes: it must have 1 to %d", len(in.Device), wire.MaxName)))
		return
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), checkTimeout)
	defer cancel()
	st, err := m.Upstream.Unload(ctx, in.Device, in.Undo)
	switch {
	case err != nil:
		g.fail(c, unavailable(m.Name, "does not answer: "+err.Error()))
	case st.Unknown != "":
		g.fail(c, &apiError{status: http.StatusNotFound, kind: typeInvalid, code: "not_found", message: m.Name + ": " + st.Unknown})
	default:
		g.writeJSON(c, http.StatusOK, st)
	}
}

func (g *Gateway) adminDrain(c *gin.Context) {
	var in AdminDrain
	if !g.adminBody(c, &in, `{"model": NAME, "undo": false}`) {
		return
	}
	m := g.running(c, in.Model)
	if m == nil {
		return
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), checkTimeout)
	defer cancel()
	st, err := m.Upstream.Drain(ctx, in.Undo)
	if err != nil {
		g.fail(c, unavailable(m.Name, "does not answer: "+err.Error()))
		return
	}
	g.writeJSON(c, http.StatusOK, st)
}
