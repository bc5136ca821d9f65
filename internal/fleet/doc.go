// Package fleet describes fleets of simulated engines: which profiles, how
// many, how they differ from what was measured, and what goes wrong when.
//
// It owns the fleet file and what it expands to, and runs such a fleet behind
// HTTP: on ports, with faults by schedule and by a control port. How an engine
// behaves is package engine's business; package replay takes the same expanded
// fleet into virtual time.
package fleet
