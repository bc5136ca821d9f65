// Package proxy owns the data plane: it reads a request once, has the router
// choose a backend, and moves bytes. It decides when an attempt has failed,
// whether another may be made, and what the client is told; whom to ask is
// the router's choice, and what a failure means for a backend is decided in
// package backends.
package proxy
