package edge

import (
	"net/http"
	"strings"
)

// internalPrefix starts the names that only the gateway sets, in canonical form,
// but for the one that clients ask by.
const (
	internalPrefix = "X-Firsttoken-"
	explain        = "X-Firsttoken-Explain"
)

// stripHeaders drops what a client must not say to a backend: hop-by-hop fields
// and what Connection nominates, offers to upgrade (ignored, as RFC 9110 section
// 7.8 allows), names that some servers read as other names, and the gateway's
// own. Trailers are dropped too.
func stripHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		dropNominated(r.Header)
		for name := range r.Header {
			if isDropped(name) {
				delete(r.Header, name)
			}
		}
		r.Trailer = nil
		next.ServeHTTP(w, r)
	})
}

// dropNominated drops the fields that Connection says end at this hop. Its two
// usual words name none, and are passed over for speed.
func dropNominated(h http.Header) {
	for _, value := range h["Connection"] {
		if value == "keep-alive" || value == "close" {
			continue
		}
		for name := range strings.SplitSeq(value, ",") {
			h.Del(strings.Trim(name, " \t"))
		}
	}
}

func isDropped(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Upgrade", "Http2-Settings":
		return true
	case explain:
		return false
	}
	if len(name) >= len(internalPrefix) && strings.EqualFold(name[:len(internalPrefix)], internalPrefix) {
		return true
	}
	for i := range len(name) {
		if name[i] == '_' || name[i] == '.' {
			return true
		}
	}
	return false
}
