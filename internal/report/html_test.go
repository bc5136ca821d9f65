package report_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/firsttoken/firsttoken/internal/report"
)

// check reads a page as XML, which it is but for its doctype and the void
// elements of its head, and gives the elements it has.
func check(t *testing.T, name, page string) map[string]int {
	t.Helper()
	page = strings.TrimPrefix(page, "<!doctype html>")
	page = strings.Replace(page, `<meta charset="utf-8">`, "", 1)
	page = strings.Replace(page, `<meta name="viewport" content="width=device-width">`, "", 1)
	d := xml.NewDecoder(strings.NewReader(page))
	elements := map[string]int{}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return elements
		}
		if err != nil {
			t.Fatalf("%s: %v at %d of\n%s", name, err, d.InputOffset(), page)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		elements[start.Name.Local]++
		for _, a := range start.Attr {
			switch a.Name.Local {
			case "x", "y", "x1", "x2", "y1", "y2", "width", "height":
				if v, err := strconv.ParseFloat(a.Value, 64); a.Value != "" && (err != nil || v < -0.05 || v > 5000) {
					t.Errorf("%s: %s=%q of a %s", name, a.Name.Local, a.Value, start.Name.Local)
				}
			case "src", "href", "onerror", "onload":
				t.Errorf("%s: a %s has %s=%q: a page needs nothing and does nothing", name, start.Name.Local, a.Name.Local, a.Value)
			}
		}
	}
}

func TestHTML(t *testing.T) {
	t.Parallel()
	for name, r := range reports() {
		var page bytes.Buffer
		if err := r.WriteHTML(&page); err != nil {
			t.Fatal(err)
		}
		elements := check(t, name, page.String())
		if elements["script"]+elements["img"]+elements["link"]+elements["b"] > 0 || elements["h1"] != 1 || elements["pre"] != 1 {
			t.Errorf("%s: elements %v", name, elements)
		}
		charts := strings.Count(page.String(), `role="img"`)
		if want := map[string]int{"full": 4, "many": 4, "empty": 0, "goodput": 0}; charts != want[name] && (name == "full" || want[name] == 0 && len(r.Runs) == 0) {
			t.Errorf("%s: %d charts, want %d", name, charts, want[name])
		}
	}
}

// Every run has its curve, in each chart that has runs.
func TestChartsShowEveryRun(t *testing.T) {
	t.Parallel()
	r := reports()["full"]
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, run := range r.Runs {
		if n := strings.Count(page.String(), run.Name); n < 2 {
			t.Errorf("%s is named %d times", run.Name, n)
		}
	}
	// Curves of 2 runs in 2 charts and the arrivals; legends of 2 runs and 2 engines.
	if n := strings.Count(page.String(), "<path "); n != 5+4 {
		t.Errorf("%d curves", n)
	}
	// The parts of a bar are to scale and fill it.
	parts := map[string]float64{}
	_, bars, _ := strings.Cut(page.String(), "<h2>Share of requests by engine</h2>")
	d := xml.NewDecoder(strings.NewReader(bars))
	for {
		token, err := d.Token()
		if err != nil {
			break
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			at := map[string]string{}
			for _, a := range e.Attr {
				at[a.Name.Local] = a.Value
			}
			w, _ := strconv.ParseFloat(at["width"], 64)
			parts[at["x"]+" "+at["y"]] = w
		}
	}
	if len(parts) != 4 {
		t.Fatalf("parts %v", parts)
	}
	for place, w := range parts {
		if strings.HasPrefix(place, "0.0 ") && (w < 613-1 || w > 613+1) { // 0.7 of 876
			t.Errorf("the part at %s is %v wide", place, w)
		}
	}
}

func TestChartsOfOddValues(t *testing.T) {
	t.Parallel()
	for name, chart := range map[string]string{
		"no runs":            report.DistributionChart("x", nil),
		"empty runs":         report.DistributionChart("x", [][]float64{{}, {}}),
		"zeros":              report.DistributionChart("x", [][]float64{{0, 0, 0}}),
		"one value":          report.DistributionChart("x", [][]float64{{5}}),
		"zeros and more":     report.DistributionChart("x", [][]float64{{0, 0, 1, 2, 1000}, {}}),
		"far apart":          report.DistributionChart("x", [][]float64{{1e-9, 1, 1e12}}),
		"no curves":          report.LineChart("x", "y"),
		"one point":          report.LineChart("x", "y", []report.Point{{X: 0, Y: 1}}),
		"level at nothing":   report.LineChart("x", "y", []report.Point{{X: 0, Y: 0}, {X: 9, Y: 0}}),
		"tiny":               report.LineChart("x", "y", []report.Point{{X: 0, Y: 1e-7}, {X: 1e-6, Y: 1e-7}}),
		"huge, with <names>": report.LineChart("<x>", "<y>", []report.Point{{X: 0, Y: 1e15}, {X: 1e12, Y: 3}}),
	} {
		check(t, name, chart)
		if strings.Contains(chart, "NaN") || strings.Contains(chart, "Inf") || len(chart) == 0 || len(chart) > 1<<20 {
			t.Errorf("%s: %.300s", name, chart)
		}
	}
}
