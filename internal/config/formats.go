package config

import (
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/firsttoken/firsttoken/deploy/profiles"
)

// format is a form that a string must have: a pattern for the schema and a
// parse that refuses it or returns it normalised.
type format struct {
	pattern string
	parse   func(text string) (string, *fault)
}

// formats are what the tags format and keys name; "" is any text.
var formats = map[string]format{
	"": matching(`^[^\x00-\x20\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\x00-\x20\x7f-\x9f])?$`,
		"contains a control character or an outer space", "write plain text"),
	"text": matching(`^[^\x00]*[^\x00-\x20][^\x00]*$`, "is blank or contains a NUL", "write some text"),
	"backend": matching(`^[!-~]{1,128}$`, "is not a backend name",
		"write up to 128 visible ASCII characters"),
	"path": matching(`^/[!-"$-~]*$`, "is not a URL path",
		`write a path such as "/health"`),
	"label": matching(`^[a-zA-Z_][a-zA-Z0-9_]{0,127}$`, "is not a label name",
		"write letters, digits and _, not starting with a digit"),
	"env": matching(`^[a-zA-Z_][a-zA-Z0-9_]*$`, "is not the name of an environment variable",
		"write the variable's name, not the secret itself"),
	"scheme": matching(`^`+tokenChars+`?$`, "is not an authentication scheme",
		"write one word such as Bearer"),
	"profile": {pattern: `^[A-Za-z0-9.-]+$`, parse: parseProfile},
	"header":  {pattern: `^` + tokenChars + `$`, parse: parseHeader},
	"listen":  {pattern: `^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]*):[0-9]{1,5}$`, parse: parseListen},
	"url":     {pattern: `^[hH][tT][tT][pP][sS]?://[^/?#@\s]+(/[^?#\s]*)?$`, parse: parseURL},
}

const tokenChars = `[!#$%&'*+.^_|~0-9A-Za-z` + "`" + `-]+`

// matching is a format that is no more than its pattern.
func matching(pattern, is, fix string) format {
	re := regexp.MustCompile(pattern)
	return format{pattern: pattern, parse: func(text string) (string, *fault) {
		if !utf8.ValidString(text) || !re.MatchString(text) {
			return "", &fault{is: is, fix: fix}
		}
		return text, nil
	}}
}

// parseProfile takes the name of a built-in engine profile, in any case.
func parseProfile(text string) (string, *fault) {
	name := strings.ToLower(text)
	names := profileNames()
	if !slices.Contains(names, name) {
		return "", &fault{is: "is no built-in profile", fix: suggest(name, names)}
	}
	return name, nil
}

func profileNames() []string {
	files, _ := fs.Glob(profiles.Files(), "*.yaml") // the pattern is well formed
	for i, file := range files {
		files[i] = strings.TrimSuffix(file, ".yaml")
	}
	return files
}

var headerName = regexp.MustCompile(`^` + tokenChars + `$`)

// parseHeader refuses the headers that belong to the connection or the body.
func parseHeader(text string) (string, *fault) {
	const fix = "write a name such as Authorization or X-Api-Key"
	if !headerName.MatchString(text) {
		return "", &fault{is: "is not a header name", fix: fix}
	}
	name := http.CanonicalHeaderKey(text)
	taken := []string{"Connection", "Content-Encoding", "Content-Length", "Content-Type", "Expect", "Host",
		"Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}
	if slices.Contains(taken, name) {
		return "", &fault{is: "is a header that the connection needs", fix: fix}
	}
	return name, nil
}

var hostname = regexp.MustCompile(`^[A-Za-z0-9.-]*$`)

func parseListen(text string) (string, *fault) {
	bad := &fault{is: "is not host:port", fix: `write ":8080" or "127.0.0.1:8080"`}
	host, port, err := net.SplitHostPort(text)
	if err != nil || !isPort(port) {
		return "", bad
	}
	if net.ParseIP(host) == nil && !hostname.MatchString(host) {
		return "", bad
	}
	return text, nil
}

// isPort accepts 0, which asks the system for a free port.
func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && plainNumber.MatchString(s) && n <= 65535
}

// parseURL returns scheme://host[:port][/path] in one spelling, so that equal
// engines have equal URLs: no default port, no trailing slash, no trailing /v1.
func parseURL(text string) (string, *fault) {
	const form = "write http://host:port"
	bad := &fault{is: "is not an http or https URL", fix: form, quiet: strings.ContainsAny(text, "@?#")}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || !utf8.ValidString(text) {
		return "", bad
	}
	switch {
	case u.User != nil:
		return "", &fault{is: "contains a user or password", fix: form + " and use credentials", quiet: true}
	case u.RawQuery != "" || u.ForceQuery:
		return "", &fault{is: "contains a query", fix: form, quiet: true}
	case strings.Contains(text, "#"):
		return "", &fault{is: "contains a fragment", fix: form, quiet: true}
	case strings.ContainsAny(u.Hostname(), "%@ \\"):
		return "", bad
	case u.Port() != "" && (!isPort(u.Port()) || u.Port() == "0"):
		return "", &fault{is: "has no valid port", fix: form}
	}
	path := strings.TrimRight(u.EscapedPath(), "/")
	path = strings.TrimRight(strings.TrimSuffix(path, "/v1"), "/")
	return u.Scheme + "://" + hostOf(u) + path, nil
}

// hostOf returns host or host:port in lower case, without a default port.
func hostOf(u *url.URL) string {
	host := strings.ToLower(u.Hostname())
	if port := u.Port(); port != "" && port != defaultPort(u.Scheme) {
		return net.JoinHostPort(host, port)
	}
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

func defaultPort(scheme string) string {
	if scheme == "https" {
		return "443"
	}
	return "80"
}
