package edge

import (
	"net/http"
	"strings"
)

const (
	allowedMethods     = "GET, HEAD, POST, OPTIONS, PUT, PATCH, DELETE"
	expectationCode    = "expectation_failed"
	expectationMessage = "Only Expect: 100-continue is supported."
)

// refuseSizes bounds the request target and the number of header fields. The
// bytes of the head are bounded by the guard and by net/http.
func refuseSizes(next http.Handler, errw ErrorWriter, opts Options) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.RequestURI) > opts.MaxURL {
			refuse(w, r, errw, http.StatusRequestURITooLong, "url_too_long", "The URL is too long.")
			return
		}
		if countHeaders(r) > opts.MaxHeaders {
			refuse(w, r, errw, http.StatusRequestHeaderFieldsTooLarge, "too_many_headers", "The request has too many headers.")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// countHeaders counts header fields as they were sent, Host included.
func countHeaders(r *http.Request) int {
	n := 0
	if r.Host != "" {
		n++
	}
	for _, values := range r.Header {
		n += len(values)
	}
	return n
}

// refuseExpectations turns away what the gateway cannot promise. net/http deals
// with 100-continue, and the field goes no further: a backend's own 100 would
// cost a round trip.
func refuseExpectations(next http.Handler, errw ErrorWriter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		expected, ok := r.Header["Expect"]
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		if len(expected) != 1 || !strings.EqualFold(expected[0], "100-continue") {
			refuse(w, r, errw, http.StatusExpectationFailed, expectationCode, expectationMessage)
			return
		}
		delete(r.Header, "Expect")
		next.ServeHTTP(w, r)
	})
}

// refuseMethods turns away, before any routing, methods that reach beyond one
// resource (CONNECT, TRACE) with 405 and unknown ones with 501.
func refuseMethods(next http.Handler, errw ErrorWriter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet, http.MethodPost, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodPatch, http.MethodDelete:
			next.ServeHTTP(w, r)
		case http.MethodConnect, http.MethodTrace:
			w.Header().Set("Allow", allowedMethods)
			refuse(w, r, errw, http.StatusMethodNotAllowed, "method_not_allowed", "This method is not allowed.")
		default:
			refuse(w, r, errw, http.StatusNotImplemented, "method_not_implemented", "This method is not implemented.")
		}
	})
}
