package samples

import (
	"errors"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/firsttoken/firsttoken/pkg/predictor"
)

// What the key-value metadata of a file says.
const (
	schemaKey   = "firsttoken.schema"   // hash of the features
	featuresKey = "firsttoken.features" // their names, in order, with commas
	fromKey     = "firsttoken.from"     // earliest at, as in RFC 3339
	toKey       = "firsttoken.to"       // latest at
)

const (
	extension = ".parquet"
	temporary = ".parquet.tmp"

	// rowGroup is how many rows are compressed together. A reader holds one
	// group, a writer a little less.
	rowGroup = 10_000
)

// file is a file being written, under a temporary name.
type file struct {
	out      *os.File
	parquet  *parquet.GenericWriter[any]
	columns  []column
	places   []int // in the row, by column
	row      parquet.Row
	rows     int
	from, to time.Time
	name     string // the final one
}

// create begins the file that will be called name.
func create(name string) (*file, error) {
	out, err := os.OpenFile(strings.TrimSuffix(name, extension)+temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	f := &file{out: out, name: name, columns: columns()}
	group := parquet.Group{}
	for _, c := range f.columns {
		group[c.name] = c.node
	}
	schema := parquet.NewSchema("sample", group)
	for _, c := range f.columns {
		leaf, _ := schema.Lookup(c.name) // it was put in above
		f.places = append(f.places, leaf.ColumnIndex)
	}
	f.row = make(parquet.Row, len(f.columns))
	// Snappy: random measurements shrink no further with zstd, whose encoders
	// are shared by channels, across the bubbles of synctest.
	f.parquet = parquet.NewGenericWriter[any](out, schema, parquet.Compression(&parquet.Snappy), parquet.MaxRowsPerRowGroup(rowGroup))
	return f, nil
}

func (f *file) write(s *predictor.Sample) error {
	for i, c := range f.columns {
		v, defined := c.get(s), 0
		if c.node.Optional() && !v.IsNull() {
			defined = 1
		}
		f.row[f.places[i]] = v.Level(0, defined, f.places[i])
	}
	if _, err := f.parquet.WriteRows([]parquet.Row{f.row}); err != nil {
		return err
	}
	if f.rows == 0 || s.At.Before(f.from) {
		f.from = s.At
	}
	if f.rows == 0 || s.At.After(f.to) {
		f.to = s.At
	}
	f.rows++
	return nil
}

// finish completes the file and gives it its name.
func (f *file) finish() error {
	f.parquet.SetKeyValueMetadata(schemaKey, predictor.SchemaHash())
	f.parquet.SetKeyValueMetadata(featuresKey, strings.Join(predictor.Names(), ","))
	f.parquet.SetKeyValueMetadata(fromKey, f.from.UTC().Format(time.RFC3339Nano))
	f.parquet.SetKeyValueMetadata(toKey, f.to.UTC().Format(time.RFC3339Nano))
	err := errors.Join(f.parquet.Close(), f.out.Sync(), f.out.Close())
	if err == nil {
		err = os.Rename(f.out.Name(), f.name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.out.Name()))
	}
	return nil
}

// discard gives the file up.
func (f *file) discard() {
	_ = f.out.Close() // it is removed
	_ = os.Remove(f.out.Name())
}

// WriteFile writes samples into one file at once, which appears when it is
// complete. name must end in .parquet.
func WriteFile(name string, samples iter.Seq[predictor.Sample]) error {
	if filepath.Ext(name) != extension {
		return errors.New(name + ": the name of a file of samples ends in " + extension)
	}
	f, err := create(name)
	if err != nil {
		return err
	}
	for s := range samples {
		if err := f.write(&s); err != nil {
			f.discard()
			return err
		}
	}
	return f.finish()
}
