package config

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// Laws: Parse never panics; an error has a line of at least 0 and never shows
// what the environment held; an accepted file, written out, is read back as
// the same Config.
func FuzzParse(f *testing.F) {
	for _, text := range goodFiles {
		f.Add([]byte(text))
	}
	for _, row := range badFiles {
		f.Add([]byte(row.text))
	}
	if example, err := os.ReadFile("../../deploy/config.example.yaml"); err == nil {
		f.Add(example)
	}
	f.Add([]byte(backend("labels: {a: $$x, b: \"\\u2028\", c: 'y z'}")))
	f.Add([]byte("a: &a [*a]"))
	const secret = "Zq7xSecretWj9"
	getenv := func(name string) (string, bool) { return secret, name != "NONE" }
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("config.yaml", data, dir, getenv)
		if err != nil {
			checkErrors(t, err, secret, data)
			return
		}
		out, err := yaml.Marshal(c)
		if err != nil {
			t.Fatalf("marshal: %v", err)
		}
		again, err := Parse("config.yaml", out, dir, getenv)
		if err != nil {
			t.Fatalf("read back: %v\n%s", err, out)
		}
		if !reflect.DeepEqual(c, again) {
			t.Fatalf("read back differently:\n%+v\n%+v\n%s", c, again, out)
		}
	})
}

func checkErrors(t *testing.T, err error, secret string, data []byte) {
	t.Helper()
	var all Errors
	if !errors.As(err, &all) || len(all) == 0 {
		t.Fatalf("not Errors: %v", err)
	}
	for _, one := range all {
		if one.Line < 0 {
			t.Errorf("line %d in %v", one.Line, one)
		}
		if strings.Contains(one.Error(), "\n") {
			t.Errorf("more than one line: %q", one.Error())
		}
	}
	if strings.Contains(strings.ToLower(err.Error()), strings.ToLower(secret)) && !bytes.Contains(bytes.ToLower(data), []byte(strings.ToLower(secret))) {
		t.Errorf("shows a secret: %v", err)
	}
}
