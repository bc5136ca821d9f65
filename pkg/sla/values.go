package sla

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Duration is a time.Duration written as "320ms", "1.2s" or "30d".
type Duration time.Duration

const (
	day             = 24 * time.Hour
	durationPattern = `([0-9]+[dw]|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)`
	maxDuration     = 1000 * day // far from overflow, also when added up
)

var (
	wholeDuration = regexp.MustCompile(`^` + durationPattern + `$`)
	plainNumber   = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)
)

// D returns the duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String writes whole days as days and leaves out what is zero.
func (d Duration) String() string {
	t := time.Duration(d)
	if t >= day && t%day == 0 {
		return strconv.FormatInt(int64(t/day), 10) + "d"
	}
	s := t.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// MarshalText lets JSON and YAML carry the form that the file uses.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func parseDuration(text string) (Duration, *fault) {
	const form = `write a duration such as 320ms, 1.2s or 30d`
	switch {
	case plainNumber.MatchString(text):
		return 0, &fault{"has no unit", fmt.Sprintf("write %sms or %ss", clip(text), clip(text))}
	case !wholeDuration.MatchString(text):
		return 0, &fault{"is not a duration", form}
	}
	unit := map[byte]time.Duration{'d': day, 'w': 7 * day}[text[len(text)-1]]
	if unit > 0 {
		n, err := strconv.Atoi(text[:len(text)-1])
		if err != nil || time.Duration(n) > maxDuration/unit {
			return 0, &fault{"is too long", form}
		}
		return Duration(time.Duration(n) * unit), nil
	}
	t, err := time.ParseDuration(text)
	if err != nil || t > maxDuration {
		return 0, &fault{"is too long", form}
	}
	return Duration(t), nil
}

// Share is a part of a whole, 1 being all, written as "30%" or 0.3.
type Share float64

// String writes the share in per cent.
func (s Share) String() string { return strconv.FormatFloat(float64(s)*100, 'g', 12, 64) + "%" }

// MarshalText writes a form that is read back as the same share.
func (s Share) MarshalText() ([]byte, error) {
	text := s.String()
	if back, f := parseShare(text); f != nil || back != s {
		text = strconv.FormatFloat(float64(s), 'f', -1, 64)
	}
	return []byte(text), nil
}

const sharePattern = `[0-9]*\.?[0-9]+%?`

var wholeShare = regexp.MustCompile(`^` + sharePattern + `$`)

func parseShare(text string) (Share, *fault) {
	if !wholeShare.MatchString(text) {
		return 0, &fault{"is not a share", "write per cent such as 30%, or a number such as 0.3"}
	}
	number, percent := strings.CutSuffix(text, "%")
	if percent {
		number += "e-2" // so that 99.9% is the float next to 0.999
	}
	x, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsInf(x, 0) {
		return 0, &fault{"is too large", "write per cent such as 30%"}
	}
	return Share(x), nil
}

// shareOf is the target that a percentile sets.
func shareOf(percentile float64) Share {
	s, _ := parseShare(strconv.FormatFloat(percentile, 'f', -1, 64) + "%")
	return s
}

// at is the threshold for a prompt of so many tokens; a sum that overflows is
// the longest time there is.
func (t Threshold) at(promptTokens int) time.Duration {
	if t.PerToken == 0 || promptTokens <= 0 {
		return t.Base.D()
	}
	if int64(promptTokens) > (math.MaxInt64-int64(t.Base))/int64(t.PerToken) {
		return math.MaxInt64
	}
	return t.Base.D() + time.Duration(promptTokens)*t.PerToken.D()
}

// String reads "320ms" or "400ms + 250µs/token".
func (t Threshold) String() string {
	if t.PerToken == 0 {
		return t.Base.String()
	}
	return t.Base.String() + " + " + t.PerToken.String() + "/token"
}

// IsZero lets YAML leave out a threshold that is not there.
func (t Threshold) IsZero() bool { return t == Threshold{} }

// MarshalYAML writes the short form where it says all.
func (t Threshold) MarshalYAML() (any, error) {
	if t.PerToken == 0 {
		return t.Base, nil
	}
	type plain Threshold
	return plain(t), nil
}

// decode reads a duration, or a mapping with base and per_token.
func (t *Threshold) decode(d *decoder, n *yaml.Node, path string) {
	if n.Kind == yaml.MappingNode {
		d.section(n, path, valueOf((*scaled)(t)))
		return
	}
	base := fieldsOf(typeOf(t))[0]
	d.scalar(n, path, base.rule, valueOf(&t.Base))
}

// scaled is a Threshold without its short form.
type scaled Threshold

var remedies = []string{string(WarmUp), string(LighterModel), string(Wait), string(ServeLate), string(Shed)}

// String reads "wait" or "lighter_model: small".
func (a Action) String() string {
	if a.Model == "" {
		return string(a.Do)
	}
	return string(a.Do) + ": " + a.Model
}

// MarshalYAML writes what decode reads.
func (a Action) MarshalYAML() (any, error) {
	if a.Do == LighterModel {
		return map[string]string{string(a.Do): a.Model}, nil
	}
	return string(a.Do), nil
}

// decode reads a remedy's name, or a mapping with lighter_model.
func (a *Action) decode(d *decoder, n *yaml.Node, path string) {
	if n.Kind == yaml.MappingNode {
		var l lighter
		d.section(n, path, valueOf(&l))
		*a = Action{Do: LighterModel, Model: l.Model}
		return
	}
	d.scalar(n, path, rule{enum: remedies}, valueOf(&a.Do))
	if a.Do == LighterModel {
		d.fail(path, "names no model", `write "lighter_model: NAME"`)
	}
}

// lighter is the form of an Action that names a model.
type lighter struct {
	Model string `yaml:"lighter_model" required:"NAME"`
}
