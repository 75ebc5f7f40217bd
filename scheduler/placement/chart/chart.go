// Package chart draws plain SVG charts: lines, steps, dots and bars over two axes.
package chart

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Kind is the way in which a series is drawn.
type Kind uint8

// Kinds of series.
const (
	Line Kind = iota
	Dots
	Bars
)

// Series is a list of points in one colour. Bars of several series are drawn side by side.
type Series struct {
	Name string
	Kind Kind
	X, Y []float64
}

// Figure is one chart. Labels, if given, name the positions 0, 1, ... of the X axis.
type Figure struct {
	Title, X, Y string
	Labels      []string
	Series      []Series
}

const (
	width, height            = 720, 440
	left, right, top, bottom = 70, 20, 40, 70
)

var colours = [...]string{"#1b6ca8", "#d1495b", "#3f8f4f", "#8c6bb1", "#e6a01d", "#555555", "#17a2b8"}

type frame struct {
	x0, x1, y0, y1 float64
}

func (f frame) at(x, y float64) (px, py float64) {
	return left + (x-f.x0)/(f.x1-f.x0)*(width-left-right), height - bottom - (y-f.y0)/(f.y1-f.y0)*(height-top-bottom)
}

// SVG draws the figure.
func (f *Figure) SVG() []byte {
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="%s" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", namespace, width, height)
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	text(&out, width/2, 20, "middle", 15, f.Title)
	text(&out, width/2, height-26, "middle", 12, f.X)
	fmt.Fprintf(&out, `<g transform="translate(16 %d) rotate(-90)">`, (top+height-bottom)/2)
	text(&out, 0, 0, "middle", 12, f.Y)
	out.WriteString("</g>\n")
	area := f.frame()
	f.axes(&out, area)
	bars, bar := 0, 0
	for _, s := range f.Series {
		if s.Kind == Bars {
			bars++
		}
	}
	for i, s := range f.Series {
		colour := colours[i%len(colours)]
		switch s.Kind {
		case Line:
			out.WriteString(`<polyline fill="none" stroke-width="2" stroke="` + colour + `" points="`)
			for j := range s.X {
				x, y := area.at(s.X[j], s.Y[j])
				fmt.Fprintf(&out, "%.1f,%.1f ", x, y)
			}
			out.WriteString("\"/>\n")
		case Dots:
			for j := range s.X {
				x, y := area.at(s.X[j], s.Y[j])
				fmt.Fprintf(&out, `<circle cx="%.1f" cy="%.1f" r="2" fill="%s" fill-opacity="0.4"/>`+"\n", x, y, colour)
			}
		case Bars:
			wide := 0.8 / float64(bars)
			for j := range s.X {
				from := s.X[j] - 0.4 + wide*float64(bar)
				x0, y0 := area.at(from, max(area.y0, 0))
				x1, y1 := area.at(from+wide, s.Y[j])
				fmt.Fprintf(&out, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x0, y1, x1-x0, y0-y1, colour)
			}
			bar++
		}
		x := left + 10 + (width-left-right)*i/max(len(f.Series), 1)
		fmt.Fprintf(&out, `<rect x="%d" y="%d" width="10" height="10" fill="%s"/>`, x, height-18, colour)
		text(&out, float64(x+14), height-9, "start", 11, s.Name)
	}
	out.WriteString("</svg>\n")
	return []byte(out.String())
}

// namespace identifies the SVG format; nothing is fetched from this address.
const namespace = "http://www.w3.org/2000/svg"

func text(out *strings.Builder, x, y float64, anchor string, size int, s string) {
	fmt.Fprintf(out, `<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d">%s</text>`+"\n", x, y, anchor, size, html.EscapeString(s))
}

// frame returns the bounds of all points; a Y axis without negative values starts at 0.
func (f *Figure) frame() frame {
	area := frame{math.Inf(1), math.Inf(-1), 0, 0}
	for _, s := range f.Series {
		for i := range s.X {
			area.x0, area.x1 = min(area.x0, s.X[i]), max(area.x1, s.X[i])
			area.y0, area.y1 = min(area.y0, s.Y[i]), max(area.y1, s.Y[i])
		}
	}
	if len(f.Labels) > 0 {
		area.x0, area.x1 = -0.5, float64(len(f.Labels))-0.5
	}
	if !(area.x1 > area.x0) {
		area.x0, area.x1 = 0, 1
	}
	if area.y1 == area.y0 {
		area.y1++
	}
	area.y1 += 0.05 * (area.y1 - area.y0)
	return area
}

func (f *Figure) axes(out *strings.Builder, area frame) {
	x0, y0 := area.at(area.x0, area.y0)
	x1, y1 := area.at(area.x1, area.y1)
	fmt.Fprintf(out, `<path d="M%.1f %.1fV%.1fH%.1f" fill="none" stroke="black"/>`+"\n", x0, y1, y0, x1)
	for _, tick := range ticks(area.y0, area.y1) {
		_, y := area.at(area.x0, tick)
		fmt.Fprintf(out, `<path d="M%.1f %.1fH%.1f" stroke="#dddddd"/>`+"\n", x0, y, x1)
		text(out, x0-6, y+4, "end", 11, fmt.Sprintf("%g", tick))
	}
	if len(f.Labels) > 0 {
		for i, label := range f.Labels {
			x, _ := area.at(float64(i), 0)
			text(out, x, y0+16, "middle", 10, label)
		}
		return
	}
	for _, tick := range ticks(area.x0, area.x1) {
		x, _ := area.at(tick, 0)
		text(out, x, y0+16, "middle", 11, fmt.Sprintf("%g", tick))
	}
}

// ticks returns about five round numbers in a range.
func ticks(from, to float64) []float64 {
	step := math.Pow(10, math.Floor(math.Log10((to-from)/5)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if (to-from)/(step*factor) <= 6 {
			step *= factor
			break
		}
	}
	var all []float64
	for i := math.Ceil(from / step); i*step <= to; i++ {
		all = append(all, math.Round(i*step*1e9)/1e9)
	}
	return all
}

// CDF returns the series of a cumulative distribution, in percent.
func CDF(name string, sorted []float64) Series {
	s := Series{Name: name}
	for i, v := range sorted {
		if i+1 < len(sorted) && sorted[i+1] == v {
			continue
		}
		below := 0.0
		if len(s.Y) > 0 {
			below = s.Y[len(s.Y)-1]
		}
		s.X = append(s.X, v, v)
		s.Y = append(s.Y, below, 100*float64(i+1)/float64(len(sorted)))
	}
	return s
}
