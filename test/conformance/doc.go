// Package conformance holds the gateway binary to what its clients expect: the
// official SDKs of three languages, the Go SDK's own tests, and the OpenAPI
// description of the API. It starts everything it needs; the script "run"
// beside it installs the SDKs first.
//
// It leaves to others what only shows on a slow or virtual clock (package app)
// and against real engines (test/e2e).
package conformance
