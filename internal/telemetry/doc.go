// Package telemetry owns what operators see: the metric names and labels, the
// logs, and the readings of the fleet that a scrape asks for. It decides
// nothing; the data plane reports to it.
package telemetry
