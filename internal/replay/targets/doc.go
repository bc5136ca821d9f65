// Package targets owns the judgement of the default policy by replay: how much
// more a fleet serves within its contracts than under the best known rule, what
// remains of that past its capacity, with old signals, slow engines and wrong
// predictions, and whether the important and the small come to their right.
//
// How requests are routed belongs to package router, what becomes of them to
// package replay. Nothing here reads a clock; the same options give the same
// tables.
package targets
