package edge

import (
	"net/http"
	"strings"
)

// refuseTargets lets only paths through that read the same to everyone: the
// one spelling that the router, the access rules and the backend agree on.
func refuseTargets(next http.Handler, errw ErrorWriter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if why := targetProblem(r.RequestURI); why != "" {
			refuse(w, r, errw, http.StatusBadRequest, "invalid_path", why)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// targetProblem says what is wrong with a request target as it was sent, or "".
func targetProblem(target string) string {
	if strings.IndexByte(target, '#') >= 0 {
		return "The request target must not hold a fragment."
	}
	path, _, _ := strings.Cut(target, "?")
	if path == "" || path[0] != '/' {
		return "The request target must be a path."
	}
	return pathProblem(path)
}

// pathProblem reads the path byte by byte, decoded, and each segment's end.
// Below modelsPrefix an encoded slash separates like a literal one, since
// clients send model names with slashes that way; elsewhere it is refused.
func pathProblem(path string) string {
	const modelsPrefix = "/v1/models/"
	encodedSlash := strings.HasPrefix(path, modelsPrefix)
	segment, dots := 0, 0 // bytes of the current segment; how many of them are dots
	for i := 1; i < len(path); i++ {
		c, encoded := path[i], false
		if c == '%' {
			high, low, ok := hexPair(path[i+1:])
			if !ok {
				return "The path holds a malformed percent-encoding."
			}
			c, encoded = high<<4|low, true
			i += 2
		}
		switch {
		case c == '/' && encoded && !encodedSlash:
			return "The path must not hold an encoded slash."
		case c == '/':
			if segment == 0 {
				return "The path must not hold an empty segment."
			}
			if isDots(segment, dots) {
				return dotSegment
			}
			segment, dots = 0, 0
			continue
		case !mayStand(c, encoded):
			return "The path holds a character that is not allowed there."
		case c == '.':
			dots++
		}
		segment++
	}
	if isDots(segment, dots) {
		return dotSegment
	}
	return ""
}

const dotSegment = "The path must not hold dot segments."

func isDots(segment, dots int) bool {
	return dots == segment && (dots == 1 || dots == 2)
}

// mayStand refuses what ends or bends a path in some reader (backslash, NUL and
// controls, ';', encoded delimiters, double encoding) and the needless encoding
// of letters, digits and dots, which only serves to hide them.
func mayStand(c byte, encoded bool) bool {
	switch {
	case c < ' ' || c == 0x7f || c == '\\' || c == ';':
		return false
	case !encoded:
		return c > ' ' && c < 0x7f
	case c == '%' || c == '#' || c == '?' || c == '.':
		return false
	case c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		return false
	}
	return true
}

func hexPair(s string) (high, low byte, ok bool) {
	if len(s) < 2 {
		return 0, 0, false
	}
	high, ok1 := hexDigit(s[0])
	low, ok2 := hexDigit(s[1])
	return high, low, ok1 && ok2
}
