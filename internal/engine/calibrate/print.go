package calibrate

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Targets of the validation.
const (
	targetRun  = 0.03
	targetTTFT = 0.10
	targetTPOT = 0.06
	targetKnee = 0.10
)

func columns(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

func millis(d time.Duration) string { return fmt.Sprintf("%.1f", milli(d)) }

// verdict of a number against its target.
func verdict(v, target float64) string {
	if v <= target {
		return "met"
	}
	return "MISSED"
}

// PrintRuns writes the table of replayed runs.
func PrintRuns(w io.Writer, checks []RunCheck) error {
	fmt.Fprintf(w, "Requests as measured, replayed on the profile fitted to them (target: each within %s)\n\n", percent(targetRun))
	t := columns(w)
	fmt.Fprintln(t, "PROFILE\tREQUESTS\tMEDIAN ERROR OF A TTFT\tTTFT MEAN s\tSIMULATED\tP50 s\tSIMULATED\tP90 s\tSIMULATED\tTARGET")
	for _, c := range checks {
		worst := max(c.MedianError, relative(c.Simulate.Mean, c.Measured.Mean), relative(c.Simulate.P90, c.Measured.P90))
		fmt.Fprintf(t, "%s\t%d\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%s\n", c.Profile, c.Requests, percent(c.MedianError),
			c.Measured.Mean.Seconds(), c.Simulate.Mean.Seconds(), c.Measured.P50.Seconds(), c.Simulate.P50.Seconds(),
			c.Measured.P90.Seconds(), c.Simulate.P90.Seconds(), verdict(worst, targetRun))
	}
	return t.Flush()
}

// PrintKnees writes the table of knees.
func PrintKnees(w io.Writer, knees []Knee) error {
	fmt.Fprintf(w, "Rate at which an H100 with Llama-3.1-8B is full, predicted from the rates below it (target: within %s)\n\n", percent(targetKnee))
	t := columns(w)
	fmt.Fprintln(t, "SETTING\tSTAGES FITTED\tTTFT ERROR\tTPOT ERROR\tMEASURED req/s\tPREDICTED\tERROR\tTARGET")
	for _, k := range knees {
		miss := k.Predicted/k.Measured - 1
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%.1f\t%.1f\t%+.1f %%\t%s\n", k.Name, k.Fitted.Points, percent(k.Fitted.TTFT), percent(k.Fitted.TPOT),
			k.Measured, k.Predicted, 100*miss, verdict(max(miss, -miss), targetKnee))
	}
	return t.Flush()
}

// PrintFits writes the table of fits: first those whose data can be trusted,
// with their mean and median; then those with points that contradict each
// other; then those that the data's own description warns of.
func PrintFits(w io.Writer, fits []Fit) error {
	fmt.Fprintf(w, "Fitted to half of the unsaturated points, predicting the other half: mean errors (target: TTFT %s, TPOT %s)\n", percent(targetTTFT), percent(targetTPOT))
	var regular, irregular, suspect []Fit
	for _, f := range fits {
		switch {
		case f.Suspect != "":
			suspect = append(suspect, f)
		case f.Irregular != "":
			irregular = append(irregular, f)
		default:
			regular = append(regular, f)
		}
	}
	t := columns(w)
	fmt.Fprintln(t, "\nCONFIGURATION\tPOINTS\tSATURATED\tFITTED TTFT\tTPOT\tPREDICTED TTFT\tMAX\tTPOT\tMAX\tT0 ms\tALPHA us\tBETA us\tGAMMA us\tEXPERTS ms\tH ms\tTARGET\t")
	printGroup(t, "regular", regular)
	printGroup(t, "points contradict each other", irregular)
	printGroup(t, "suspect by the data's description", suspect)
	if len(irregular) > 0 {
		printMeans(t, "all but the suspect", slices.Concat(regular, irregular))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, f := range slices.Concat(irregular, suspect) {
		fmt.Fprintf(w, "%s: %s\n", f.Name, cmp.Or(f.Suspect, f.Irregular))
	}
	return nil
}

func printGroup(t io.Writer, name string, fits []Fit) {
	for i := range fits {
		fits[i].print(t)
	}
	if len(fits) > 1 {
		printMeans(t, name, fits)
	}
}

func printMeans(t io.Writer, name string, fits []Fit) {
	var ttft, tpot []float64
	met := 0
	for i := range fits {
		ttft, tpot = append(ttft, fits[i].Held.TTFT), append(tpot, fits[i].Held.TPOT)
		if fits[i].meets() {
			met++
		}
	}
	fmt.Fprintf(t, "= %s: mean of %d\t\t\t\t\t%s\t\t%s\t\t\t\t\t\t\t\t%d of %d met\t\n", name, len(fits), percent(mean(ttft)), percent(mean(tpot)), met, len(fits))
	fmt.Fprintf(t, "= %s: median\t\t\t\t\t%s\t\t%s\t\t\t\t\t\t\t\t\t\n", name, percent(median(ttft)), percent(median(tpot)))
}

func (f *Fit) meets() bool { return f.Held.TTFT <= targetTTFT && f.Held.TPOT <= targetTPOT }

func (f *Fit) print(w io.Writer) {
	target := "met"
	if !f.meets() {
		target = "MISSED"
	}
	m := f.Step
	fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f\t%.0f\t%.4f\t%s\t%s\t%s\t\n", f.Name, f.Fitted.Points+f.Held.Points, f.LeftOut,
		percent(f.Fitted.TTFT), percent(f.Fitted.TPOT), percent(f.Held.TTFT), percent(f.Held.MaxTTFT), percent(f.Held.TPOT), percent(f.Held.MaxTPOT),
		millis(m.T0), m.Alpha, m.Beta, m.Gamma, millis(m.Experts), millis(m.H), target)
}

func mean(values []float64) (sum float64) {
	for _, v := range values {
		sum += v / float64(len(values))
	}
	return sum
}
