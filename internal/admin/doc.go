// Package admin answers operators who ask what the gateway is doing: its state,
// the decisions it made, its events, and what it found of violations. It owns the
// wire types and the checking of queries; what is true is asked of whoever knows.
package admin
