package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
)

// The charts are written here and not by a plotting library: they stand inline in
// a page, take the colours of its light or dark mode, and name what the pointer
// is on.

// Size of a chart in its own units, and what is left around it for labels.
const (
	chartWidth, chartHeight = 640.0, 300.0
	leftEdge, rightEdge     = 64.0, 24.0
	topEdge, bottomEdge     = 12.0, 44.0
)

// axis maps values to places.
type axis struct {
	low, high float64
	log       bool
	ticks     []tick
}

type tick struct {
	at   float64
	text string
}

func (a *axis) share(v float64) float64 {
	if a.log {
		return math.Log(v/a.low) / math.Log(a.high/a.low)
	}
	return (v - a.low) / (a.high - a.low)
}

// curve is a line of a chart; the system's place is its colour.
type curve struct {
	name   string
	system int
	points [][2]float64
}

// logTimes is a logarithmic axis of seconds around some values.
func logTimes(low, high float64) axis {
	a := axis{low: low / 1.1, high: high * 1.1, log: true}
	at := []float64{1}
	switch wide := a.high / a.low; {
	case wide < 1.5:
		at = []float64{1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2, 2.2, 2.4, 2.6, 2.8, 3, 3.3, 3.6, 4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5, 8, 8.5, 9, 9.5}
	case wide < 8:
		at = []float64{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8}
	case wide < 200:
		at = []float64{1, 2, 5}
	}
	for e := math.Floor(math.Log10(a.low)); e <= math.Ceil(math.Log10(a.high)); e++ {
		for _, m := range at {
			if v := m * math.Pow(10, e); v >= a.low && v <= a.high {
				a.ticks = append(a.ticks, tick{v, plain(duration(v))})
			}
		}
	}
	return a
}

// plain drops the zeros after a figure's point.
func plain(s string) string {
	number, unit, _ := strings.Cut(s, " ")
	if strings.Contains(number, ".") {
		number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return strings.TrimSpace(number + " " + unit)
}

// fromZero is a linear axis with about five ticks.
func fromZero(high float64, text func(float64) string) axis {
	if high <= 0 {
		high = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(high/4)))
	for _, m := range []float64{5, 2} {
		if high/(step*m) >= 3 {
			step *= m
			break
		}
	}
	a := axis{high: high * 1.05}
	for i := 0; float64(i)*step <= a.high; i++ {
		v := float64(i) * step
		a.ticks = append(a.ticks, tick{v, plain(text(v))})
	}
	return a
}

// clock is a linear axis of virtual time.
func clock(high float64) axis {
	unit, name := 1.0, "s"
	switch {
	case high > 3*3600:
		unit, name = 3600, "h"
	case high > 180:
		unit, name = 60, "min"
	}
	a := fromZero(high/unit, func(v float64) string { return three(v) + " " + name })
	a.high = high
	for i := range a.ticks {
		a.ticks[i].at *= unit
	}
	for n := len(a.ticks); n > 0 && a.ticks[n-1].at > high; n-- {
		a.ticks = a.ticks[:n-1]
	}
	return a
}

// lines draws curves.
func lines(title, xLabel string, x, y axis, curves []curve) template.HTML {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, chartWidth, chartHeight, html.EscapeString(title))
	px := func(v float64) float64 { return leftEdge + x.share(v)*(chartWidth-leftEdge-rightEdge) }
	py := func(v float64) float64 {
		return chartHeight - bottomEdge - y.share(v)*(chartHeight-topEdge-bottomEdge)
	}
	for _, t := range x.ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/>`, px(t.at), px(t.at), topEdge, chartHeight-bottomEdge)
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`, px(t.at), chartHeight-bottomEdge+17, html.EscapeString(t.text))
	}
	for _, t := range y.ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/>`, leftEdge, chartWidth-rightEdge, py(t.at), py(t.at))
		fmt.Fprintf(&b, `<text x="%g" y="%.1f" text-anchor="end">%s</text>`, leftEdge-7, py(t.at)+4, html.EscapeString(t.text))
	}
	fmt.Fprintf(&b, `<text class="label" x="%.1f" y="%g" text-anchor="middle">%s</text>`, (leftEdge+chartWidth-rightEdge)/2, chartHeight-6, html.EscapeString(xLabel))
	for _, c := range curves {
		var path strings.Builder
		for i, p := range c.points {
			verb := "L"
			if i == 0 {
				verb = "M"
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", verb, px(p[0]), py(p[1]))
		}
		fmt.Fprintf(&b, `<path class="curve s%d" d="%s"><title>%s</title></path>`, c.system%colours, path.String(), html.EscapeString(c.name))
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

// colours are how many curves can be told apart (page.html has them).
const colours = 6

// cdf draws distribution functions over a logarithmic axis.
func (r *Report) cdf(title string, of func(*Load) *Dist) template.HTML {
	low, high := math.Inf(1), 0.0
	var curves []curve
	for i := range r.Systems {
		d := of(r.Systems[i].main())
		c := curve{name: r.Systems[i].Name, system: i}
		before := 0.0
		for _, p := range d.CDF {
			v := max(p[0], leastTime)
			low, high = min(low, v), max(high, v)
			c.points = append(c.points, [2]float64{v, before}, [2]float64{v, p[1]})
			before = p[1]
		}
		if len(c.points) > 0 {
			curves = append(curves, c)
		}
	}
	if len(curves) == 0 {
		return ""
	}
	y := axis{high: 1}
	for _, v := range []float64{0, 0.25, 0.5, 0.75, 0.9, 0.99} {
		y.ticks = append(y.ticks, tick{v, fmt.Sprintf("%g %%", 100*v)})
	}
	return lines(title, "time, logarithmic", logTimes(low, high), y, curves)
}

// leastTime is the smallest that a logarithmic axis shows.
const leastTime = 1e-5

// over draws a quantity over virtual time.
func (r *Report) over(title string, text func(float64) string, of func(*System) *Series) template.HTML {
	high, end := 0.0, 0.0
	var curves []curve
	for i := range r.Systems {
		s := of(&r.Systems[i])
		c := curve{name: r.Systems[i].Name, system: i}
		most := 0.0
		for k, v := range s.Values {
			most = max(most, v)
			c.points = append(c.points, [2]float64{min((float64(k)+0.5)*s.Slice, r.Systems[i].Seconds), v})
		}
		if most > 0 {
			high, end = max(high, most), max(end, r.Systems[i].Seconds)
			curves = append(curves, c)
		}
	}
	if len(curves) == 0 {
		return ""
	}
	return lines(title, "virtual time", clock(end), fromZero(high, text), curves)
}
