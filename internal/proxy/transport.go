package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Dialer opens connections to engines.
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// NewTransport returns the connection pool to one engine. It speaks HTTP/1.1,
// as engines do, never compresses (which could hold events back), and drops
// idle connections before the engine does. dial nil means the system's.
func NewTransport(o TransportOptions, dial Dialer) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	return &http.Transport{
		DialContext:            dialWithin(o.Dial, dial),
		TLSHandshakeTimeout:    o.Dial,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    o.MaxIdleConns,
		IdleConnTimeout:        o.IdleConnTimeout,
		MaxResponseHeaderBytes: maxEngineHeaders,
		ForceAttemptHTTP2:      false,
		// Thousands of streams wait for their next event at once, and an event
		// is some hundred bytes: small buffers keep a waiting stream small.
		ReadBufferSize:  2 << 10,
		WriteBufferSize: 1 << 10,
	}
}

// dialWithin bounds dial and names the timeout, which net reports like any other.
func dialWithin(limit time.Duration, dial Dialer) Dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if limit <= 0 {
			return dial(ctx, network, addr)
		}
		ctx, cancel := context.WithTimeoutCause(ctx, limit, errDialTimeout)
		defer cancel()
		conn, err := dial(ctx, network, addr)
		if err != nil && errors.Is(context.Cause(ctx), errDialTimeout) {
			return nil, &net.OpError{Op: "dial", Net: network, Err: errDialTimeout}
		}
		return conn, err
	}
}
