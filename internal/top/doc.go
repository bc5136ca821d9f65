// Package top owns the view of a running gateway in a terminal: what it asks of
// the operator API, how a frame is drawn, and when the next one is. What is true
// comes from package admin, and flags belong to the command.
//
// Drawing is pure: the same view, size and style are the same frame.
package top
