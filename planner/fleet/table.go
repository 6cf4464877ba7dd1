package fleet

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
)

// Growth is fleets of several sizes, policies and systems.
type Growth struct {
	Model  string  `json:"model"`
	Fleets []Fleet `json:"fleets"`
}

// Fleet is one fleet of a Growth.
type Fleet struct {
	System string `json:"system"`
	*Result
}

// WriteJSON writes everything.
func (g *Growth) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(g)
}

// WriteTable writes a line for each fleet.
func (g *Growth) WriteTable(w io.Writer) error {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = 0 // as written
	t.AppendHeader(table.Row{"servers", "routing", "system", "answered", "TTFT P50", "P90", "P99", "time per token P50", "not computed", "lent per server",
		"messages/s", "reclaims/s", "most loaded", "prefixes known"})
	sampled := false
	for _, r := range g.Fleets {
		a := r.Answers
		sampled = sampled || r.Simulated < r.Servers
		t.AppendRow(table.Row{r.Servers, r.Policy, r.System, a.Answered,
			ms(a.All.Quantile(0.5)), ms(a.All.Quantile(0.9)), ms(a.All.Quantile(0.99)), ms(a.Token.Quantile(0.5)),
			fmt.Sprintf("%.1f %%", 100*r.Hit), fmt.Sprintf("%.3g GB", r.LentMean/1e9), fmt.Sprintf("%.3g", r.Messages), fmt.Sprintf("%.3g", r.Reclaims),
			fmt.Sprintf("%.2f of the mean", r.Imbalance), r.Prefixes})
	}
	text := fmt.Sprintf("SIMULATED fleets of servers, each with %s and its workers\n%s\n", g.Model, t.Render())
	text += "messages and reclaims are the whole fleet's, per second of virtual time\n"
	if sampled {
		text += "larger fleets are a sample: all sessions were routed, some servers simulated; percentiles and answers are those of the sample, rates are scaled up\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

func ms(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.3g ms", seconds*1e3)
}
