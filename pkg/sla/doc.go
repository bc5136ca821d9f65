// Package sla owns contracts and what becomes of them: the files that state
// what was promised to whom, which contract holds for a request, the budgets
// and deadlines that follow, and the ledger of met and missed promises with its
// compliance, error budgets, burn rates and violations.
//
// Where a request goes, who waits and who is shed is decided by package router;
// this package only says what each of them is worth. It reads no clock: the
// time comes in as an argument.
package sla
