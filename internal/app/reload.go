package app

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
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
		return fmt.Errorf("this gateway was started without a configuration file")
	}
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
	a.plane.Swap(rev.table)
	a.monitor.Watch(rev.watch)
	a.metrics.Keep(rev.keep())
	for _, t := range append(a.retired, rev.retired...) {
		t.CloseIdleConnections() // busy connections end with their requests and the idle timeout
	}
	a.retired = rev.retired
	return nil
}

// warnRestart names settings that a reload can't change.
func (a *App) warnRestart(cfg *config.Config) {
	if cfg.Server.Listen != a.cfg.Server.Listen || cfg.Telemetry != a.cfg.Telemetry ||
		cfg.Server.MaxHeaders != a.cfg.Server.MaxHeaders || cfg.Server.MaxHeaderBytes != a.cfg.Server.MaxHeaderBytes ||
		cfg.Server.MaxURL != a.cfg.Server.MaxURL || cfg.Server.ReadHeaderTimeout != a.cfg.Server.ReadHeaderTimeout ||
		cfg.Server.KeepAlive != a.cfg.Server.KeepAlive || cfg.Drain != a.cfg.Drain {
		a.logs.Events.Warn("server listeners and header limits, telemetry and drain keep the values the gateway was started with until it is restarted")
	}
}

// watchFiles reloads when the configuration or a file it refers to changes.
func (a *App) watchFiles(ctx context.Context) {
	if a.opts.Reload == nil {
		return
	}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	last := a.fingerprint()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := a.fingerprint(); !bytes.Equal(now, last) {
			last = now
			_ = a.Reload() // it has logged and counted its error
		}
	}
}

// fingerprint is a digest of the files' contents; a file that can't be read
// counts as empty, and the reload will name it.
func (a *App) fingerprint() []byte {
	a.reloadMu.Lock()
	files := a.current.Files()
	a.reloadMu.Unlock()
	sum := sha256.New()
	for _, name := range files {
		fmt.Fprintf(sum, "%q\n", name)
		if f, err := os.Open(name); err == nil {
			_, _ = io.Copy(sum, f)
			_ = f.Close()
		}
	}
	return sum.Sum(nil)
}

// all lists the compiler's connection pools.
func (c *compiler) all() []*http.Transport {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*http.Transport
	for _, t := range c.transports {
		out = append(out, t)
	}
	return out
}
