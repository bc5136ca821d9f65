// Package router owns the choice of a backend for one attempt and the lease
// that comes of it: filter, pick, count, and the one end that load, health
// and learning hang on. Who may be chosen is decided by package backends;
// bytes and connections belong to internal/proxy.
//
// The package reads no clock: the time comes in as an argument.
package router
