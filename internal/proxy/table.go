package proxy

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/firsttoken/firsttoken/internal/openai"
	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// Table is one revision of the configuration as the data plane uses it. It is
// immutable; a request keeps the table it began with to its end.
type Table struct {
	Revision     int64
	MaxBody      int64         // bytes of a request body
	ReadBody     time.Duration // time a client may take to send it; 0 is no limit
	DebugHeaders bool
	Explain      bool     // clients may ask for the record of the decision
	Contracts    *sla.Set // never nil
	TenantHeader string   // canonical name of the header that names the tenant

	revision string // the same as text
	models   []*Model
	byName   map[string]*Model
}

// NewTable builds a table of models; each answers to its name and aliases.
func NewTable(revision int64, models []*Model) *Table {
	t := &Table{Revision: revision, revision: strconv.FormatInt(revision, 10), models: models, byName: map[string]*Model{}}
	for _, m := range models {
		t.byName[m.Name] = m
		for _, alias := range m.Aliases {
			t.byName[alias] = m
		}
	}
	return t
}

// Models are the table's models in configuration order.
func (t *Table) Models() []*Model { return t.models }

// Has reports whether a client may name the model.
func (t *Table) Has(model string) bool { return t.byName[model] != nil }

// Backends are the table's backends, each once.
func (t *Table) Backends() []*backends.Backend {
	var out []*backends.Backend
	for _, m := range t.models {
		for _, b := range m.Router.Pool().Backends {
			if !slices.ContainsFunc(out, b.Same) {
				out = append(out, b)
			}
		}
	}
	return out
}

// Model is one model a client may name.
type Model struct {
	Name    string
	Aliases []string
	OwnedBy string
	Created time.Time

	Router  *router.Router
	Holds   bool      // the router may hold requests back
	Targets []*Target // one for each backend of the pool, in its order
	Retry   RetryRules
	Budget  *Budget
	Metrics *telemetry.Model
}

// Target is how one backend is reached for one model.
type Target struct {
	Backend     *backends.Backend
	Transport   http.RoundTripper
	Timeouts    Timeouts
	InjectUsage bool // ask for a usage chunk the client did not ask for
	Metrics     *telemetry.Backend

	urls [4]*url.URL // by endpoint
}

// NewTarget resolves the backend's URLs.
func NewTarget(b *backends.Backend, rt http.RoundTripper) *Target {
	t := &Target{Backend: b, Transport: rt}
	for e := openai.ChatCompletions; e <= openai.Responses; e++ {
		u := *b.URL
		u.Path += e.Path() // the base has no trailing slash
		t.urls[e] = &u
	}
	return t
}

// target finds the target of a backend.
func (m *Model) target(b *backends.Backend) *Target {
	for _, t := range m.Targets {
		if t.Backend.Same(b) {
			return t
		}
	}
	return nil
}

// Timeouts of an attempt; 0 is no limit. The dial timeout is the transport's.
type Timeouts struct {
	ResponseHeader time.Duration // attempt sent to response headers
	FirstToken     time.Duration // attempt sent to the first token of a stream
	Idle           time.Duration // between two reads of an answer
	Total          time.Duration // the whole request, all attempts
	ClientWrite    time.Duration // one write to the client
}

// RetryRules bound how often a request is tried.
type RetryRules struct {
	MaxAttempts int // the first try included, >= 1
}

// maxEngineHeaders caps the headers of an engine's answer in bytes.
const maxEngineHeaders = 256 << 10

// TransportOptions is what a connection pool to one engine depends on.
type TransportOptions struct {
	Dial            time.Duration
	IdleConnTimeout time.Duration
	MaxIdleConns    int
}
