package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/firsttoken/firsttoken/deploy/profiles"
)

// Profile is a named parameter set: one model on one GPU setup. The struct
// tags are those of a profile's YAML file.
type Profile struct {
	// Name is that of the file, without .yaml.
	Name  string `yaml:"-"`
	Model string `yaml:"model" required:"yes"`
	GPU   string `yaml:"gpu" required:"yes"`
	// TP is the number of GPUs that one engine is spread over.
	TP int `yaml:"tp" default:"1" min:"1" max:"1024"`
	// Software is the engine that was measured: vllm, sglang, trtllm.
	Software string `yaml:"software,omitempty"`
	// PricePerHour is in USD, for all GPUs of the engine.
	PricePerHour float64 `yaml:"price_per_hour,omitempty" min:"0"`
	Params       Params  `yaml:"params"`
	// Source says what the step model was fitted to, and how well it fits.
	Source string `yaml:"source,omitempty"`
	// Measured says on what, and in which range, the numbers were taken.
	Measured string `yaml:"measured,omitempty"`
	// Estimated names the parameters that no measurement stands behind, with
	// how they were arrived at.
	Estimated map[string]string `yaml:"estimated,omitempty" keys:"label" max:"64"`
}

// Profiles gives all built-in profiles in the order of their names. The step
// model of each is one fit, to be used whole.
func Profiles() []Profile {
	var all []Profile
	for _, name := range ProfileNames() {
		all = append(all, builtIn(name))
	}
	return all
}

// ProfileNames gives the names of the built-in profiles in order.
func ProfileNames() []string {
	files, err := fs.Glob(profiles.Files(), "*.yaml")
	if err != nil {
		panic(err) // the pattern is well formed
	}
	names := make([]string, len(files))
	for i, file := range files {
		names[i] = strings.TrimSuffix(path.Base(file), ".yaml")
	}
	slices.Sort(names)
	return names
}

// LookupProfile finds a built-in profile by name, in any case.
func LookupProfile(name string) (Profile, bool) {
	name = strings.ToLower(name)
	if !slices.Contains(ProfileNames(), name) {
		return Profile{}, false
	}
	return builtIn(name), true
}

// builtIn reads an embedded profile. They are part of the program: a test
// reads them all.
func builtIn(name string) Profile {
	text, err := fs.ReadFile(profiles.Files(), name+".yaml")
	if err != nil {
		panic(err)
	}
	p := Profile{Name: name}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&p); err != nil {
		panic(fmt.Sprintf("profile %s: %v", name, err))
	}
	return p
}

// Check reports parameters that make no engine.
func (p *Profile) Check() error {
	if err := p.Params.Check(); err != nil {
		return err
	}
	if p.Params.Step.T0 <= 0 {
		return errors.New("step.t0 is 0, want the time of an empty step")
	}
	return nil
}
