package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const redacted = "[redacted]"

// Secret is text that no way of printing shows; string(s) is the text.
type Secret string

// Format prints a placeholder for every verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// String returns a placeholder.
func (Secret) String() string { return redacted }

// MarshalText gives JSON, YAML and structured logs a placeholder.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// resolve reads the secret and returns the file it came from, if any. Nothing
// it reports shows a value of the section: a secret may stand in the wrong key.
func (c *Credentials) resolve(d *decoder, path, dir string) (file string) {
	if c.Header == "Authorization" && !d.has(path+".scheme") {
		c.Scheme = "Bearer"
	}
	if c.Header == "" {
		return "" // no mapping, as decoding has reported
	}
	hasEnv, hasFile := d.has(path+".env"), d.has(path+".file")
	switch {
	case hasEnv && hasFile:
		d.fail(path, "has both env and file", "keep one of the two")
	case !hasEnv && !hasFile:
		d.fail(path, "has neither env nor file", "write env: NAME or file: path")
	case c.Env != "":
		value, set := d.getenv(c.Env)
		if !set {
			d.fail(path+".env", "the environment variable is not set", "set it, or name another")
			return ""
		}
		c.accept(d, path+".env", value)
	case c.File != "":
		file = c.File
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		value, err := readSecret(file)
		if err != nil {
			d.fail(path+".file", "the file cannot be read: "+err.Error(),
				"relative paths start at the folder of this file")
			return file
		}
		c.accept(d, path+".file", value)
	}
	return file
}

// accept keeps a secret that can stand in a header.
func (c *Credentials) accept(d *decoder, path, value string) {
	value = strings.TrimSpace(value)
	switch {
	case value == "":
		d.fail(path, "the secret is empty", "")
	case !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl):
		d.fail(path, "the secret contains control characters or is not text", "write it on one line")
	default:
		c.Secret = Secret(value)
	}
}

// readSecret reads a small regular file. Its errors do not name the file.
func readSecret(path string) (string, error) {
	const most = 64 << 10
	info, err := os.Stat(path)
	if err != nil {
		return "", withoutPath(err)
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("not a regular file")
	}
	if info.Size() > most {
		return "", errors.New("larger than 64 KiB")
	}
	data, err := os.ReadFile(path) //nolint:gosec // the file the configuration names
	return string(data), withoutPath(err)
}

func withoutPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// watch adds a file to those whose change calls for a reload.
func (c *Config) watch(file string) {
	if file != "" && !slices.Contains(c.files, file) {
		c.files = append(c.files, file)
	}
}
