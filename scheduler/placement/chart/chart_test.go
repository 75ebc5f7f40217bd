package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func elements(t *testing.T, svg []byte) map[string]int {
	t.Helper()
	counts := map[string]int{}
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return counts
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := token.(xml.StartElement); ok {
			counts[start.Name.Local]++
		}
	}
}

func TestFigureIsWellFormedAndShowsEveryPoint(t *testing.T) {
	f := Figure{
		Title: "a < b & c", X: "x", Y: "y",
		Series: []Series{
			{Name: "line", X: []float64{0, 1, 2}, Y: []float64{5, 6, 4}},
			{Name: "dots", Kind: Dots, X: []float64{0, 1}, Y: []float64{1, 2}},
		},
	}
	svg := f.SVG()
	if counts := elements(t, svg); counts["polyline"] != 1 || counts["circle"] != 2 {
		t.Errorf("got %v", counts)
	}
	if !strings.Contains(string(svg), "a &lt; b &amp; c") {
		t.Error("the title is not escaped")
	}
}

func TestBarsStandBesideEachOther(t *testing.T) {
	f := Figure{Labels: []string{"p", "q"}, Series: []Series{
		{Name: "before", Kind: Bars, X: []float64{0, 1}, Y: []float64{3, 4}},
		{Name: "after", Kind: Bars, X: []float64{0, 1}, Y: []float64{1, 0}},
	}}
	// Four bars, two of the legend, the background.
	if counts := elements(t, f.SVG()); counts["rect"] != 7 {
		t.Errorf("got %v", counts)
	}
}

func TestEmptyFigureIsWellFormed(t *testing.T) {
	f := Figure{Series: []Series{{Name: "nothing"}}}
	if svg := f.SVG(); bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
		t.Errorf("got %s", svg)
	}
}

func TestCDFEndsAtAll(t *testing.T) {
	s := CDF("x", []float64{1, 1, 2, 4})
	if len(s.Y) != 6 || s.Y[1] != 50 || s.Y[5] != 100 || s.X[5] != 4 {
		t.Errorf("got %+v", s)
	}
}
