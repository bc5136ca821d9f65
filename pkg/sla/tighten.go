package sla

import (
	"fmt"
	"strconv"
	"time"
)

// Headers by which a request asks for more than its contract promises, in
// milliseconds, such as 250 or 12.5.
const (
	TTFTHeader = "x-slo-ttft-ms"
	TPOTHeader = "x-slo-tpot-ms"
)

// HeaderError is a request header that can't be followed. The client made the
// mistake (400), and Error tells it what to send instead.
type HeaderError struct {
	Header  string
	Problem string
	Fix     string
}

// Error reads `x-slo-ttft-ms: "abc" is not a number of milliseconds; send ...`.
func (e *HeaderError) Error() string { return e.Header + ": " + e.Problem + "; " + e.Fix }

// TightenBy reads the two headers and tightens by them. header gives a header's
// value by name, "" when there is none. The error is a *HeaderError.
func (c *Contract) TightenBy(header func(name string) string) (Terms, error) {
	ttft, err := milliseconds(TTFTHeader, header(TTFTHeader))
	if err != nil {
		return Terms{}, err
	}
	tpot, err := milliseconds(TPOTHeader, header(TPOTHeader))
	if err != nil {
		return Terms{}, err
	}
	return c.Tighten(ttft, tpot)
}

// Tighten gives the terms of a request that asks for shorter budgets than c
// promises; 0 asks for nothing. What c does not promise may be asked for freely,
// also of a nil c. A longer budget than c's is refused with a *HeaderError. Where
// the budget grows with the prompt the shorter of the two holds for each length.
//
// Compliance is judged by the contract all the same: nobody may spend an error
// budget by asking for more.
func (c *Contract) Tighten(ttft, tpot time.Duration) (Terms, error) {
	if err := c.refuseLooser(TTFTHeader, c.Governing(TTFT), ttft); err != nil {
		return Terms{}, err
	}
	if err := c.refuseLooser(TPOTHeader, c.Governing(TPOT), tpot); err != nil {
		return Terms{}, err
	}
	return Terms{Contract: c, ttft: ttft, tpot: tpot}, nil
}

func (c *Contract) refuseLooser(header string, o *Objective, asked time.Duration) error {
	if asked < 0 {
		return &HeaderError{header, asked.String() + " is negative", "ask for more than 0"}
	}
	if o == nil || o.Threshold.PerToken > 0 || asked <= o.Threshold.Base.D() {
		return nil
	}
	limit := formatMilliseconds(o.Threshold.Base.D())
	return &HeaderError{header,
		fmt.Sprintf("%s ms is looser than the %s ms of contract %q", formatMilliseconds(asked), limit, c.Name()),
		"send at most " + limit + ", or leave the header out"}
}

// milliseconds reads a header's value; "" is 0.
func milliseconds(header, value string) (time.Duration, error) {
	if value == "" {
		return 0, nil
	}
	const fix = "send a number above 0 such as 250, at most 86400000"
	if !plainNumber.MatchString(value) {
		return 0, &HeaderError{header, strconv.Quote(clip(value)) + " is not a number of milliseconds", fix}
	}
	ms, err := strconv.ParseFloat(value, 64)
	d := time.Duration(ms * float64(time.Millisecond))
	if err != nil || ms > float64(day/time.Millisecond) || d <= 0 {
		return 0, &HeaderError{header, strconv.Quote(clip(value)) + " ms is out of range", fix}
	}
	return d, nil
}

func formatMilliseconds(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', -1, 64)
}
