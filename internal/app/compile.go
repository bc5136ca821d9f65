package app

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/monitor"
	"github.com/firsttoken/firsttoken/internal/proxy"
	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/router"
)

// compiler turns configurations into tables. It keeps what outlives a
// revision: the fleet's live state, what predicts, connection pools and retry budgets.
type compiler struct {
	metrics     *telemetry.Metrics
	predictions *predictions
	fleet       *backends.Fleet
	decisions   *router.Decisions
	dial        proxy.Dialer
	started     time.Time
	onReadiness func(b *backends.Backend, to backends.Readiness, why string) // of engines; may be nil

	mu         sync.Mutex
	transports map[transportKey]*http.Transport
	budgets    map[string]*proxy.Budget
}

// transportKey is what makes two connection pools different.
type transportKey struct {
	url string
	proxy.TransportOptions
}

func newCompiler(m *telemetry.Metrics, p *predictions, dial proxy.Dialer) *compiler {
	return &compiler{
		metrics: m, predictions: p, fleet: backends.NewFleet(), decisions: router.NewDecisions(), dial: dial, started: time.Now(),
		transports: map[transportKey]*http.Transport{}, budgets: map[string]*proxy.Budget{},
	}
}

// revision is a compiled configuration, ready to be put into force.
type revision struct {
	table    *proxy.Table
	foreseen []foreseen
	watch    []monitor.Target
	retired  []*http.Transport // connection pools that no target uses any more
}

// compile builds a revision. What can fail comes before it touches anything
// that outlives revisions.
func (c *compiler) compile(number int64, cfg *config.Config) (*revision, error) {
	specs, err := poolSpecs(cfg)
	if err != nil {
		return nil, err
	}
	policies, err := newPolicies(cfg)
	if err != nil {
		return nil, err
	}
	promised, err := LoadContracts(cfg.Contracts)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	rev := &revision{}
	used := map[transportKey]*http.Transport{}
	watched := map[string]bool{}
	var models []*proxy.Model
	for i, pool := range c.fleet.Pools(specs) {
		m := c.model(cfg.Models[i], pool, policies[i])
		if cfg.Prediction.Enabled {
			rev.foreseen = append(rev.foreseen, c.predictions.foresee(predictionRules(cfg.Prediction), cfg.Models[i], m.Router))
			admit(m, cfg.Models[i])
		}
		for j, b := range pool.Backends {
			spec := cfg.Models[i].Backends[j]
			rt := c.transport(used, spec)
			m.Targets = append(m.Targets, c.target(cfg.Models[i], spec, b, rt, m))
			if !watched[b.Name] {
				watched[b.Name] = true
				target := watch(spec, b, rt)
				target.WarmUp = c.warmUp(cfg.WarmUp)
				rev.watch = append(rev.watch, target)
			}
		}
		models = append(models, m)
	}
	rev.table = proxy.NewTable(number, models)
	rev.table.MaxBody = int64(cfg.Server.MaxBody)
	rev.table.ReadBody = cfg.Server.ReadBodyTimeout.D()
	rev.table.DebugHeaders = cfg.Server.DebugHeaders
	rev.table.Explain = cfg.Telemetry.Explain
	rev.table.TenantHeader = cfg.Server.TenantHeader
	rev.table.Contracts = promised
	for key, t := range c.transports {
		if used[key] == nil {
			rev.retired = append(rev.retired, t)
		}
	}
	c.transports = used
	return rev, nil
}

func poolSpecs(cfg *config.Config) ([]backends.PoolSpec, error) {
	var specs []backends.PoolSpec
	for _, m := range cfg.Models {
		ps := backends.PoolSpec{Model: m.Name}
		for _, b := range m.Backends {
			u, err := url.Parse(b.URL)
			if err != nil {
				return nil, fmt.Errorf("backend %q: %w", b.Name, err)
			}
			s := backendSpec(m, b, u)
			s.WarmUp, s.Standby = cfg.WarmUp.Enabled, b.Standby
			ps.Backends = append(ps.Backends, s)
		}
		specs = append(specs, ps)
	}
	return specs, nil
}

func backendSpec(m config.Model, b config.Backend, u *url.URL) backends.Spec {
	s := backends.Spec{
		Name: b.Name, URL: u, Model: cmp.Or(b.Model, m.Name), Kind: backends.Kind(b.Engine),
		Weight: b.Weight, Draining: b.Draining, Labels: b.Labels,
		MaxInFlight: b.Limits.MaxInFlight, Health: healthRules(b.Health),
	}
	if secret := string(b.Credentials.Secret); secret != "" {
		s.AuthHeader, s.AuthValue = b.Credentials.Header, secret
		if b.Credentials.Scheme != "" {
			s.AuthValue = b.Credentials.Scheme + " " + secret
		}
	}
	return s
}

func healthRules(h config.Health) backends.HealthRules {
	r := backends.HealthRules{
		Unhealthy: h.Unhealthy, Healthy: h.Healthy,
		Consecutive: h.Consecutive, FailureRate: h.FailureRate, MinRequests: h.MinRequests,
		Window: h.Window.D(), Ejection: h.Ejection.D(), MaxEjection: h.MaxEjection.D(),
		MaxEjected: h.MaxEjected, MinHosts: h.MinHosts, SlowStart: h.SlowStart.D(),
		BreakerFailures: h.BreakerFailures, BreakerOpen: h.BreakerOpen.D(),
	}
	if r.MaxEjected == 0 {
		r.MaxEjected = -1 // the file's 0 switches ejection off
	}
	return r
}

// newPolicies are the policies of the models, in their order.
func newPolicies(cfg *config.Config) ([]router.Policy, error) {
	var policies []router.Policy
	for _, m := range cfg.Models {
		p, err := router.NewPolicy(m.Policy, rand.NewPCG(rand.Uint64(), rand.Uint64()))
		if err != nil {
			return nil, fmt.Errorf("model %q: %w", m.Name, err)
		}
		policies = append(policies, p)
	}
	return policies, nil
}

func (c *compiler) model(m config.Model, pool *backends.Pool, policy router.Policy) *proxy.Model {
	r := router.New(pool, m.Policy, policy)
	r.Record(c.decisions)
	return &proxy.Model{
		Name: m.Name, Aliases: m.Aliases, OwnedBy: m.OwnedBy, Created: c.started,
		Router:  r,
		Retry:   proxy.RetryRules{MaxAttempts: m.Retry.MaxAttempts},
		Budget:  c.budget(m),
		Metrics: c.metrics.Model(m.Name),
	}
}

// admit lets a model's router hold requests back, if it can tell by its
// predictions when to.
func admit(m *proxy.Model, cfg config.Model) {
	if cfg.Admission.Enabled && router.Foresees(cfg.Policy) {
		m.Holds = true
		m.Router.Admit(router.Admission{PendingTokens: cfg.Admission.PendingTokens, MaxHeld: cfg.Admission.MaxHeld})
	}
}

func (c *compiler) budget(m config.Model) *proxy.Budget {
	b := c.budgets[m.Name]
	if b == nil {
		b = proxy.NewBudget(m.Retry.BudgetRatio, m.Retry.BudgetMin)
		c.budgets[m.Name] = b
	}
	b.Set(m.Retry.BudgetRatio, m.Retry.BudgetMin)
	return b
}

func (c *compiler) transport(used map[transportKey]*http.Transport, b config.Backend) *http.Transport {
	key := transportKey{url: b.URL, TransportOptions: proxy.TransportOptions{
		Dial:            b.Timeouts.Dial.D(),
		IdleConnTimeout: b.Limits.IdleConnTimeout.D(),
		MaxIdleConns:    b.Limits.MaxIdleConns,
	}}
	if used[key] == nil {
		used[key] = cmp.Or(c.transports[key], proxy.NewTransport(key.TransportOptions, c.dial))
	}
	return used[key]
}

func (c *compiler) target(m config.Model, spec config.Backend, b *backends.Backend, rt http.RoundTripper, model *proxy.Model) *proxy.Target {
	t := proxy.NewTarget(b, rt)
	t.Timeouts = proxy.Timeouts{
		ResponseHeader: spec.Timeouts.ResponseHeader.D(),
		FirstToken:     spec.Timeouts.FirstToken.D(),
		Idle:           spec.Timeouts.Idle.D(),
		Total:          spec.Timeouts.Total.D(),
		ClientWrite:    spec.Timeouts.ClientWrite.D(),
	}
	t.InjectUsage = m.InjectUsage == "always" || (m.InjectUsage == "auto" && b.Kind != backends.Generic)
	t.Metrics = model.Metrics.Backend(b.Name)
	return t
}

func watch(spec config.Backend, b *backends.Backend, rt http.RoundTripper) monitor.Target {
	return monitor.Target{
		Backend: b, Transport: rt,
		ProbePath: spec.Health.Path, ProbeInterval: spec.Health.Interval.D(), ProbeTimeout: spec.Health.Timeout.D(),
		MetricsPath: spec.Signals.Path, MetricsInterval: spec.Signals.Interval.D(), MetricsTimeout: spec.Signals.Timeout.D(),
	}
}

// warmUp is what cold engines are sent; nil for nothing.
func (c *compiler) warmUp(cfg config.WarmUp) *monitor.WarmUp {
	if !cfg.Enabled {
		return nil
	}
	return &monitor.WarmUp{
		MaxPrompt: cfg.MaxPrompt, Repeat: cfg.Repeat, Prefixes: cfg.Prefixes, Timeout: cfg.Timeout.D(),
		StandbyAfter: cfg.StandbyAfter.D(), Changed: c.onReadiness,
	}
}

// closeIdle closes the connections to engines that no request uses.
func (c *compiler) closeIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.transports {
		t.CloseIdleConnections()
	}
}

// keep is what the metrics of a revision are about.
func (r *revision) keep() (models map[string]bool, byBackend map[string]map[string]bool) {
	models, byBackend = map[string]bool{}, map[string]map[string]bool{}
	for _, m := range r.table.Models() {
		models[m.Name] = true
		for _, t := range m.Targets {
			name := t.Backend.Name
			if byBackend[name] == nil {
				byBackend[name] = map[string]bool{}
			}
			byBackend[name][m.Name] = true
		}
	}
	return models, byBackend
}
