// Package fleets embeds the fleet files that lie beside it, so that the binary
// needs no files. What a fleet file means is package fleet's business.
package fleets

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml
var files embed.FS

// Files gives the fleets; a file's name without .yaml is the fleet's.
func Files() fs.FS { return files }
