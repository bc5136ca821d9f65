package models

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

var (
	// ErrNoActive is returned where no model has been activated yet.
	ErrNoActive = errors.New("no model is active; activate one by its ID")
	// ErrNoPrevious is returned where there is nothing to go back to.
	ErrNoPrevious = errors.New("no model was active before this one; activate one by its ID, or deactivate this one")
)

// Store is a directory of models. It holds no state of its own and is safe for
// concurrent use, by several processes too.
type Store struct {
	dir    string
	names  []string
	schema string
}

// New returns the store in a directory, which Publish creates. Names and
// schemaHash are those of the features; models of others do not open.
func New(dir string, names []string, schemaHash string) *Store {
	return &Store{dir: dir, names: names, schema: schemaHash}
}

// Entry is a model in the directory.
type Entry struct {
	ID       string
	Active   bool
	Previous bool          // a rollback leads to it
	Bundle   *trees.Bundle // nil if Err is not
	Err      error         // why it cannot serve
}

// List returns all models, the newest first.
func (s *Store) List() ([]Entry, error) {
	folders, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	state, err := s.state()
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for _, folder := range slices.Backward(folders) {
		id := folder.Name()
		if trees.CheckID(id) != nil {
			continue
		}
		e := Entry{ID: id, Active: id == state.Active, Previous: id == state.Previous}
		e.Bundle, e.Err = s.Load(id)
		entries = append(entries, e)
	}
	return entries, nil
}

// Load opens a model and checks all of it.
func (s *Store) Load(id string) (*trees.Bundle, error) {
	if err := trees.CheckID(id); err != nil {
		return nil, err
	}
	b, err := trees.OpenWith(os.DirFS(s.path(id)), s.names, s.schema)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !exists(s.path(id)):
		return nil, fmt.Errorf("%s has no model %s", s.dir, id)
	case err != nil:
		return nil, fmt.Errorf("model %s: %w", id, err)
	case b.Manifest.ID != id:
		return nil, fmt.Errorf("model %s: manifest.json: id: is %s; publish the model instead of copying it", id, b.Manifest.ID)
	}
	return b, nil
}

// Active opens the model that should serve. The error is ErrNoActive if there
// is none.
func (s *Store) Active() (id string, b *trees.Bundle, err error) {
	state, err := s.state()
	if err != nil {
		return "", nil, err
	}
	if state.Active == "" {
		return "", nil, ErrNoActive
	}
	b, err = s.Load(state.Active)
	return state.Active, b, err
}

// Activate makes a model the one that should serve, if all of it is valid. A
// damaged active.json is replaced.
func (s *Store) Activate(id string) error {
	if _, err := s.Load(id); err != nil {
		return err
	}
	return s.locked(func() error {
		state, err := s.state()
		if err == nil && state.Active == id {
			return nil
		}
		return s.setState(active{Active: id, Previous: state.Active})
	})
}

// Rollback makes the model that was active before active again, if all of it is
// valid, and returns its ID. There is no way further back, and none forward:
// a second rollback must not bring back what the first one took away.
func (s *Store) Rollback() (id string, err error) {
	err = s.locked(func() error {
		state, err := s.state()
		if err != nil {
			return err
		}
		if id = state.Previous; id == "" {
			return ErrNoPrevious
		}
		if _, err := s.Load(id); err != nil {
			return err
		}
		return s.setState(active{Active: id})
	})
	if err != nil {
		return "", err
	}
	return id, nil
}

// Deactivate makes no model active, so that the one that ships serves. A rollback
// leads nowhere then. A damaged active.json is replaced.
func (s *Store) Deactivate() error {
	return s.locked(func() error { return s.setState(active{}) })
}

// Publish copies the model in a folder into the directory, if all of it is
// valid, and returns its ID. It does not activate it. To publish a model again
// changes nothing; another model of the same ID is refused.
func (s *Store) Publish(from string) (id string, err error) {
	if _, err := trees.OpenWith(os.DirFS(from), s.names, s.schema); err != nil {
		return "", fmt.Errorf("%s: %w", from, err)
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil { //nolint:gosec // models are no secret
		return "", err
	}
	err = s.locked(func() error {
		id, err = s.publish(from)
		return err
	})
	if err != nil {
		return "", err
	}
	return id, nil
}

// publish checks the copy, since that is what will serve.
func (s *Store) publish(from string) (id string, err error) {
	temp, err := os.MkdirTemp(s.dir, temporary)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp) //nolint:errcheck // the next to hold the lock tries again
	if err := copyModel(from, temp); err != nil {
		return "", err
	}
	b, err := trees.OpenWith(os.DirFS(temp), s.names, s.schema)
	if err != nil {
		return "", fmt.Errorf("copy of %s: %w", from, err)
	}
	id = b.Manifest.ID
	if exists(s.path(id)) {
		return id, s.same(id, temp)
	}
	if err := os.Rename(temp, s.path(id)); err != nil {
		return "", err
	}
	return id, syncFolder(s.dir)
}

// same fails unless the published model is the one in folder. A manifest holds
// the checksums of all else.
func (s *Store) same(id, folder string) error {
	published, err := os.ReadFile(filepath.Join(s.path(id), manifest))
	if err != nil {
		return err
	}
	other, err := os.ReadFile(filepath.Join(folder, manifest)) //nolint:gosec // our own copy
	if err != nil {
		return err
	}
	if string(published) != string(other) {
		return fmt.Errorf("another model %s is published already; give this one an id of its own", id)
	}
	return nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
