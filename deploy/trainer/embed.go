// Package trainer embeds the trainer of models that lies beside it, a Python
// program, so that the binary needs no files. Who runs it, and what becomes of
// the model, is the caller's business.
package trainer

import (
	"embed"
	"io/fs"
)

// Script and Requirements name the program and the packages it needs.
const (
	Script       = "train.py"
	Requirements = "requirements.txt"
)

//go:embed train.py requirements.txt
var files embed.FS

// Files gives the program and its requirements.
func Files() fs.FS { return files }
