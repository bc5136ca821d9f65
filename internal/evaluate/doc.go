// Package evaluate owns the judgement of predictions of the time to first
// token: how far estimators are from the truth, from an oracle and from simple
// baselines, by regime; whether they order instances as the truth does; how
// soon they follow a change; and what each feature is worth. It gets its rows
// from simulated fleets, from measured runs, or from samples that a gateway
// kept, and prints them as tables, JSON and one HTML file.
//
// How predictions come about belongs to package predictor, what an engine does
// to package engine.
package evaluate
