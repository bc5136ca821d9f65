// Package models carries the LightGBM model that ships in the binary, so that
// the estimator has something to say on the first request and on GPUs it has
// not seen. It was trained on simulated fleets by `make bootstrap-model`; what
// a model directory looks like belongs to package trees.
package models

import (
	"embed"
	"io/fs"
)

//go:embed bootstrap
var files embed.FS

// Bootstrap is the directory of the shipped model.
func Bootstrap() (fs.FS, error) { return fs.Sub(files, "bootstrap") }
