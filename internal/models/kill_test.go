package models_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/firsttoken/firsttoken/internal/models"
)

// publisherIn makes the test binary a process that publishes and activates in
// the named directory until it is killed.
const publisherIn = "FIRSTTOKEN_TEST_PUBLISHER_IN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(publisherIn); dir != "" {
		fmt.Println(publishForever(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// publishForever prints the ID of each model before it publishes it, and once
// more after it activated it.
func publishForever(dir string) error {
	s := newStore(dir)
	source, err := os.MkdirTemp(os.Getenv("FIRSTTOKEN_TEST_SCRATCH"), "")
	if err != nil {
		return err
	}
	for i := range 1 << 12 {
		id := fmt.Sprintf("20261130T120000-%03x%03x", os.Getpid()%(1<<12), i)
		folder := filepath.Join(source, id)
		if err := writeModel(folder, id); err != nil {
			return err
		}
		fmt.Println("publish", id)
		if _, err := s.Publish(folder); err != nil {
			return err
		}
		if err := s.Activate(id); err != nil {
			return err
		}
		fmt.Println("active", id)
	}
	return nil
}

// A publisher that is killed leaves the old model or the new one, whole.
func TestKilledPublisher(t *testing.T) {
	const rounds = 10
	s, dir := testStore(t)
	publish(t, s, first)
	activate(t, s, first)
	r := rand.New(rand.NewPCG(5, 6))
	before, published, interrupted := first, 0, 0
	for range rounds {
		begun, done := killPublisher(t, s, dir, r.IntN(12), r.IntN(20))
		if done == "" {
			done = before
		}
		id, _, err := s.Active()
		if err != nil || id != done && id != begun {
			t.Fatalf("active is %s, %v; %s was activated, %s was begun", id, err, done, begun)
		}
		entries, err := s.List()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Err != nil {
				t.Fatalf("half a model is seen: %v", e.Err)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".tmp-*")); len(left) > 0 {
			interrupted++
		}
		before, published = id, len(entries)
	}
	t.Logf("%d models published, %d of %d publishers died while they wrote", published, interrupted, rounds)
	if published < 2 {
		t.Error("no publisher came as far as to publish")
	}
	activate(t, s, first)
	wantClean(t, dir)
}

// killPublisher lets a publisher live for some lines of its output and some
// looks at the active model, and returns the last model that it began to
// publish, and the last that it activated.
func killPublisher(t *testing.T, s *models.Store, dir string, lines, looks int) (begun, done string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), publisherIn+"="+dir, "FIRSTTOKEN_TEST_SCRATCH="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	said := bufio.NewScanner(out)
	note := func() bool {
		if !said.Scan() {
			return false
		}
		var what, id string
		fmt.Sscan(said.Text(), &what, &id)
		switch what {
		case "publish":
			begun = id
		case "active":
			done = id
		default:
			t.Fatalf("the publisher says %s", said.Text())
		}
		return true
	}
	for range lines + 1 {
		note()
	}
	for range looks {
		if _, _, err := s.Active(); err != nil {
			t.Fatalf("while it is replaced, the active model is not there: %v", err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for note() {
	}
	if err := said.Err(); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return begun, done
}
