package edge

import (
	"net/http"
	"runtime/debug"
)

// PanicLogger is told of a panic in a handler: the request, the value and the
// stack. It may be called from many goroutines at once.
type PanicLogger func(r *http.Request, value any, stack []byte)

// recoverPanics keeps a panic inside its request: it is logged and answered with 500,
// or, where part of an answer is out, the connection is cut so that nobody takes
// that part for the whole. http.ErrAbortHandler is how a handler asks for that
// cut; it passes through and is not logged.
func recoverPanics(next http.Handler, errw ErrorWriter, logPanic PanicLogger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tracked := &trackedWriter{ResponseWriter: w}
		defer func() {
			value := recover()
			if value == nil {
				return
			}
			if value == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
				panic(value)
			}
			logPanic(r, value, debug.Stack())
			if tracked.wrote {
				panic(http.ErrAbortHandler)
			}
			clearHeaders(w.Header())
			refuse(w, r, errw, http.StatusInternalServerError, "internal_error", "The gateway failed to serve the request.")
		}()
		next.ServeHTTP(tracked, r)
	})
}

// clearHeaders drops what a handler prepared for another answer.
func clearHeaders(h http.Header) {
	for name := range h {
		if name != "X-Request-Id" && name != "X-Client-Request-Id" {
			delete(h, name)
		}
	}
}

// trackedWriter remembers whether an answer has begun.
type trackedWriter struct {
	http.ResponseWriter
	wrote bool
}

// WriteHeader begins the answer, unless the status is informational.
func (w *trackedWriter) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.wrote = true
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *trackedWriter) Write(p []byte) (int, error) {
	w.wrote = true
	return w.ResponseWriter.Write(p)
}

// FlushError begins the answer too: flushing sends its headers.
func (w *trackedWriter) FlushError() error {
	w.wrote = true
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush is FlushError for those who ask for an http.Flusher.
func (w *trackedWriter) Flush() { _ = w.FlushError() }

// Unwrap lets an http.ResponseController reach the connection.
func (w *trackedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
