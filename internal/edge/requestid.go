package edge

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
)

// newRequestID makes "req_" and 32 random hex digits.
func newRequestID() string {
	const prefix = "req_"
	var random [16]byte
	rand.Read(random[:])
	var id [len(prefix) + 2*len(random)]byte
	copy(id[:], prefix)
	hex.Encode(id[len(prefix):], random[:])
	return string(id[:])
}

// giveID gives each request an id from newID, in x-request-id of the answer
// and by RequestIDFrom. The client's own id, if well formed, comes back as
// x-client-request-id.
func giveID(next http.Handler, newID func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ids := &requestIDs{Context: r.Context(), own: [1]string{newID()}, client: [1]string{sentID(r.Header)}}
		header := w.Header()
		header["X-Request-Id"] = ids.own[:]
		if ids.client[0] != "" {
			header["X-Client-Request-Id"] = ids.client[:]
		}
		next.ServeHTTP(w, r.WithContext(ids))
	})
}

// RequestIDFrom returns the id that giveID gave to the request of ctx, or "".
func RequestIDFrom(ctx context.Context) string {
	if ids, ok := ctx.Value(requestIDsKey{}).(*requestIDs); ok {
		return ids.own[0]
	}
	return ""
}

// ClientRequestID returns the id the client gave r in X-Client-Request-Id or
// X-Request-Id, or "" if there is none that is well formed.
func ClientRequestID(r *http.Request) string {
	if ids, ok := r.Context().Value(requestIDsKey{}).(*requestIDs); ok {
		return ids.client[0]
	}
	return ""
}

// requestIDs is the context of a request with its ids, in one allocation. The
// arrays serve as the values of the answer's headers.
type requestIDs struct {
	context.Context
	own, client [1]string
}

type requestIDsKey struct{}

func (c *requestIDs) Value(key any) any {
	if key == (requestIDsKey{}) {
		return c
	}
	return c.Context.Value(key)
}

func sentID(h http.Header) string {
	for _, name := range [...]string{"X-Client-Request-Id", "X-Request-Id"} {
		if sent := h[name]; len(sent) == 1 && isID(sent[0]) {
			return sent[0]
		}
	}
	return ""
}

// isID tells an id that is safe to log and to send back: [A-Za-z0-9._:-]{1,128}.
func isID(id string) bool {
	if len(id) < 1 || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		case c == '.' || c == '_' || c == ':' || c == '-':
		default:
			return false
		}
	}
	return true
}
