package recall

import (
	"fmt"
	"html"
	"io"
	"strings"
)

// The heatmap's measures, in its own units.
const (
	cellWidth, cellHeight = 92.0, 58.0
	mapLeft, mapTop       = 84.0, 96.0
	mapRight, mapBottom   = 28.0, 128.0
	swatch                = 46.0
)

// shades are the colours of rates: blue is right, orange wrong (Okabe and Ito's,
// which people with colour-blindness tell apart). Most of the scale is near 1,
// where models differ.
var shades = []struct {
	rate    float64
	r, g, b float64
}{
	{0, 0xc4, 0x4e, 0x00},
	{0.5, 0xe6, 0x9f, 0x4a},
	{0.8, 0xf7, 0xdc, 0xb8},
	{0.9, 0xf4, 0xf4, 0xf2},
	{0.95, 0xbf, 0xdd, 0xee},
	{0.99, 0x56, 0xa5, 0xd0},
	{1, 0x00, 0x62, 0x9e},
}

// shade is the colour of a rate, and that of text on it.
func shade(rate float64) (fill, ink string) {
	i := 1
	for i < len(shades)-1 && rate > shades[i].rate {
		i++
	}
	lo, hi := shades[i-1], shades[i]
	t := (rate - lo.rate) / (hi.rate - lo.rate)
	mix := func(a, b float64) float64 { return a + t*(b-a) }
	r, g, b := mix(lo.r, hi.r), mix(lo.g, hi.g), mix(lo.b, hi.b)
	ink = "#1a1a1a"
	if 0.299*r+0.587*g+0.114*b < 128 {
		ink = "#ffffff"
	}
	return fmt.Sprintf("#%02x%02x%02x", int(r+0.5), int(g+0.5), int(b+0.5)), ink
}

// WriteSVG draws the accuracy of single facts over distance and facts in play.
func (r *Result) WriteSVG(w io.Writer) error {
	distances, facts := r.distances(), r.facts()
	width := max(mapLeft+cellWidth*float64(len(distances))+mapRight, 640)
	height := mapTop + cellHeight*float64(len(facts)) + mapBottom
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img" font-family="Helvetica, Arial, DejaVu Sans, sans-serif" fill="#1a1a1a">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<rect width=\"%g\" height=\"%g\" fill=\"#ffffff\"/>\n", width, height)
	write := func(x, y, size float64, anchor, style, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" font-size="%g" text-anchor="%s"%s>%s</text>`+"\n", x, y, size, anchor, style, html.EscapeString(s))
	}
	const grey, bold = ` fill="#5a5a5a"`, ` font-weight="bold"`
	write(mapLeft, 28, 17, "start", bold, "What "+r.Model+" recalls: answers that are right, in percent")
	write(mapLeft, 48, 12.5, "start", grey, "single facts: "+r.Single.String())
	if r.False.Asked > 0 {
		write(mapLeft, 65, 12.5, "start", grey, "false answers to what was never told: "+r.False.String())
	}
	for i, f := range facts {
		y := mapTop + cellHeight*float64(i)
		write(mapLeft-10, y+cellHeight/2+5, 13, "end", "", fmt.Sprint(f))
		for j, d := range distances {
			r.drawCell(&b, write, mapLeft+cellWidth*float64(j), y, d, f)
		}
	}
	bottom := mapTop + cellHeight*float64(len(facts))
	for j, d := range distances {
		write(mapLeft+cellWidth*(float64(j)+0.5), bottom+19, 13, "middle", "", tokens(d))
	}
	write(mapLeft+cellWidth*float64(len(distances))/2, bottom+40, 13, "middle", "", "tokens from the fact to the question, up to")
	write(36, mapTop+cellHeight*float64(len(facts))/2, 13, "middle",
		fmt.Sprintf(` transform="rotate(-90 36 %.1f)"`, mapTop+cellHeight*float64(len(facts))/2), "facts in play, up to")
	for i, s := range shades {
		fill, ink := shade(s.rate)
		x := mapLeft + swatch*float64(i)
		fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%g" height="18" fill="%s"/>`+"\n", x, bottom+60, swatch, fill)
		write(x+swatch/2, bottom+73.5, 12, "middle", ` fill="`+ink+`"`, fmt.Sprintf("%g", 100*s.rate))
	}
	write(mapLeft, bottom+97, 12, "start", grey, "Small: the interval that the true rate lies in, 95 times of 100, and the number of questions.")
	write(mapLeft, bottom+113, 12, "start", grey, noFit+": longer than the model's context.   "+noRoom+": too few tokens for so many facts.   "+noAsk+": nothing asked.")
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// drawCell draws a place of the grid.
func (r *Result) drawCell(b *strings.Builder, write func(x, y, size float64, anchor, style, s string), x, y float64, distance, facts int) {
	g, why := r.place(distance, facts)
	rect := func(fill string) {
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%g" height="%g" fill="%s" stroke="#ffffff" stroke-width="2"/>`+"\n", x, y, cellWidth, cellHeight, fill)
	}
	mid := x + cellWidth/2
	if g == nil {
		rect("#ececec")
		write(mid, y+cellHeight/2+4, 12, "middle", ` fill="#767676"`, why)
		return
	}
	fill, ink := shade(g.Rate)
	rect(fill)
	style := ` fill="` + ink + `"`
	number := fmt.Sprintf("%.1f", 100*g.Rate)
	if g.Right == g.Asked {
		number = "100"
	}
	write(mid, y+24, 17, "middle", style+` font-weight="bold"`, number)
	write(mid, y+39, 10.5, "middle", style, fmt.Sprintf("%.0f to %.0f", 100*g.Low, 100*g.High))
	write(mid, y+51, 10.5, "middle", style, fmt.Sprintf("of %d", g.Asked))
}
