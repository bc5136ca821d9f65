// Package backends owns what the gateway knows of the engines it can choose:
// their identity, the load it has put on them, their health, their circuit
// breaker and what their own metrics last said. It decides who may be chosen;
// whom to choose is left to package router, and every socket, timer and
// goroutine to internal/monitor and internal/proxy.
//
// The package reads no clock: the time comes in as an argument, so that live
// traffic and virtual-time replay run the same code. (The circuit breaker is
// the exception its library imposes; a Spec without BreakerFailures has none.)
package backends
