package samples

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// column is one place of a row: how it is stored, and how it goes from a
// sample to a file and back.
type column struct {
	name string
	node parquet.Node
	get  func(*predictor.Sample) parquet.Value // null where there is nothing to say
	set  func(*predictor.Sample, parquet.Value) error
}

// columns are all columns of a file. Times are UTC, durations in seconds.
func columns() []column {
	all := []column{
		moment("at", func(s *predictor.Sample) *time.Time { return &s.At }),
		text("model", func(s *predictor.Sample) *string { return &s.Model }),
		text("backend", func(s *predictor.Sample) *string { return &s.Backend }),
		text("revision", func(s *predictor.Sample) *string { return &s.Revision }),
		word("regime", predictor.Regimes, func(s *predictor.Sample) *predictor.Regime { return &s.Regime }),
		word("served", predictor.Kinds, func(s *predictor.Sample) *predictor.Kind { return &s.Served }),
		seconds("ttft", func(s *predictor.Sample) *time.Duration { return &s.TTFT }),
		flag("censored", func(s *predictor.Sample) *bool { return &s.Censored }),
	}
	for k := range predictor.Kinds {
		all = append(all,
			secondsOrNull(k.String()+"_p50", func(s *predictor.Sample) *time.Duration { return &s.Said[k].P50 }),
			secondsOrNull(k.String()+"_p95", func(s *predictor.Sample) *time.Duration { return &s.Said[k].P95 }))
	}
	for i, name := range predictor.Names() {
		all = append(all, number(name, func(s *predictor.Sample) *float64 { return &s.Features[i] }))
	}
	return all
}

func moment(name string, field func(*predictor.Sample) *time.Time) column {
	return column{
		name: name,
		node: parquet.Timestamp(parquet.Nanosecond),
		get:  func(s *predictor.Sample) parquet.Value { return parquet.Int64Value(field(s).UnixNano()) },
		set: func(s *predictor.Sample, v parquet.Value) error {
			*field(s) = time.Unix(0, v.Int64()).UTC()
			return nil
		},
	}
}

func text(name string, field func(*predictor.Sample) *string) column {
	return column{
		name: name,
		node: parquet.Encoded(parquet.String(), &parquet.RLEDictionary),
		get:  func(s *predictor.Sample) parquet.Value { return parquet.ByteArrayValue([]byte(*field(s))) },
		set: func(s *predictor.Sample, v parquet.Value) error {
			*field(s) = string(v.ByteArray())
			return nil
		},
	}
}

// word is one of a few values below n, spelt as its String says.
func word[E interface {
	~uint8
	fmt.Stringer
}](name string, n E, field func(*predictor.Sample) *E) column {
	c := text(name, nil)
	c.get = func(s *predictor.Sample) parquet.Value { return parquet.ByteArrayValue([]byte((*field(s)).String())) }
	c.set = func(s *predictor.Sample, v parquet.Value) error {
		for e := range n {
			if e.String() == string(v.ByteArray()) {
				*field(s) = e
				return nil
			}
		}
		return fmt.Errorf("%.40q is no %s of this version", v.ByteArray(), name)
	}
	return c
}

func number(name string, field func(*predictor.Sample) *float64) column {
	return column{
		name: name,
		node: parquet.Leaf(parquet.DoubleType),
		get:  func(s *predictor.Sample) parquet.Value { return parquet.DoubleValue(*field(s)) },
		set: func(s *predictor.Sample, v parquet.Value) error {
			*field(s) = v.Double()
			if v.IsNull() {
				*field(s) = math.NaN()
			}
			return nil
		},
	}
}

func seconds(name string, field func(*predictor.Sample) *time.Duration) column {
	return column{
		name: name,
		node: parquet.Leaf(parquet.DoubleType),
		get:  func(s *predictor.Sample) parquet.Value { return parquet.DoubleValue(field(s).Seconds()) },
		set: func(s *predictor.Sample, v parquet.Value) error {
			ns := math.Round(v.Double() * float64(time.Second))
			if !(ns >= 0 && ns < math.MaxInt64) {
				return fmt.Errorf("%v s is no duration", v.Double())
			}
			*field(s) = time.Duration(ns)
			return nil
		},
	}
}

// secondsOrNull stores 0 as null: nothing was said.
func secondsOrNull(name string, field func(*predictor.Sample) *time.Duration) column {
	c := seconds(name, field)
	c.node = parquet.Optional(c.node)
	get := c.get
	c.get = func(s *predictor.Sample) parquet.Value {
		if *field(s) == 0 {
			return parquet.NullValue()
		}
		return get(s)
	}
	return c
}

func flag(name string, field func(*predictor.Sample) *bool) column {
	return column{
		name: name,
		node: parquet.Leaf(parquet.BooleanType),
		get:  func(s *predictor.Sample) parquet.Value { return parquet.BooleanValue(*field(s)) },
		set: func(s *predictor.Sample, v parquet.Value) error {
			*field(s) = v.Boolean()
			return nil
		},
	}
}

// Columns names the columns of CSV.
func Columns() []string {
	var names []string
	for _, c := range columns() {
		names = append(names, c.name)
	}
	return names
}

// Record is a sample as fields of CSV, in the order of Columns: times as in
// RFC 3339, durations in seconds, the unknown empty.
func Record(s *predictor.Sample) []string {
	var fields []string
	for _, c := range columns() {
		fields = append(fields, field(c, s))
	}
	return fields
}

func field(c column, s *predictor.Sample) string {
	v := c.get(s)
	switch v.Kind() {
	case parquet.Int64:
		return time.Unix(0, v.Int64()).UTC().Format(time.RFC3339Nano)
	case parquet.ByteArray:
		return string(v.ByteArray())
	case parquet.Boolean:
		return strconv.FormatBool(v.Boolean())
	case parquet.Double:
		if !math.IsNaN(v.Double()) {
			return strconv.FormatFloat(v.Double(), 'g', -1, 64)
		}
	}
	return ""
}
