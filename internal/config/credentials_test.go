package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "key"), "\tfrom file\n")
	for _, row := range []struct{ in, header, scheme, secret string }{
		{"{env: KEY}", "Authorization", "Bearer", "from env"},
		{"{env: KEY, header: authorization}", "Authorization", "Bearer", "from env"},
		{"{env: KEY, scheme: Token}", "Authorization", "Token", "from env"},
		{`{env: KEY, scheme: ""}`, "Authorization", "", "from env"},
		{"{file: key, header: x-api-key}", "X-Api-Key", "", "from file"},
		{"{file: " + filepath.Join(dir, "key") + ", header: X-Key, scheme: Key}", "X-Key", "Key", "from file"},
	} {
		c, err := Parse("config.yaml", []byte(backend("credentials: "+row.in)), dir, environment("KEY", " from env\n"))
		if err != nil {
			t.Errorf("%s: %v", row.in, err)
			continue
		}
		got := c.Models[0].Backends[0].Credentials
		if got.Header != row.header || got.Scheme != row.scheme || string(got.Secret) != row.secret {
			t.Errorf("%s: header %q, scheme %q, secret %q", row.in, got.Header, got.Scheme, string(got.Secret))
		}
	}
}

func TestNoCredentials(t *testing.T) {
	if got := mustParse(t, minimal).Models[0].Backends[0].Credentials; got != (Credentials{}) {
		t.Errorf("got %+v", got)
	}
}

func TestFilesAreUnique(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "key"), "k")
	text := "models: [{name: m, backends: [{url: http://a, credentials: {file: key}}, {url: http://b, credentials: {file: key}}]}]"
	c, err := Parse("config.yaml", []byte(text), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Files(); len(got) != 1 || got[0] != filepath.Join(dir, "key") {
		t.Errorf("Files = %q", got)
	}
}

// No way of printing a Config shows a secret.
func TestSecretIsNotPrinted(t *testing.T) {
	c := mustParse(t, backend("credentials: {env: KEY}"), "KEY", "hunter2")
	secret := c.Models[0].Backends[0].Credentials.Secret
	if string(secret) != "hunter2" {
		t.Fatal("no secret to hide")
	}
	var b strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&b, verb, c)
		fmt.Fprintf(&b, verb, *c)
		fmt.Fprintf(&b, verb, c.Models[0].Backends[0].Credentials)
		fmt.Fprintf(&b, verb, secret)
	}
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := json.Marshal(map[string]any{"secret": secret})
	if err != nil {
		t.Fatal(err)
	}
	asYAML, err := yaml.Marshal(map[string]any{"config": c, "secret": secret})
	if err != nil {
		t.Fatal(err)
	}
	b.Write(asJSON)
	b.Write(bare)
	b.Write(asYAML)
	slog.New(slog.NewTextHandler(&b, nil)).Info("m", "config", c, "secret", secret)
	slog.New(slog.NewJSONHandler(&b, nil)).Info("m", "config", c, "secret", secret)
	for _, shown := range []string{"hunter2", "68756e74657232"} {
		if strings.Contains(b.String(), shown) {
			t.Errorf("%q shows in %s", shown, b.String())
		}
	}
}
