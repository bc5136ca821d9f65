package telemetry

import (
	"fmt"
	"io"
	"log"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Logs are the gateway's two logs, JSON lines on one writer: events, at the
// configured level, and one access line a request.
type Logs struct {
	Events *zap.Logger
	Access *zap.Logger

	out *zapcore.BufferedWriteSyncer
}

// NewLogs writes to w. Lines are buffered for at most a fifth of a second;
// Sync writes out what is left. Events go to the other cores as well.
func NewLogs(w io.Writer, level string, others ...zapcore.Core) (*Logs, error) {
	lvl, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, fmt.Errorf("log level %q: use debug, info, warn or error", level)
	}
	out := &zapcore.BufferedWriteSyncer{WS: zapcore.AddSync(struct{ io.Writer }{w}), Size: 64 << 10, FlushInterval: 200 * time.Millisecond}
	enc := zap.NewProductionEncoderConfig()
	enc.TimeKey = "time"
	enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	core := func(l zapcore.Level) zapcore.Core { return zapcore.NewCore(zapcore.NewJSONEncoder(enc), out, l) }
	return &Logs{
		Events: zap.New(zapcore.NewTee(append(others, core(lvl))...)),
		Access: zap.New(core(zapcore.InfoLevel)),
		out:    out,
	}, nil
}

// Sync writes out what is buffered and ends the flushing; it is called once, last.
func (l *Logs) Sync() error { return l.out.Stop() }

// ForServer is the log of an http.Server: what it says is of interest only
// when connections are looked into.
func (l *Logs) ForServer() *log.Logger {
	std, err := zap.NewStdLogAt(l.Events, zapcore.DebugLevel)
	if err != nil {
		return log.New(io.Discard, "", 0)
	}
	return std
}
