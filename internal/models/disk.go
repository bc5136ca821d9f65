package models

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

const (
	manifest  = "manifest.json"
	stateFile = "active.json"
	lockFile  = ".lock"
	temporary = ".tmp-" // prefix
)

// active is what active.json says. Empty IDs mean none.
type active struct {
	Active   string `json:"active"`
	Previous string `json:"previous"`
}

func (s *Store) state() (a active, err error) {
	text, err := os.ReadFile(s.path(stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return active{}, nil
	}
	if err != nil {
		return active{}, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&a); err != nil {
		return active{}, fmt.Errorf("%s: %w; activate a model by its ID to write it anew", s.path(stateFile), err)
	}
	return a, nil
}

func (s *Store) setState(a active) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp(s.dir, temporary)
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp) //nolint:errcheck // the next to hold the lock tries again
	file := filepath.Join(temp, stateFile)
	if err := writeSynced(file, bytes.NewReader(append(text, '\n'))); err != nil {
		return err
	}
	if err := os.Rename(file, s.path(stateFile)); err != nil {
		return err
	}
	return syncFolder(s.dir)
}

// locked calls change while nobody else changes the directory. The lock ends
// with the process, so that whatever is temporary now was left by the dead.
func (s *Store) locked(change func() error) error {
	lock, err := os.OpenFile(s.path(lockFile), os.O_CREATE|os.O_RDWR, 0o644) //nolint:gosec // holds nothing
	if err != nil {
		return err
	}
	defer lock.Close() // gives the lock back
	if err := exclude(lock); err != nil {
		return fmt.Errorf("lock %s: %w", s.path(lockFile), err)
	}
	if err := s.clean(); err != nil {
		return err
	}
	return change()
}

func (s *Store) clean() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), temporary) {
			err = errors.Join(err, os.RemoveAll(s.path(e.Name())))
		}
	}
	return err
}

// copyModel copies the files of a model into a folder and syncs them.
func copyModel(from, to string) error {
	if err := os.Chmod(to, 0o755); err != nil { //nolint:gosec // models are no secret
		return err
	}
	for _, name := range trees.Files() {
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return syncFolder(to)
}

func copyFile(from, to string) error {
	source, err := os.Open(from) //nolint:gosec // the file the user names
	if err != nil {
		return err
	}
	defer source.Close()
	return writeSynced(to, source)
}

func writeSynced(name string, content io.Reader) error {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644) //nolint:gosec // models are no secret
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Sync(), file.Close())
}

// syncFolder makes what was renamed into a folder survive a loss of power.
func syncFolder(name string) error {
	folder, err := os.Open(name) //nolint:gosec // a folder of the store
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
