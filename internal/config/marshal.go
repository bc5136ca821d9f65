package config

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// MarshalYAML writes a file that Parse reads back as the same Config, given
// the same environment and credential files. Secrets are not in it.
func (c Config) MarshalYAML() (any, error) {
	type plain Config
	var n yaml.Node
	if err := n.Encode(plain(c)); err != nil {
		return nil, err
	}
	escapeDollars(&n)
	return &n, nil
}

// escapeDollars keeps a value from being read as a variable.
func escapeDollars(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode {
		n.Value = strings.ReplaceAll(n.Value, "$", "$$")
	}
	for _, child := range n.Content {
		escapeDollars(child)
	}
}
