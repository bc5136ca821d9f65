package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/firsttoken/firsttoken/deploy/trainer"
)

// python runs the trainer. Its processes end with this one: by a signal if it
// is asked to stop, and with their standard input if it is killed.
type python struct {
	program string // an interpreter
	cache   string // folder for a virtual environment, and for models that are being trained
	source  string // folder of the trainer; empty: the embedded one
	out     io.Writer
}

const (
	runPrefix = "run-"         // of folders of trainings, in the cache
	abandoned = 24 * time.Hour // age at which such a folder has no owner
	grace     = 10 * time.Second
)

// train returns the folder of a new model, and what removes it.
func (p *python) train(ctx context.Context, args []string) (folder string, remove func(), err error) {
	temp, err := p.scratch()
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(temp) } // the next training tries again
	folder, err = p.trainIn(ctx, temp, args)
	if err != nil {
		remove()
		return "", nil, err
	}
	return folder, remove, nil
}

func (p *python) trainIn(ctx context.Context, temp string, args []string) (folder string, err error) {
	if err := os.CopyFS(filepath.Join(temp, "trainer"), p.files()); err != nil {
		return "", err
	}
	interpreter, err := p.interpreter(ctx, filepath.Join(temp, "trainer", trainer.Requirements))
	if err != nil {
		return "", err
	}
	out := filepath.Join(temp, "out")
	args = append([]string{filepath.Join(temp, "trainer", trainer.Script), "--out", out, "--end-with-stdin"}, args...)
	if err := execute(ctx, p.out, interpreter, args...); err != nil {
		return "", fmt.Errorf("the trainer: %w", err)
	}
	made, err := filepath.Glob(filepath.Join(out, "*", "manifest.json"))
	if err != nil || len(made) != 1 {
		return "", fmt.Errorf("the trainer made %d models instead of 1", len(made))
	}
	return filepath.Dir(made[0]), nil
}

// files are the trainer's.
func (p *python) files() fs.FS {
	if p.source == "" {
		return trainer.Files()
	}
	return os.DirFS(p.source)
}

// scratch makes a folder for one training, and removes those of the dead.
func (p *python) scratch() (string, error) {
	if err := os.MkdirAll(p.cache, 0o750); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(p.cache)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), runPrefix) && time.Since(info.ModTime()) > abandoned {
			_ = os.RemoveAll(filepath.Join(p.cache, e.Name())) // the next training tries again
		}
	}
	return os.MkdirTemp(p.cache, runPrefix)
}

// interpreter is a Python that has what the file of requirements asks for.
func (p *python) interpreter(ctx context.Context, requirements string) (string, error) {
	wanted, err := os.ReadFile(requirements) //nolint:gosec // our own copy
	if err != nil {
		return "", err
	}
	if err := execute(ctx, io.Discard, p.program, "-c", "import sys; sys.exit('it is older than 3.11' if sys.version_info < (3, 11) else 0)"); err != nil {
		return "", fmt.Errorf("--python %s: %w; name a Python 3.11 or later", p.program, err)
	}
	if p.has(ctx, wanted) {
		return p.program, nil
	}
	return p.environment(ctx, requirements, wanted)
}

// has says whether the given Python has the pinned packages itself.
func (p *python) has(ctx context.Context, wanted []byte) bool {
	const check = `import importlib.metadata, sys
for line in sys.argv[1].split():
    name, _, version = line.partition("==")
    assert importlib.metadata.version(name) == version`
	return execute(ctx, io.Discard, p.program, "-c", check, string(wanted)) == nil
}

// environment makes a virtual environment, if the one in the cache is not what
// is wanted. Its stamp is written last, so that one that was never completed is
// made again.
func (p *python) environment(ctx context.Context, requirements string, wanted []byte) (string, error) {
	folder := filepath.Join(p.cache, "venv")
	stamp, interpreter := filepath.Join(folder, "installed.txt"), filepath.Join(folder, "bin", "python")
	if have, err := os.ReadFile(stamp); err == nil && bytes.Equal(have, wanted) { //nolint:gosec // in our own cache
		return interpreter, nil
	}
	fmt.Fprintf(p.out, "installing LightGBM and what it needs into %s\n", folder)
	if err := os.RemoveAll(folder); err != nil {
		return "", err
	}
	if err := execute(ctx, io.Discard, p.program, "-m", "venv", folder); err != nil {
		return "", fmt.Errorf("make a virtual environment: %w (Debian has venv in the package python3-venv)", err)
	}
	if err := execute(ctx, io.Discard, interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements); err != nil {
		return "", fmt.Errorf("install the trainer's packages: %w; without a network, name a Python that has them with --python", err)
	}
	return interpreter, os.WriteFile(stamp, wanted, 0o600) //nolint:gosec // in our own cache
}

// execute runs a program to its end. The error is what it said of it.
func execute(ctx context.Context, out io.Writer, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // the user's Python, with our arguments
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	var problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &problems
	stdin, err := cmd.StdinPipe() // held open until the program ends
	if err != nil {
		return err
	}
	defer stdin.Close()
	if err := cmd.Run(); err != nil {
		said := strings.TrimPrefix(strings.TrimSpace(problems.String()), "train: ")
		return cmp.Or(ctx.Err(), saidError(said), err)
	}
	return nil
}

func saidError(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}
