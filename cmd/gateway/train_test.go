package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestTrainingIsDue(t *testing.T) {
	dir := t.TempDir()
	f := trainFlags{samples: dir, every: 6 * time.Hour, onDrift: true}
	due := f.due()
	at := func(after time.Duration, want string) {
		t.Helper()
		why, err := due(noon.Add(after))
		if err != nil || !strings.Contains(why, want) || (want == "") != (why == "") {
			t.Errorf("after %v: %q, %v; want %q", after, why, err, want)
		}
	}
	fifth := func(i int) bool { return i%5 == 0 }
	healthy := func(i int) bool { return i%20 == 0 }

	at(0, "it is time") // the first one is not waited for
	at(time.Minute, "")
	sampleLog(t, dir, "a.parquet", noon, 500, healthy)
	at(2*time.Minute, "")
	sampleLog(t, dir, "b.parquet", noon.Add(time.Hour), 499, fifth)
	at(3*time.Minute, "P95 covers 80.0 %")
	at(4*time.Minute, "") // the same samples do not tell twice
	sampleLog(t, dir, "c.parquet", noon.Add(2*time.Hour), 499, fifth)
	at(5*time.Minute, "") // too few new ones
	sampleLog(t, dir, "d.parquet", noon.Add(3*time.Hour), 1, fifth)
	at(6*time.Minute, "P95 covers 79.8 %")
	at(6*time.Hour-time.Second, "")
	at(6*time.Hour, "it is time")
	at(6*time.Hour+time.Minute, "")
}

// fakePython is a Python without packages, which logs what it is asked for.
func fakePython(t *testing.T) (program, log string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the stand-in for Python is a shell script")
	}
	dir := t.TempDir()
	program, log = filepath.Join(dir, "python"), filepath.Join(dir, "log")
	script := `#!/bin/sh
case "$1 $2" in
"-c import importlib"*) exit 1 ;;
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; echo venv >>` + log + ` ;;
"-m pip") echo pip >>` + log + `; test ! -e ` + log + `.broken || { echo no network >&2; exit 1; } ;;
esac
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return program, log
}

// Packages are installed once, and again if that was not completed or others are wanted.
func TestEnvironment(t *testing.T) {
	program, log := fakePython(t)
	p := python{program: program, cache: t.TempDir(), out: &bytes.Buffer{}}
	requirements := filepath.Join(t.TempDir(), "requirements.txt")
	require := func(text, want string) {
		t.Helper()
		if err := os.WriteFile(requirements, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(log) // it may not be there
		_, err := p.interpreter(context.Background(), requirements)
		asked, _ := os.ReadFile(log)
		said := strings.Join(strings.Fields(string(asked)), " ")
		if err != nil {
			said += " " + err.Error()
		}
		if !strings.HasPrefix(said, want) || (want == "") != (said == "") {
			t.Errorf("requirements %s: %q, want %q", text, said, want)
		}
	}
	if err := os.WriteFile(log+".broken", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	require("a==1", "venv pip install the trainer's packages: no network; without a network")
	if err := os.Remove(log + ".broken"); err != nil {
		t.Fatal(err)
	}
	require("a==1", "venv pip")
	require("a==1", "")
	require("a==2", "venv pip")
}

func TestAbandonedTrainingsAreRemoved(t *testing.T) {
	p := python{cache: t.TempDir()}
	old, fresh, other := filepath.Join(p.cache, "run-1"), filepath.Join(p.cache, "run-2"), filepath.Join(p.cache, "venv")
	for _, folder := range []string{old, fresh, other} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-2 * abandoned)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(other, long, long); err != nil {
		t.Fatal(err)
	}
	if _, err := p.scratch(); err != nil {
		t.Fatal(err)
	}
	for folder, want := range map[string]bool{old: false, fresh: true, other: true} {
		if _, err := os.Stat(folder); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", filepath.Base(folder), err == nil, want)
		}
	}
}
