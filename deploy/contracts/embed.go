// Package contracts embeds the contract files that lie beside it, so that the
// binary needs no files. What a contract means is package sla's business.
package contracts

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml
var files embed.FS

// Files gives the contract files; a file's name without .yaml is its contract's.
func Files() fs.FS { return files }
