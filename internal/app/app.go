// Package app owns the gateway as a whole: it wires the parts from a
// configuration, runs them, puts new revisions into force, and drains.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/internal/admin"
	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/edge"
	"github.com/firsttoken/firsttoken/internal/monitor"
	"github.com/firsttoken/firsttoken/internal/proxy"
	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/backends"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// Options are what New takes besides the configuration. The zero value
// listens on real sockets and logs nowhere.
type Options struct {
	// Log receives JSON lines; nil is io.Discard.
	Log io.Writer
	// Reload reads the configuration again; nil: it never changes.
	Reload func() (*config.Config, error)
	// Listen opens listeners; nil is net.Listen.
	Listen func(network, addr string) (net.Listener, error)
	// Dial connects to engines; nil is the system's.
	Dial proxy.Dialer
	// Shipped is the trained model that serves where none is made active; nil: none.
	Shipped *trees.Bundle
	// Version is reported in firsttoken_build_info.
	Version string
}

// App is one gateway. New builds it, Run serves until its context ends.
type App struct {
	cfg         *config.Config // as started; addresses and limits of listeners
	opts        Options
	logs        *telemetry.Logs
	events      *admin.Log // the last of them
	metrics     *telemetry.Metrics
	gather      prometheus.Gatherer
	predictions *predictions
	promises    *promises
	causes      *causes
	compile     *compiler
	monitor     *monitor.Monitor
	plane       *proxy.Handler

	data, operator         net.Listener
	dataServer, operServer *http.Server
	conns                  sync.WaitGroup // of both servers
	stopStreams            context.CancelCauseFunc

	draining atomic.Bool

	reloadMu sync.Mutex // guards what follows
	current  *config.Config
	number   int64
	seen     map[string]digest // of current's files when they were last read
}

// keptEvents is how many lines of the event log operators can ask for.
const keptEvents = 500

// New builds a gateway and opens its listeners, so that its addresses are
// known before Run. What it opened is closed again if it fails.
func New(cfg *config.Config, opts Options) (*App, error) {
	if opts.Listen == nil {
		opts.Listen = net.Listen
	}
	if opts.Log == nil {
		opts.Log = io.Discard
	}
	reg := prometheus.NewRegistry()
	events := admin.NewLog(keptEvents)
	logs, err := telemetry.NewLogs(opts.Log, cfg.Telemetry.LogLevel, events)
	if err != nil {
		return nil, err
	}
	a := &App{cfg: cfg, current: cfg, opts: opts, logs: logs, events: events, gather: reg, number: 1, seen: digests(cfg.Files())}
	a.metrics = telemetry.NewMetrics(reg)
	a.promises = newPromises(a.metrics, logs.Events)
	a.predictions = newPredictions(a.metrics, a.promises.ledger, logs.Events, opts.Shipped)
	a.compile = newCompiler(a.metrics, a.predictions, opts.Dial)
	a.monitor = monitor.New(logs.Events, a.metrics)
	a.findCauses()
	rev, err := a.compile.compile(a.number, cfg)
	if err != nil {
		return nil, err
	}
	access := logs.Access
	if !cfg.Telemetry.AccessLog {
		access = nil
	}
	a.promises.enforce(rev.table)
	a.causes.enforce(rev.table)
	a.plane = proxy.New(rev.table, a.metrics, overheard{a.promises, a.causes}, logs.Events, access)
	reg.MustRegister(
		telemetry.NewFleetCollector(func() []*backends.Backend { return a.plane.Table().Backends() }, time.Now),
		telemetry.NewPredictionCollector(a.predictions.report, time.Now),
		telemetry.NewContractCollector(a.promises.report, time.Now),
		telemetry.BuildInfo(opts.Version),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.metrics.Reloaded(time.Now(), true, a.number)
	a.predictions.enforce(cfg, rev.foreseen)
	if err := a.predictions.keepSamples(cfg.Prediction.Samples); err != nil {
		return nil, err
	}
	if err := a.listen(); err != nil {
		a.predictions.close()
		return nil, err
	}
	a.monitor.Watch(rev.watch)
	return a, nil
}

func (a *App) listen() error {
	var err error
	if a.data, err = a.opts.Listen("tcp", a.cfg.Server.Listen); err != nil {
		return listenError("server.listen", a.cfg.Server.Listen, "--listen", err)
	}
	if a.operator, err = a.opts.Listen("tcp", a.cfg.Telemetry.Listen); err != nil {
		_ = a.data.Close()
		return listenError("telemetry.listen", a.cfg.Telemetry.Listen, "--telemetry-listen", err)
	}
	limits := edge.Options{
		MaxURL: int(a.cfg.Server.MaxURL), MaxHeaders: a.cfg.Server.MaxHeaders, MaxHeaderBytes: int(a.cfg.Server.MaxHeaderBytes),
	}
	a.data = edge.Listener(a.data, limits, a.plane.EdgeError)
	streams, stop := context.WithCancelCause(context.Background())
	a.stopStreams = stop
	a.dataServer = &http.Server{
		Handler:           a.closeWhenDraining(a.plane.Handler(limits)),
		ReadHeaderTimeout: a.cfg.Server.ReadHeaderTimeout.D(),
		IdleTimeout:       a.cfg.Server.KeepAlive.D(),
		BaseContext:       func(net.Listener) context.Context { return streams },
		ConnState:         a.countConns,
		ErrorLog:          a.logs.ForServer(),
	}
	edge.Configure(a.dataServer, limits)
	a.operServer = &http.Server{
		Handler:           a.operatorHandler(),
		ReadHeaderTimeout: 10 * time.Second,
		ConnState:         a.countConns,
		ErrorLog:          a.logs.ForServer(),
	}
	return nil
}

// listenError says of a port that is taken what to do about it. The flag is
// the one that goes before the field.
func listenError(field, addr, flag string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s %q: the port is taken: give another address by %s, or stop what listens there: %w", field, addr, flag, err)
	}
	return fmt.Errorf("%s %q: %w", field, addr, err)
}

// countConns counts a connection until its goroutine, and with it any handler,
// is at its end.
func (a *App) countConns(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		a.conns.Add(1)
	case http.StateClosed:
		a.conns.Done()
	}
}

// Addr is the address of the data plane.
func (a *App) Addr() net.Addr { return a.data.Addr() }

// OperatorAddr is the address of the telemetry listener.
func (a *App) OperatorAddr() net.Addr { return a.operator.Addr() }

// closeWhenDraining asks clients to leave with their next answer, so that a
// rolling restart cuts no connection in use.
func (a *App) closeWhenDraining(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// Stop says how a gateway ends; it is the cause to cancel Run's context with.
type Stop struct {
	// AtOnce skips the time in which new requests are still accepted: nobody
	// balances load towards an interactive run.
	AtOnce bool
}

func (Stop) Error() string { return "stop" }

// Run serves until ctx ends or a listener fails, then drains. It returns nil
// after a drain, even one that had to end streams, and the error of a listener.
// Everything it started has ended when it returns. It may be called once.
func (a *App) Run(ctx context.Context) error {
	failed := make(chan error, 2)
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	pumping, stopPump := context.WithCancel(context.WithoutCancel(ctx)) // requests are held while it drains, too
	defer stopPump()
	var loops sync.WaitGroup
	loops.Go(func() { failed <- serve(a.dataServer, a.data) })
	loops.Go(func() { failed <- serve(a.operServer, a.operator) })
	loops.Go(func() { a.watchFiles(watching) })
	loops.Go(func() { a.predictions.watchModel(watching) })
	loops.Go(func() { a.causes.Run(watching) })
	loops.Go(func() { a.plane.Pump(pumping) })
	a.logs.Events.Info("serving", zap.Stringer("listen", a.Addr()), zap.Stringer("telemetry", a.OperatorAddr()),
		zap.Int("models", len(a.cfg.Models)), zap.String("version", a.opts.Version))

	var err error
	select {
	case <-ctx.Done():
		a.drain(a.acceptTime(ctx))
	case err = <-failed:
		a.logs.Events.Error("a listener failed", zap.Error(err))
		a.drain(0)
	}
	stopWatching()
	stopPump()
	_ = a.operServer.Close()
	a.stopMonitor()
	loops.Wait()
	a.conns.Wait()
	a.predictions.close()
	a.logs.Events.Info("stopped")
	return errors.Join(err, a.logs.Sync())
}

func serve(s *http.Server, ln net.Listener) error {
	if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// acceptTime is how long new requests are still accepted after ctx ended.
func (a *App) acceptTime(ctx context.Context) time.Duration {
	var stop Stop
	if errors.As(context.Cause(ctx), &stop) && stop.AtOnce {
		return 0
	}
	return a.cfg.Drain.Accept.D()
}

// tellTime is how long streams past the drain limit get to carry their error event.
const tellTime = 2 * time.Second

// drain fails readiness, goes on accepting for a while, lets streams finish
// up to the limit, and ends the rest with an error event.
func (a *App) drain(accept time.Duration) {
	a.draining.Store(true)
	limit := a.cfg.Drain.Limit.D()
	a.logs.Events.Info("draining", zap.Duration("accept", accept), zap.Duration("limit", limit))
	time.Sleep(accept)
	if shutdown(a.dataServer, limit) == nil {
		return
	}
	a.logs.Events.Warn("drain limit reached; ending streams")
	a.stopStreams(proxy.ErrDraining)
	if shutdown(a.dataServer, tellTime) != nil {
		_ = a.dataServer.Close()
	}
}

// shutdown waits for the requests in flight, at most limit; 0 is no limit.
func shutdown(s *http.Server, limit time.Duration) error {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
	}
	defer cancel()
	return s.Shutdown(ctx)
}

// stopMonitor ends what talks to engines besides requests. No reload starts it
// again: drain has begun.
func (a *App) stopMonitor() {
	a.reloadMu.Lock()
	defer a.reloadMu.Unlock()
	a.monitor.Stop()
	a.compile.closeIdle()
}
