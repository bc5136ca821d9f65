package fleet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/firsttoken/firsttoken/deploy/fleets"
	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/engine"
)

// Open reads a fleet by its file, or by its name when it is a shipped one.
func Open(ref string) (*Fleet, error) {
	if !isPath(ref) {
		if _, err := os.Stat(ref); err != nil {
			return Shipped(ref)
		}
	}
	return Load(ref)
}

// isPath tells a file from the name of something shipped.
func isPath(ref string) bool {
	return strings.ContainsAny(ref, `/\`) || strings.HasSuffix(ref, ".yaml") || strings.HasSuffix(ref, ".yml")
}

// Load reads the fleet file at path. When its content is at fault the error is
// of type config.Errors and holds everything that is wrong.
func Load(path string) (*Fleet, error) {
	data, err := os.ReadFile(path) //nolint:gosec // the file the user names
	if err != nil {
		return nil, fmt.Errorf("load fleet: %w", err)
	}
	return Parse(path, data, filepath.Dir(path))
}

// Shipped reads one of the fleets that come with the program.
func Shipped(name string) (*Fleet, error) {
	data, err := fs.ReadFile(fleets.Files(), name+".yaml")
	if err != nil {
		return nil, fmt.Errorf("no shipped fleet %q: %s; or write a file such as ./%s.yaml", name, config.Suggest(name, Names()), name)
	}
	return Parse(name+".yaml", data, ".")
}

// Names gives the names of the shipped fleets.
func Names() []string {
	files, err := fs.Glob(fleets.Files(), "*.yaml")
	if err != nil {
		panic(err) // the pattern is well formed
	}
	for i, file := range files {
		files[i] = strings.TrimSuffix(file, ".yaml")
	}
	return files
}

// Parse is Load for content that is already in memory: name stands in errors,
// dir is where relative profile files start.
func Parse(name string, data []byte, dir string) (*Fleet, error) {
	var file File
	doc := config.Decode(name, data, &file, os.LookupEnv)
	if doc.Err() != nil {
		return nil, doc.Err()
	}
	e := expander{file: &file, doc: doc, dir: dir}
	f := e.expand()
	if err := doc.Err(); err != nil {
		return nil, err
	}
	return f, nil
}

// profile finds a profile by its built-in name or its file.
func profile(ref, dir string) (engine.Profile, error) {
	if !isPath(ref) {
		p, ok := engine.LookupProfile(ref)
		if !ok {
			return p, &unknownProfile{ref}
		}
		return p, nil
	}
	if !filepath.IsAbs(ref) {
		ref = filepath.Join(dir, ref)
	}
	return LoadProfile(ref)
}

// FindProfile gives a built-in profile by its name, or reads a profile file.
func FindProfile(ref string) (engine.Profile, error) {
	p, err := profile(ref, ".")
	if fix := fixOf(err); fix != "" {
		err = fmt.Errorf("%w; %s", err, fix)
	}
	return p, err
}

type unknownProfile struct{ name string }

func (e *unknownProfile) Error() string { return fmt.Sprintf("%q is no built-in profile", e.name) }

func (e *unknownProfile) fix() string {
	return config.Suggest(e.name, engine.ProfileNames()) + ", or a file such as ./my-profile.yaml"
}

// LoadProfile reads a profile file; its name is the file's.
func LoadProfile(path string) (engine.Profile, error) {
	data, err := os.ReadFile(path) //nolint:gosec // the file the user names
	if err != nil {
		return engine.Profile{}, err
	}
	return ParseProfile(path, data)
}

// ParseProfile reads a profile that is already in memory.
func ParseProfile(path string, data []byte) (engine.Profile, error) {
	p := engine.Profile{Name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))}
	doc := config.Decode(path, data, &p, nil)
	if doc.Err() == nil {
		if err := p.Check(); err != nil {
			doc.Fail("params", "make no engine: "+oneLine(err), "see deploy/profiles for whole ones")
		}
	}
	return p, doc.Err()
}

// SaveProfile writes a profile file that LoadProfile reads back.
func SaveProfile(path string, p engine.Profile) error {
	text, err := yaml.Marshal(p)
	if err != nil {
		return fmt.Errorf("write profile %q: %w", path, err)
	}
	return os.WriteFile(path, text, 0o644) //nolint:gosec // it holds no secret
}

// oneLine joins errors that would stand on lines of their own.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// fixOf says what to write in place of a profile that could not be read.
func fixOf(err error) string {
	var unknown *unknownProfile
	switch {
	case errors.As(err, &unknown):
		return unknown.fix()
	case errors.Is(err, fs.ErrNotExist):
		return "write a path relative to the fleet file, or a built-in name"
	}
	return ""
}
