package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/internal/config"
)

// watchInterval is how often the configuration's files are looked at. Reading
// a few small files is cheap and, unlike a notification, works over every
// kind of mount and for files that are replaced by renaming.
const watchInterval = time.Second

// Reload reads the configuration again and puts it into force. If anything is
// wrong with it, nothing changes; a metric and a log line say so.
func (a *App) Reload() error {
	a.reloadMu.Lock()
	defer a.reloadMu.Unlock()
	err := a.reload()
	a.metrics.Reloaded(time.Now(), err == nil, a.number)
	if err != nil {
		a.logs.Events.Error("configuration not reloaded; the old one stays in force",
			zap.Int64("revision", a.number), zap.Error(err))
		return err
	}
	a.logs.Events.Info("configuration reloaded", zap.Int64("revision", a.number))
	return nil
}

func (a *App) reload() error {
	if a.opts.Reload == nil {
		return errors.New("this gateway was started without a configuration file")
	}
	if a.draining.Load() {
		return errors.New("the gateway is shutting down")
	}
	a.seen = digests(a.current.Files()) // before reading them: a change meanwhile is not missed
	cfg, err := a.opts.Reload()
	if err != nil {
		return err
	}
	rev, err := a.compile.compile(a.number+1, cfg)
	if err != nil {
		return err
	}
	// The point of no return: nothing below fails.
	a.number++
	a.warnRestart(cfg)
	a.current = cfg
	for name, d := range digests(cfg.Files()) {
		if _, known := a.seen[name]; !known {
			a.seen[name] = d
		}
	}
	a.promises.enforce(rev.table)
	a.causes.enforce(rev.table)
	a.plane.Swap(rev.table)
	a.predictions.enforce(cfg, rev.foreseen)
	a.monitor.Watch(rev.watch)
	a.metrics.Keep(rev.keep())
	for _, t := range rev.retired {
		t.CloseIdleConnections() // busy connections end with their requests and the idle timeout
	}
	return nil
}

// warnRestart names settings that a reload can't change.
func (a *App) warnRestart(cfg *config.Config) {
	operators := cfg.Telemetry
	operators.Explain = a.cfg.Telemetry.Explain // takes effect at once
	if cfg.Server.Listen != a.cfg.Server.Listen || operators != a.cfg.Telemetry ||
		cfg.Server.MaxHeaders != a.cfg.Server.MaxHeaders || cfg.Server.MaxHeaderBytes != a.cfg.Server.MaxHeaderBytes ||
		cfg.Server.MaxURL != a.cfg.Server.MaxURL || cfg.Server.ReadHeaderTimeout != a.cfg.Server.ReadHeaderTimeout ||
		cfg.Server.KeepAlive != a.cfg.Server.KeepAlive || cfg.Drain != a.cfg.Drain || cfg.Prediction.Samples != a.cfg.Prediction.Samples {
		a.logs.Events.Warn("server listeners and header limits, telemetry, drain and prediction.samples keep the values the gateway was started with until it is restarted")
	}
}

// watchFiles reloads when the configuration or a file it refers to changes.
func (a *App) watchFiles(ctx context.Context) {
	if a.opts.Reload == nil {
		return
	}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for changed := map[string]digest(nil); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// A file may be looked at while it is being written: only what two
		// looks agree on is read.
		before := changed
		if changed = a.changed(); changed != nil && maps.Equal(changed, before) {
			_ = a.Reload() // it has logged and counted its error
			changed = nil
		}
	}
}

// changed returns the files' digests if one differs from when it was last
// read, else nil.
func (a *App) changed() map[string]digest {
	a.reloadMu.Lock()
	defer a.reloadMu.Unlock()
	now := digests(a.current.Files())
	for name, d := range now {
		if a.seen[name] != d {
			return now
		}
	}
	return nil
}

// digest stands for the content of a file.
type digest [sha256.Size]byte

// digests reads the files; one that can't be read counts as empty, and the
// reload will name it.
func digests(files []string) map[string]digest {
	out := map[string]digest{}
	for _, name := range files {
		content, _ := os.ReadFile(name) //nolint:gosec // a file the configuration names
		out[name] = sha256.Sum256(content)
	}
	return out
}
