// Package replay judges routing in virtual time: a discrete-event loop sends
// a trace through the gateway's own router, leases, health and signal code to
// simulated engines. No clock is read and no goroutine decides anything, so
// the same trace, fleet and seed give the same outcome, byte for byte.
//
// It owns time, the network between gateways and engines, and the fate of
// each request. Where requests come from is package trace, what an engine
// does package engine, and how outcomes are summed up package report.
package replay
