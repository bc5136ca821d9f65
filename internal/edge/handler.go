// Package edge owns the HTTP edge: what must be refused before a request means
// anything. It follows the framing of each client connection (Listener), and in
// front of the routes it checks size, method, target and headers, gives every
// answer a request id, and keeps a panic inside its own request (Chain).
//
// It leaves to others: routing and the 404 and 405 of known paths, who the
// client is, the size of bodies, timeouts, and the shape of an error body,
// which comes in as an ErrorWriter.
package edge

import (
	"context"
	"net"
	"net/http"
)

// ErrorWriter answers a request with an error in the API's own shape. The
// status is an HTTP status, code a stable machine-readable word, param the
// field at fault or "", message one sentence for people. Headers already set
// on w belong to the answer. It may be called from many goroutines at once.
type ErrorWriter func(w http.ResponseWriter, r *http.Request, status int, code, param, message string)

// Options are the limits of the edge. A zero field means its default.
type Options struct {
	// MaxURL caps the request target in bytes. Default 8 KiB.
	MaxURL int
	// MaxHeaders caps the number of header fields, Host included. Default 100.
	MaxHeaders int
	// MaxHeaderBytes caps the request line and headers together, in bytes. Default 64 KiB.
	MaxHeaderBytes int
	// NewID makes request ids. Default "req_" and 32 random hex digits. Safe for concurrent use.
	NewID func() string
}

func (o Options) withDefaults() Options {
	if o.MaxURL <= 0 {
		o.MaxURL = 8 << 10
	}
	if o.MaxHeaders <= 0 {
		o.MaxHeaders = 100
	}
	if o.MaxHeaderBytes <= 0 {
		o.MaxHeaderBytes = 64 << 10
	}
	if o.NewID == nil {
		o.NewID = newRequestID
	}
	return o
}

// Configure sets what the edge needs of the server that uses Listener and
// Chain: HTTP/1 only, the same header limit, no answers that pass the chain by,
// and each connection's guard in the context of its requests. Call it before
// Serve.
func Configure(srv *http.Server, opts Options) {
	opts = opts.withDefaults()
	srv.Protocols = new(http.Protocols)
	srv.Protocols.SetHTTP1(true)
	srv.MaxHeaderBytes = opts.MaxHeaderBytes
	srv.DisableGeneralOptionsHandler = true
	outer := srv.ConnContext
	srv.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if outer != nil {
			ctx = outer(ctx, conn)
		}
		return connContext(ctx, conn)
	}
}

// Chain puts the edge in front of next. The request next gets is well framed
// (if it came through Listener), within the limits, has an ordinary method and
// one canonical path, and carries no hop-by-hop header and no name that only
// the gateway may set. Every refusal closes the connection. A request whose
// connection has no guard is served without the framing check.
func Chain(opts Options, errw ErrorWriter, logPanic PanicLogger, next http.Handler) http.Handler {
	opts = opts.withDefaults()
	h := stripHeaders(next)
	h = refuseTargets(h, errw)
	h = refuseMethods(h, errw)
	h = refuseExpectations(h, errw)
	h = refuseSizes(h, errw, opts)
	h = refuseFaults(h, errw)
	h = recoverPanics(h, errw, logPanic)
	return giveID(h, opts.NewID)
}

// refuse answers with an error and closes the connection: what the edge turns
// away was not written by a client worth keeping a connection for.
func refuse(w http.ResponseWriter, r *http.Request, errw ErrorWriter, status int, code, message string) {
	w.Header().Set("Connection", "close")
	errw(w, r, status, code, "", message)
}
