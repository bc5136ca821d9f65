// Package predictor owns what the gateway believes about the time to a
// request's first token: a mirror of each engine's work, fed by the gateway's
// own streams and the engine's metrics; estimators that turn it into P50 and
// P95; the calibration around them; and the choice between them. Whom to send
// a request to is left to package router, reading metrics to package backends.
//
// The package reads no clock: the time comes in as an argument, so that live
// traffic and virtual-time replay run the same code.
package predictor
