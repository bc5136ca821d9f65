package trees

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// What a manifest must say.
const (
	format = "firsttoken-model/1"
	base   = "analytic"
	golden = 8 // rows at least

	idTime = "20060102T150405"
)

// Manifest is what stands beside the two heads of a model, in manifest.json.
type Manifest struct {
	Format   string             `json:"format"` // firsttoken-model/1
	ID       string             `json:"id"`     // see CheckID
	Created  time.Time          `json:"created"`
	Schema   string             `json:"schema"` // hash of the features
	Base     string             `json:"base"`   // analytic: heads predict log(TTFT / analytic estimate)
	Heads    Heads              `json:"heads"`
	Golden   []Golden           `json:"golden"`
	Training Training           `json:"training"`
	Metrics  map[string]Metrics `json:"metrics"` // by regime: idle, busy, queued, kv_full; and all
}

// Heads are the two models of a bundle.
type Heads struct {
	P50 Head `json:"p50"`
	P95 Head `json:"p95"`
}

// Head names the text of a model.
type Head struct {
	File   string  `json:"file"` // p50.txt or p95.txt
	SHA256 string  `json:"sha256"`
	Alpha  float64 `json:"alpha"` // the quantile
}

// Golden is a row and what LightGBM itself predicts for it.
type Golden struct {
	Row []Number `json:"row"`
	P50 float64  `json:"p50"`
	P95 float64  `json:"p95"`
}

// Training says what the model was trained on.
type Training struct {
	Rows     int       `json:"rows"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	LightGBM string    `json:"lightgbm"` // its version
	Source   string    `json:"source"`
}

// Metrics are how good the model was on samples it was not trained on. They are
// unknown where a regime had none.
type Metrics struct {
	Rows        int    `json:"rows"`
	MAPE        Number `json:"mape"`         // of P50, 0.12 is 12 %
	MedianError Number `json:"median_error"` // of P50, relative
	Coverage    Number `json:"coverage"`     // share of samples up to P95
	Pinball     Number `json:"pinball"`      // mean loss of P95, in the unit of its head
}

// Number is a number that may be unknown: NaN, in JSON null.
type Number float64

// MarshalJSON writes what JSON cannot express as null.
func (n Number) MarshalJSON() ([]byte, error) {
	if f := float64(n); math.IsNaN(f) || math.IsInf(f, 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// UnmarshalJSON reads null as NaN.
func (n *Number) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*n = Number(math.NaN())
		return nil
	}
	return json.Unmarshal(text, (*float64)(n))
}

// CheckID fails unless id looks like 20261130T120000-ab12cd: a time (UTC) and
// six hex digits. Such an id can be the name of a folder.
func CheckID(id string) error {
	day, tail, _ := strings.Cut(id, "-")
	_, err := time.Parse(idTime, day)
	_, odd := hex.DecodeString(tail)
	if err != nil || odd != nil || len(tail) != 6 || tail != strings.ToLower(tail) || len(day) != len(idTime) {
		return fmt.Errorf("%s is no id of a model: ids look like 20261130T120000-ab12cd", short(id))
	}
	return nil
}

// readManifest reads a manifest strictly. It compares neither schema nor
// golden rows: OpenWith does.
func readManifest(text []byte) (*Manifest, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var m Manifest
	if err := dec.Decode(&m); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("something follows the manifest; remove it")
	}
	return &m, m.check()
}

func (m *Manifest) check() error {
	if m.Format != format {
		return fmt.Errorf("format: is %s instead of %s; publish the model with this version of firsttoken", short(m.Format), format)
	}
	if err := CheckID(m.ID); err != nil {
		return fmt.Errorf("id: %w", err)
	}
	if m.Created.IsZero() {
		return errors.New("created: is missing; give the time as in RFC 3339")
	}
	if m.Base != base {
		return fmt.Errorf("base: is %s instead of %s; train on log(TTFT / analytic estimate)", short(m.Base), base)
	}
	if err := errors.Join(m.Heads.P50.check("p50", 0.5), m.Heads.P95.check("p95", 0.95)); err != nil {
		return err
	}
	if len(m.Golden) < golden {
		return fmt.Errorf("golden: has %d rows, at least %d are needed; publish the model again", len(m.Golden), golden)
	}
	if m.Training.Rows < 1 || m.Training.To.Before(m.Training.From) {
		return errors.New("training: rows, from and to do not say what the model was trained on; publish it again")
	}
	return m.checkMetrics()
}

func (m *Manifest) checkMetrics() error {
	if _, ok := m.Metrics["all"]; !ok {
		return errors.New(`metrics: "all" is missing; publish the model again`)
	}
	for regime := range m.Metrics {
		switch regime {
		case "all", "idle", "busy", "queued", "kv_full":
		default:
			return fmt.Errorf("metrics: %s is no regime; those are idle, busy, queued and kv_full", short(regime))
		}
	}
	return nil
}

func (h Head) check(name string, alpha float64) error {
	if want := name + ".txt"; h.File != want {
		return fmt.Errorf("heads.%s.file: is %s instead of %s", name, short(h.File), want)
	}
	if h.Alpha != alpha {
		return fmt.Errorf("heads.%s.alpha: is %v instead of %v", name, h.Alpha, alpha)
	}
	return nil
}
