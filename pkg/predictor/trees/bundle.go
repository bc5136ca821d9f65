package trees

import (
	"fmt"
	"io"
	"io/fs"
	"math"
)

const (
	manifestFile = "manifest.json"
	maxManifest  = 1 << 20 // bytes
	tolerance    = 1e-9    // of golden rows
)

// Bundle is a model as it is published: both heads and the manifest. It never
// changes and is safe for concurrent use.
type Bundle struct {
	Manifest Manifest
	P50, P95 *Model
}

// Files are the files of a bundle.
func Files() []string { return []string{manifestFile, "p50.txt", "p95.txt"} }

// OpenWith reads the bundle in the root of fsys and checks all of it: formats,
// checksums, names of the features, hash of their schema, golden rows.
func OpenWith(fsys fs.FS, names []string, schemaHash string) (*Bundle, error) {
	m, err := openManifest(fsys)
	if err != nil {
		return nil, err
	}
	if m.Schema != schemaHash {
		return nil, fmt.Errorf("%s: schema: is %s, the features of this version are %s; train on samples of this version", manifestFile, short(m.Schema), schemaHash)
	}
	b := &Bundle{Manifest: *m}
	if b.P50, err = openHead(fsys, m.Heads.P50, names); err != nil {
		return nil, err
	}
	if b.P95, err = openHead(fsys, m.Heads.P95, names); err != nil {
		return nil, err
	}
	for i, g := range m.Golden {
		if err := b.reproduce(g); err != nil {
			return nil, fmt.Errorf("%s: golden: row %d: %w", manifestFile, i, err)
		}
	}
	return b, nil
}

// Predict evaluates both heads on one row, as Model.Predict does. Nothing makes
// p95 the larger one: that is the caller's.
func (b *Bundle) Predict(row []float64) (p50, p95 float64, err error) {
	if p50, err = b.P50.Predict(row); err != nil {
		return 0, 0, fmt.Errorf("p50: %w", err)
	}
	if p95, err = b.P95.Predict(row); err != nil {
		return 0, 0, fmt.Errorf("p95: %w", err)
	}
	return p50, p95, nil
}

func (b *Bundle) reproduce(g Golden) error {
	row := make([]float64, len(g.Row))
	for i, v := range g.Row {
		row[i] = float64(v)
	}
	p50, p95, err := b.Predict(row)
	if err != nil {
		return err
	}
	if !(math.Abs(p50-g.P50) <= tolerance && math.Abs(p95-g.P95) <= tolerance) {
		return fmt.Errorf("predicts %v and %v instead of %v and %v"+damaged, p50, p95, g.P50, g.P95)
	}
	return nil
}

func openManifest(fsys fs.FS) (*Manifest, error) {
	file, err := open(fsys, manifestFile)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // was only read
	text, err := io.ReadAll(io.LimitReader(file, maxManifest+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxManifest {
		return nil, fmt.Errorf("%s: is over %d MiB; keep fewer golden rows", manifestFile, maxManifest>>20)
	}
	m, err := readManifest(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", manifestFile, err)
	}
	return m, nil
}

func openHead(fsys fs.FS, h Head, names []string) (*Model, error) {
	file, err := open(fsys, h.File)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // was only read
	m, err := Read(file, names)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.File, err)
	}
	switch info := &m.info; {
	case info.SHA256 != h.SHA256:
		return nil, fmt.Errorf("%s: sha256: is %s, the manifest says %s"+damaged, h.File, info.SHA256, short(h.SHA256))
	case info.Objective != "quantile" || info.Alpha != h.Alpha:
		return nil, fmt.Errorf("%s: alpha: the objective is %s with alpha %v; train with objective=quantile and alpha=%v", h.File, info.Objective, info.Alpha, h.Alpha)
	}
	return m, nil
}

// open opens regular files only: others may never end, or never begin.
func open(fsys fs.FS, name string) (fs.File, error) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is no regular file", name)
	}
	return fsys.Open(name)
}
