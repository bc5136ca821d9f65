// Package profiles embeds the measured engine profiles that lie beside it, one
// YAML file a profile, so that the binary needs no files. What a profile means
// and how it is read is package engine's business.
package profiles

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml
var files embed.FS

// Files gives the profiles; a file's name without .yaml is the profile's.
func Files() fs.FS { return files }
