package models_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/firsttoken/firsttoken/internal/models"
)

const (
	first  = "20261130T120000-000001"
	second = "20261130T120000-000002"
	third  = "20261130T120000-000003"
)

// testdata is the bundle that package trees is tested with.
const testdata = "../../pkg/predictor/trees/testdata/model"

func newStore(dir string) *models.Store {
	return models.New(dir, []string{"prompt", "waiting", "kv", "age", "rate"}, "0123456789abcdef")
}

func testStore(t *testing.T) (s *models.Store, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "models")
	return newStore(dir), dir
}

// writeModel makes the folder of a valid model.
func writeModel(folder, id string) error {
	if err := os.CopyFS(folder, os.DirFS(testdata)); err != nil {
		return err
	}
	return edit(filepath.Join(folder, "manifest.json"), "20261130T120000-ab12cd", id)
}

func edit(file, old, with string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !strings.Contains(string(text), old) {
		return fmt.Errorf("%s has no %s", file, old)
	}
	return os.WriteFile(file, []byte(strings.Replace(string(text), old, with, 1)), 0o600)
}

func testModel(t *testing.T, id string) (folder string) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), id)
	if err := writeModel(folder, id); err != nil {
		t.Fatal(err)
	}
	return folder
}

func publish(t *testing.T, s *models.Store, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if got, err := s.Publish(testModel(t, id)); err != nil || got != id {
			t.Fatalf("publish %s: %s, %v", id, got, err)
		}
	}
}

func activate(t *testing.T, s *models.Store, id string) {
	t.Helper()
	if err := s.Activate(id); err != nil {
		t.Fatal(err)
	}
}

func wantActive(t *testing.T, s *models.Store, id string) {
	t.Helper()
	got, b, err := s.Active()
	if err != nil || got != id || b.Manifest.ID != id {
		t.Errorf("active is %s, %v, want %s", got, err, id)
	}
}

// wantClean holds the directory to what may be seen in it.
func wantClean(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, ".tmp-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestPublishActivateRollback(t *testing.T) {
	s, dir := testStore(t)
	if _, _, err := s.Active(); !errors.Is(err, models.ErrNoActive) {
		t.Errorf("an absent directory: %v", err)
	}
	publish(t, s, first, second, third)
	if _, _, err := s.Active(); !errors.Is(err, models.ErrNoActive) {
		t.Errorf("nothing was activated: %v", err)
	}
	activate(t, s, first)
	wantActive(t, s, first)
	if _, err := s.Rollback(); !errors.Is(err, models.ErrNoPrevious) {
		t.Errorf("nothing was active before: %v", err)
	}
	activate(t, s, second)
	activate(t, s, second) // does not forget the first
	wantActive(t, s, second)
	if id, err := s.Rollback(); err != nil || id != first {
		t.Errorf("rollback: %s, %v", id, err)
	}
	wantActive(t, s, first)
	if _, err := s.Rollback(); !errors.Is(err, models.ErrNoPrevious) {
		t.Errorf("a second rollback: %v", err)
	}
	wantActive(t, s, first)
	activate(t, s, third)
	wantActive(t, newStore(dir), third)
	wantClean(t, dir)
}

// Without an active model a rollback leads nowhere, and what is activated next
// is the first one.
func TestDeactivate(t *testing.T) {
	s, dir := testStore(t)
	if err := s.Deactivate(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an absent directory: %v", err)
	}
	publish(t, s, first, second)
	for range 2 {
		activate(t, s, first)
		activate(t, s, second)
		if err := s.Deactivate(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Active(); !errors.Is(err, models.ErrNoActive) {
			t.Errorf("still active: %v", err)
		}
		if _, err := s.Rollback(); !errors.Is(err, models.ErrNoPrevious) {
			t.Errorf("a rollback of nothing: %v", err)
		}
	}
	activate(t, s, first)
	if _, err := s.Rollback(); !errors.Is(err, models.ErrNoPrevious) {
		t.Errorf("a rollback of the first: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "active.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Deactivate(); err != nil {
		t.Errorf("a damaged active.json: %v", err)
	}
	if _, _, err := s.Active(); !errors.Is(err, models.ErrNoActive) {
		t.Errorf("a damaged active.json: %v", err)
	}
	wantClean(t, dir)
}

func TestList(t *testing.T) {
	s, dir := testStore(t)
	publish(t, s, first, third, second)
	activate(t, s, first)
	activate(t, s, second)
	if err := edit(filepath.Join(dir, third, "p95.txt"), "num_leaves=6", "num_leaves=7"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "notes"), 0o700); err != nil {
		t.Fatal(err)
	}
	entries, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, e := range entries {
		got += fmt.Sprintf("%s %v %v %v\n", e.ID, e.Active, e.Previous, e.Err == nil && e.Bundle.Manifest.ID == e.ID)
	}
	want := third + " false false false\n" + second + " true false true\n" + first + " false true true\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestNothingInvalidServes(t *testing.T) {
	s, dir := testStore(t)
	publish(t, s, first, second)
	activate(t, s, first)

	broken := testModel(t, third)
	if err := edit(filepath.Join(broken, "p50.txt"), "threshold=", "threshold=nan "); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Publish(broken); err == nil || !strings.Contains(err.Error(), "p50.txt: tree 0: threshold") {
		t.Errorf("publish a damaged model: %v", err)
	}
	if _, err := s.Publish(filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("an absent model was published")
	}
	if _, err := s.Publish(testModel(t, "../"+third)); err == nil {
		t.Error("a model was published outside of the directory")
	}
	if err := edit(filepath.Join(dir, second, "manifest.json"), "analytic", "analytics"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{second, third, "", "..", "../models/" + first} {
		if err := s.Activate(id); err == nil {
			t.Errorf("%q was activated", id)
		}
	}
	wantActive(t, s, first)
	wantClean(t, dir)
	if exist, _ := filepath.Glob(filepath.Join(dir, "2*")); len(exist) != 2 {
		t.Errorf("the directory has %v", exist)
	}
}

func TestRollbackToInvalidChangesNothing(t *testing.T) {
	s, dir := testStore(t)
	publish(t, s, first, second)
	activate(t, s, first)
	activate(t, s, second)
	if err := os.Remove(filepath.Join(dir, first, "p50.txt")); err != nil {
		t.Fatal(err)
	}
	if id, err := s.Rollback(); err == nil || id != "" {
		t.Errorf("rolled back to %s", id)
	}
	wantActive(t, s, second)
}

func TestPublishTwice(t *testing.T) {
	s, dir := testStore(t)
	publish(t, s, first, first)
	other := testModel(t, first)
	if err := edit(filepath.Join(other, "manifest.json"), "synthetic rows", "other rows"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Publish(other); err == nil || !strings.Contains(err.Error(), "another model "+first) {
		t.Errorf("another model of the same ID: %v", err)
	}
	wantClean(t, dir)
}

// A model whose folder is another's copy is told from it by its manifest.
func TestCopiedModel(t *testing.T) {
	s, dir := testStore(t)
	publish(t, s, first)
	if err := os.CopyFS(filepath.Join(dir, second), os.DirFS(filepath.Join(dir, first))); err != nil {
		t.Fatal(err)
	}
	if err := s.Activate(second); err == nil || !strings.Contains(err.Error(), first) {
		t.Errorf("got %v", err)
	}
}

func TestDamagedState(t *testing.T) {
	s, dir := testStore(t)
	publish(t, s, first)
	state := filepath.Join(dir, "active.json")
	for _, text := range []string{"", "{", `{"active": 1}`, `{"aktive": "x"}`, `{"active": "../../etc"}`} {
		if err := os.WriteFile(state, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Active(); err == nil || errors.Is(err, models.ErrNoActive) {
			t.Errorf("%q: %v", text, err)
		}
		activate(t, s, first)
		wantActive(t, s, first)
	}
}

func TestTheDeadAreCleanedUp(t *testing.T) {
	s, dir := testStore(t)
	publish(t, s, first)
	if err := writeModel(filepath.Join(dir, ".tmp-dead"), second); err != nil {
		t.Fatal(err)
	}
	if entries, err := s.List(); err != nil || len(entries) != 1 {
		t.Errorf("what is temporary is listed: %v, %v", entries, err)
	}
	activate(t, s, first)
	wantClean(t, dir)
}

// Publishers that run at once do not take each other for dead.
func TestPublishConcurrently(t *testing.T) {
	_, dir := testStore(t)
	var publishers sync.WaitGroup
	for i := range 6 {
		folder := testModel(t, fmt.Sprintf("20261130T120000-00000%d", i))
		publishers.Go(func() {
			s := newStore(dir)
			id, err := s.Publish(folder)
			if err == nil {
				err = s.Activate(id)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	publishers.Wait()
	entries, err := newStore(dir).List()
	if err != nil || len(entries) != 6 {
		t.Errorf("%d models, %v", len(entries), err)
	}
	for _, e := range entries {
		if e.Err != nil {
			t.Error(e.Err)
		}
	}
	wantClean(t, dir)
}
