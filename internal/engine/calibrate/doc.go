// Package calibrate fits step models to measured loads and judges them.
//
// It owns the loads (closed loops of users, requests at measured times), the
// files they are measured in, the search for the parameters that reproduce
// them, and the comparison with what was not fitted. The engine itself is
// package engine; this package only runs it in virtual time.
package calibrate
