package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

const maxFile = 4 << 20

// Load reads, resolves and checks the file at path. getenv looks up the
// environment (os.LookupEnv); nil is an empty environment. Relative files and
// folders start at the folder of path. When the content is at fault the error is
// of type Errors and holds everything that is wrong.
func Load(path string, getenv func(string) (string, bool)) (*Config, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("load config %q: %w", path, err)
	}
	c, err := Parse(path, data, filepath.Dir(path), getenv)
	if err != nil {
		return nil, err
	}
	c.files = append([]string{path}, c.files...)
	return c, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // the file the operator names
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// Parse is Load for content that is already in memory: name stands in errors,
// dir is where relative files and folders start.
func Parse(name string, data []byte, dir string, getenv func(string) (string, bool)) (*Config, error) {
	if getenv == nil {
		getenv = func(string) (string, bool) { return "", false }
	}
	root, fault := document(data)
	if fault != nil {
		fault.File = name
		return nil, Errors{*fault}
	}
	d := newDecoder(name, getenv)
	c := &Config{}
	v := reflect.ValueOf(c).Elem()
	fill(v)
	d.decode(root, "", rule{}, v, v)
	c.complete(d, dir)
	d.check(c)
	if err := d.errs.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// complete resolves what the decoded values refer to.
func (c *Config) complete(d *decoder, dir string) {
	c.Prediction.Models = absolute(c.Prediction.Models, dir)
	c.Prediction.Samples.Dir = absolute(c.Prediction.Samples.Dir, dir)
	for i := range c.Contracts.Files {
		c.Contracts.Files[i] = absolute(c.Contracts.Files[i], dir)
		c.watch(c.Contracts.Files[i])
	}
	c.Defaults.Policy = cmp.Or(c.Defaults.Policy, c.Prediction.defaultPolicy())
	for i := range c.Models {
		c.Models[i].Policy = cmp.Or(c.Models[i].Policy, c.Defaults.Policy)
		for j := range c.Models[i].Backends {
			b := &c.Models[i].Backends[j]
			b.complete()
			path := backendPath(i, j) + ".credentials"
			if d.has(path) {
				c.watch(b.Credentials.resolve(d, path, dir))
			}
		}
	}
}

// absolute resolves a path that may start at dir; "" stays.
func absolute(path, dir string) string {
	if path == "" {
		return ""
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}

// document returns the root of the only YAML document in data.
func document(data []byte) (*yaml.Node, *Error) {
	if len(data) > maxFile {
		return nil, &Error{Problem: "is larger than 4 MiB", Fix: "split the pool over several gateways"}
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	err := dec.Decode(&first)
	if errors.Is(err, io.EOF) || err == nil && first.Content[0].ShortTag() == "!!null" {
		return nil, &Error{Problem: "is empty", Fix: "write at least models with one backend"}
	}
	if err != nil {
		return nil, syntaxError(err, data)
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return nil, &Error{Line: second.Line, Problem: "a second YAML document begins here", Fix: "keep one document a file"}
	case !errors.Is(err, io.EOF):
		return nil, syntaxError(err, data)
	}
	return first.Content[0], nil
}

var (
	yamlMessage = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?`)
	leadingTab  = regexp.MustCompile(`(?m)^ *\t+ *[^\s#]`)
)

// syntaxError turns what the YAML parser says into an Error.
func syntaxError(err error, data []byte) *Error {
	message := err.Error()
	m := yamlMessage.FindStringSubmatch(message)
	e := &Error{Problem: "is not YAML"}
	if m != nil {
		e.Line, _ = strconv.Atoi(m[1])
		message = message[len(m[0]):]
	}
	e.Problem += ": " + clip(message)
	if tab := leadingTab.FindIndex(data); tab != nil {
		e.Line = 1 + bytes.Count(data[:tab[0]], []byte("\n"))
		e.Fix = "a tab stands at the start of this line; indent with spaces"
	}
	return e
}
