// Package monitor owns the goroutines that watch engines: active health
// probes, scrapes of their own metrics, and warm-up prompts to those that are
// cold. What the results mean is decided in package backends.
package monitor

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

// Target is one engine to watch.
type Target struct {
	Backend   *backends.Backend
	Transport http.RoundTripper

	ProbePath     string        // GET path; 2xx is healthy
	ProbeInterval time.Duration // 0: no probes
	ProbeTimeout  time.Duration

	MetricsPath     string
	MetricsInterval time.Duration // 0: no scrapes; jittered by a fifth
	MetricsTimeout  time.Duration

	WarmUp *WarmUp // nil: none
}

// Recorder counts probes and scrapes.
type Recorder interface {
	Probed(backend string, ok bool)
	Scraped(backend string, ok bool)
}

// Monitor watches a set of engines. It is safe for concurrent use.
type Monitor struct {
	log *zap.Logger
	rec Recorder

	mu     sync.Mutex
	cancel context.CancelFunc
	loops  *sync.WaitGroup
}

// New returns a monitor that watches nothing yet.
func New(log *zap.Logger, rec Recorder) *Monitor {
	return &Monitor{log: log, rec: rec}
}

// Watch replaces the set of engines. It waits for the loops of the old set.
func (m *Monitor) Watch(targets []Target) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stop()
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel, m.loops = cancel, &sync.WaitGroup{}
	for _, t := range targets {
		if t.ProbeInterval > 0 {
			m.loops.Go(func() { every(ctx, t.ProbeInterval, func() { m.probe(ctx, t) }) })
		}
		if t.MetricsInterval > 0 && t.MetricsPath != "" {
			m.loops.Go(func() { every(ctx, t.MetricsInterval, func() { m.scrape(ctx, t) }) })
		}
		if t.WarmUp != nil {
			m.loops.Go(func() { every(ctx, coldInterval, func() { m.dismiss(t); m.warmUp(ctx, t) }) })
		}
	}
}

// coldInterval is how often an engine is looked at whether it is cold.
const coldInterval = 250 * time.Millisecond

// Stop ends all loops and waits for them.
func (m *Monitor) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stop()
}

func (m *Monitor) stop() {
	if m.cancel != nil {
		m.cancel()
		m.loops.Wait()
		m.cancel = nil
	}
}

// every runs do at once and then at jittered intervals, so that many engines
// are not asked in step.
func every(ctx context.Context, interval time.Duration, do func()) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		do()
		timer.Reset(time.Duration(float64(interval) * (0.8 + 0.4*rand.Float64())))
	}
}

// probe asks an engine for its health. A probe never sends a completion.
func (m *Monitor) probe(ctx context.Context, t Target) {
	body, err := get(ctx, t, t.ProbePath, t.ProbeTimeout)
	if body != nil {
		_ = body.Close()
	}
	if ctx.Err() != nil {
		return
	}
	ok := err == nil
	m.rec.Probed(t.Backend.Name, ok)
	if !t.Backend.Probe(time.Now(), ok) {
		return
	}
	if ok {
		m.log.Info("backend is healthy again", zap.String("backend", t.Backend.Name))
		return
	}
	m.log.Warn("backend is down", zap.String("backend", t.Backend.Name), zap.Error(err))
}

// scrape reads an engine's metrics. A failure leaves the old values, which
// carry their age.
func (m *Monitor) scrape(ctx context.Context, t Target) {
	own, began := t.Backend.Load(time.Now()).InFlight, time.Now()
	signals, err := readSignals(ctx, t)
	if ctx.Err() != nil {
		return
	}
	m.rec.Scraped(t.Backend.Name, err == nil)
	if err != nil {
		m.log.Debug("engine metrics not read", zap.String("backend", t.Backend.Name), zap.Error(err))
		return
	}
	signals.Began, signals.At, signals.OwnInFlight = began, time.Now(), own
	t.Backend.SetSignals(signals)
}

func readSignals(ctx context.Context, t Target) (backends.Signals, error) {
	body, err := get(ctx, t, t.MetricsPath, t.MetricsTimeout)
	if err != nil {
		return backends.Signals{}, err
	}
	defer body.Close()
	return backends.ParseSignals(t.Backend.Kind, body)
}

// get fetches a path of the engine; an answer other than 2xx is an error. The
// timeout covers the reading of the body as well.
func get(ctx context.Context, t Target, path string, timeout time.Duration) (io.ReadCloser, error) {
	cancel := context.CancelFunc(func() {})
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
	}
	req, err := request(ctx, t, http.MethodGet, path, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	resp, err := t.Transport.RoundTrip(req)
	if err != nil {
		cancel()
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
		_ = resp.Body.Close()
		cancel()
		return nil, fmt.Errorf("GET %s answered %d", path, resp.StatusCode)
	}
	return &cancelBody{ReadCloser: resp.Body, cancel: cancel}, nil
}

// request is one to the engine, with its credential.
func request(ctx context.Context, t Target, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, t.Backend.URL.JoinPath(path).String(), body)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", t.Backend.Name, err)
	}
	req.Header.Set("User-Agent", "firsttoken")
	if t.Backend.AuthHeader != "" {
		req.Header.Set(t.Backend.AuthHeader, t.Backend.AuthValue)
	}
	return req, nil
}

// cancelBody frees the timeout with the body.
type cancelBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelBody) Close() error {
	_, _ = io.Copy(io.Discard, io.LimitReader(b.ReadCloser, 64<<10)) // keep the connection
	err := b.ReadCloser.Close()
	b.cancel()
	return err
}
