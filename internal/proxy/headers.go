package proxy

import (
	"net/http"
	"net/textproto"
	"strings"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

// neverForwarded are request headers that stay at the gateway: the client's
// credentials and cookies, hop-by-hop fields, what the gateway sets itself,
// and what could claim an identity or an origin.
var neverForwarded = map[string]bool{
	// credentials
	"Authorization": true, "Proxy-Authorization": true, "Cookie": true, "Cookie2": true,
	"X-Api-Key": true, "Api-Key": true, "X-Goog-Api-Key": true, "Ocp-Apim-Subscription-Key": true,
	"X-Auth-Token": true, "X-Access-Token": true, "X-Authorization": true, "X-Amz-Security-Token": true, "X-Csrf-Token": true,
	"Openai-Organization": true, "Openai-Project": true,
	// hop by hop (RFC 9110 7.6.1)
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Http2-Settings": true, "Proxy-Authenticate": true,
	// framing and content the gateway decides
	"Content-Length": true, "Content-Type": true, "Content-Encoding": true, "Expect": true, "Accept-Encoding": true, "Host": true,
	"Idempotency-Key": true, "Range": true, "If-None-Match": true, "If-Modified-Since": true,
	// identity and origin
	"Forwarded": true, "Via": true, "X-Real-Ip": true, "X-Client-Ip": true, "True-Client-Ip": true, "Cf-Connecting-Ip": true,
	"X-Cluster-Client-Ip": true, "Fastly-Client-Ip": true, "X-Originating-Ip": true, "X-Remote-Ip": true, "X-Remote-Addr": true,
	"X-Remote-User": true, "Remote-User": true,
	"X-Request-Id": true, "X-Client-Request-Id": true, "X-Original-Url": true, "X-Rewrite-Url": true,
	"X-Http-Method-Override": true, "X-Http-Method": true, "X-Method-Override": true,
}

// neverForwardedPrefixes are families of such headers.
var neverForwardedPrefixes = []string{"X-Forwarded-", "X-Envoy-", "X-Firsttoken-", "X-Stainless-", "Proxy-"}

// Values that every attempt sends; the transport only reads them.
var (
	contentJSON = []string{"application/json"}
	userAgent   = []string{"firsttoken"}
	identity    = []string{"identity"}
)

// requestHeader builds the headers of an attempt from the client's. It is
// made anew for every attempt.
func requestHeader(client http.Header, b *backends.Backend, requestID string) http.Header {
	named := connectionNamed(client)
	out := make(http.Header, len(client)+4)
	for name, values := range client {
		if forwards(name) && !named[name] {
			out[name] = values
		}
	}
	out["Content-Type"] = contentJSON // the body was read as JSON, whatever the client calls it
	if len(out["User-Agent"]) == 0 {
		out["User-Agent"] = userAgent
	}
	out["Accept-Encoding"] = identity
	out["X-Request-Id"] = []string{requestID}
	if b.AuthHeader != "" {
		out.Set(b.AuthHeader, b.AuthValue)
	}
	// An empty, present Idempotency-Key is not sent; it lets the transport
	// repeat the request on a fresh connection when the engine closed an idle
	// one under it.
	out["Idempotency-Key"] = nil
	return out
}

func forwards(name string) bool {
	return !neverForwarded[name] && !strings.ContainsAny(name, "_.") && !hasPrefix(name, neverForwardedPrefixes)
}

func hasPrefix(name string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// connectionNamed are the headers a Connection field declares hop-by-hop;
// nil when there are none.
func connectionNamed(h http.Header) map[string]bool {
	var named map[string]bool
	for _, list := range h["Connection"] {
		for token := range strings.SplitSeq(list, ",") {
			token = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(token))
			if token == "" || token == "Close" {
				continue
			}
			if named == nil {
				named = map[string]bool{}
			}
			named[token] = true
		}
	}
	return named
}

// neverReturned are headers of an engine's answer that stay at the gateway.
var neverReturned = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Proxy-Authenticate": true, "Proxy-Authentication-Info": true,
	"Content-Length": true, "Date": true, "Server": true, "Set-Cookie": true, "Set-Cookie2": true,
	"Alt-Svc": true, "Strict-Transport-Security": true, "X-Request-Id": true, "X-Client-Request-Id": true,
}

// neverReturnedPrefixes are families of such headers; the second is orders to
// a proxy in front of the gateway.
var neverReturnedPrefixes = []string{"X-Firsttoken-", "X-Accel-"}

// copyResponseHeader copies an engine's headers to the client's answer. The
// engine's own request id is kept under another name.
func copyResponseHeader(dst, engine http.Header) {
	named := connectionNamed(engine)
	for name, values := range engine {
		if !neverReturned[name] && !named[name] && !hasPrefix(name, neverReturnedPrefixes) {
			dst[name] = values
		}
	}
	if id := engine["X-Request-Id"]; len(id) > 0 {
		dst["X-Upstream-Request-Id"] = id
	}
}

// streamHeader keeps intermediaries from holding a stream back.
func streamHeader(h http.Header) {
	if len(h["Cache-Control"]) == 0 {
		h["Cache-Control"] = []string{"no-cache"}
	}
	h["X-Accel-Buffering"] = []string{"no"}
}
