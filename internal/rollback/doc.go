// Package rollback owns the search for the cause of a violated contract among
// what was changed before it: it keeps a short history of changes, recent samples
// and outcomes, holds what serves against what served before, and takes a
// predictor's model back when the former one is better. For contracts,
// configurations and instances it recommends. Its records say what was compared,
// with the numbers.
//
// When a contract is violated is decided by package sla, how good predictions
// were by package samples, and what a rollback does by package models.
package rollback
