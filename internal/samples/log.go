package samples

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// Limits bound a log. Zero fields mean the default named beside them.
type Limits struct {
	MaxFileRows int           // rows after which the next file begins; 50,000
	MaxFileAge  time.Duration // time after which it does; 1 h
	MaxFiles    int           // complete files that are kept; 24
	MaxBytes    int64         // of these together, in bytes; 256 MiB. The newest is kept whatever its size
}

func (l Limits) withDefaults() Limits {
	return Limits{
		MaxFileRows: cmp.Or(l.MaxFileRows, 50_000),
		MaxFileAge:  cmp.Or(l.MaxFileAge, time.Hour),
		MaxFiles:    cmp.Or(l.MaxFiles, 24),
		MaxBytes:    cmp.Or(l.MaxBytes, 256<<20),
	}
}

const (
	backlog = 2048        // samples that wait for the disk
	pause   = time.Minute // after an error of the disk
)

// Log writes samples into the files of a directory, which belongs to it alone.
// A file appears under its name when it is complete, and the oldest go when a
// limit is passed. It is safe for concurrent use.
type Log struct {
	dir    string
	limits Limits
	log    *zap.Logger

	mu     sync.RWMutex // held to write by Close only
	closed bool
	queue  chan predictor.Sample
	done   chan struct{}

	written, dropped, failures atomic.Uint64

	// Of the goroutine.
	file  *file
	until time.Time // of the pause after an error
}

// Open begins a log in dir, which it makes if needed. What a killed process
// left unfinished there is removed.
func Open(dir string, limits Limits, log *zap.Logger) (*Log, error) {
	if limits.MaxFileRows < 0 || limits.MaxFileAge < 0 || limits.MaxFiles < 0 || limits.MaxBytes < 0 {
		return nil, errors.New("a limit of the sample log is below 0; 0 means the default")
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("sample log: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(escape(dir), "*"+temporary))
	if err != nil {
		return nil, fmt.Errorf("sample log: %w", err)
	}
	for _, name := range left {
		if err := os.Remove(name); err != nil {
			return nil, fmt.Errorf("sample log: %w", err)
		}
	}
	l := &Log{dir: dir, limits: limits.withDefaults(), log: log, queue: make(chan predictor.Sample, backlog), done: make(chan struct{})}
	go l.run()
	return l, nil
}

// escape keeps a path from being a pattern.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// Write takes a copy of s. It never waits: what the disk is too slow for is
// dropped and counted, and so is what comes after Close.
func (l *Log) Write(s *predictor.Sample) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		l.dropped.Add(1)
		return
	}
	select {
	case l.queue <- *s:
	default:
		l.dropped.Add(1)
	}
}

// Written is how many samples were handed to the disk.
func (l *Log) Written() uint64 { return l.written.Load() }

// Dropped is how many samples were not, because the log was full, closed or
// pausing after an error.
func (l *Log) Dropped() uint64 { return l.dropped.Load() }

// Failures is how many errors of the disk there were. Each loses the samples
// of the file that was open.
func (l *Log) Failures() uint64 { return l.failures.Load() }

// Close completes the present file and waits for it. Later calls do nothing.
func (l *Log) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.queue)
	}
	l.mu.Unlock()
	<-l.done
}

// run owns the files.
func (l *Log) run() {
	defer close(l.done)
	timer := time.NewTimer(l.limits.MaxFileAge)
	defer timer.Stop()
	for {
		select {
		case s, more := <-l.queue:
			if !more {
				l.finish()
				return
			}
			fresh := l.file == nil
			l.add(&s)
			if fresh && l.file != nil {
				timer.Reset(l.limits.MaxFileAge)
			}
		case <-timer.C:
			l.finish()
		}
	}
}

func (l *Log) add(s *predictor.Sample) {
	if l.file == nil && !l.begin() {
		l.dropped.Add(1)
		return
	}
	if err := l.file.write(s); err != nil {
		l.fail(err)
		return
	}
	l.written.Add(1)
	if l.file.rows >= l.limits.MaxFileRows {
		l.finish()
	}
}

// begin opens the next file, unless there was an error a moment ago.
func (l *Log) begin() bool {
	now := time.Now()
	if now.Before(l.until) {
		return false
	}
	// Names sort by time.
	f, err := create(filepath.Join(l.dir, "samples-"+now.UTC().Format("20060102T150405.000000000Z")+extension))
	if err != nil {
		l.fail(err)
		return false
	}
	l.file = f
	return true
}

func (l *Log) finish() {
	if l.file == nil {
		return
	}
	f := l.file
	l.file = nil
	if err := f.finish(); err != nil {
		l.fail(err)
		return
	}
	if err := l.shrink(); err != nil {
		l.fail(err)
	}
}

// fail gives the present file up, and the disk a pause. One line is logged for
// each pause.
func (l *Log) fail(err error) {
	if l.file != nil {
		l.file.discard()
		l.file = nil
	}
	l.until = time.Now().Add(pause)
	l.log.Error("sample log failed", zap.Error(err), zap.Uint64("failures", l.failures.Add(1)), zap.Uint64("dropped", l.Dropped()))
}

// shrink removes the oldest files until those that are left keep the limits.
func (l *Log) shrink() error {
	names, err := list(l.dir)
	if err != nil {
		return err
	}
	slices.Reverse(names)
	total := int64(0)
	for i, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		total += info.Size()
		if i == 0 || i < l.limits.MaxFiles && total <= l.limits.MaxBytes {
			continue
		}
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	return nil
}
