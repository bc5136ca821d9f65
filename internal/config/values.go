package config

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration written as "300ms", "1m30s" or "off" (Off), at
// most 24 hours, so that sums and multiples of it cannot overflow.
type Duration time.Duration

// Off marks a limit that the file switched off.
const Off Duration = -1

const maxDuration = Duration(24 * time.Hour)

// D returns the duration; Off is 0, which every user of it reads as "no limit".
func (d Duration) D() time.Duration {
	if d == Off {
		return 0
	}
	return time.Duration(d)
}

// String writes the duration as the file does.
func (d Duration) String() string {
	if d == Off {
		return "off"
	}
	return time.Duration(d).String()
}

// MarshalText lets JSON and YAML carry the form that the file uses.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

const durationPattern = `([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+`

var (
	wholeDuration = regexp.MustCompile(`^` + durationPattern + `$`)
	plainNumber   = regexp.MustCompile(`^[0-9]+$`)
)

// parseDuration reads text; raw is what the file says, for the fix.
func parseDuration(text, raw string) (Duration, *fault) {
	const form = `write a duration such as "300ms" or "1m30s"`
	switch {
	case text == "off":
		return Off, nil
	case plainNumber.MatchString(text):
		if plainNumber.MatchString(raw) && strings.Trim(raw, "0") != "" {
			return 0, &fault{is: "has no unit", fix: fmt.Sprintf("write %ss or %sms", clip(raw), clip(raw))}
		}
		return 0, &fault{is: "has no unit", fix: form}
	case strings.HasPrefix(text, "-"):
		return 0, &fault{is: "is negative", fix: form}
	case !wholeDuration.MatchString(text):
		return 0, &fault{is: "is not a duration", fix: form}
	}
	d, err := time.ParseDuration(text)
	if err != nil || Duration(d) > maxDuration {
		return 0, &fault{is: "is too long", fix: "write at most 24h"}
	}
	return Duration(d), nil
}

// parseSpan reads a duration that cannot be switched off.
func parseSpan(text string) (time.Duration, *fault) {
	d, f := parseDuration(text, text)
	if f == nil && d == Off {
		f = &fault{is: "is not allowed here", fix: `write a duration such as "300ms" or "1m30s"`}
	}
	return time.Duration(d), f
}

// ByteSize is a number of bytes, written as 65536, "64KiB" or "64MiB".
type ByteSize int64

// String writes the size in the largest unit that divides it.
func (b ByteSize) String() string {
	for _, u := range byteUnits {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalText lets JSON and YAML carry the form that the file uses.
func (b ByteSize) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

var byteUnits = []struct {
	name string
	size ByteSize
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

const byteSizePattern = `(0|[1-9][0-9]*)(KiB|MiB|GiB)?`

func parseByteSize(text string) (ByteSize, *fault) {
	const form = `write bytes as 65536, "64KiB" or "64MiB"`
	if strings.HasPrefix(text, "-") {
		return 0, &fault{is: "is negative", fix: form}
	}
	unit := ByteSize(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			text, unit = rest, u.size
			break
		}
	}
	if !wholeNumber.MatchString(text) {
		return 0, &fault{is: "is not a size in bytes", fix: form}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > math.MaxInt64/int64(unit) {
		return 0, &fault{is: "is too large", fix: form}
	}
	return ByteSize(n) * unit, nil
}
