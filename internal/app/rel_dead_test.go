package app_test

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// A crowd that meets an engine which refuses connections is served by the
// others, however many there are at once.
func TestDeadEngineFailsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &fakellm.Backend{Script: func(*fakellm.Request) fakellm.Script {
			return fakellm.Reply(3, 300*time.Millisecond, 20*time.Millisecond)
		}}
		g := startGateway(t, configFor(quiet, "a:8000", "b:8000"), map[string]http.Handler{"b:8000": backend})
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if got := g.chat(plainBody("m")); got.status != 200 {
					t.Errorf("status %d, body %q", got.status, got.body)
				}
			})
		}
		all.Wait()
	})
}

// When every engine refuses connections the budget holds, but for the few
// retries made before an engine's first failure is known.
func TestBudgetOfDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, configFor(quiet, "a:8000", "b:8000", "c:8000"), nil)
		const requests = 300
		var all sync.WaitGroup
		for range requests {
			all.Go(func() {
				if got := g.chat(plainBody("m")); got.status != 502 && got.status != 503 {
					t.Errorf("status %d", got.status)
				}
			})
		}
		all.Wait()
		attempts := 0
		for line := range strings.SplitSeq(g.metrics(), "\n") {
			if strings.HasPrefix(line, "firsttoken_attempts_total{") {
				n, _ := strconv.Atoi(line[strings.LastIndex(line, " ")+1:])
				attempts += n
			}
		}
		if attempts == 0 || attempts > requests*12/10+3*3 {
			t.Errorf("%d attempts for %d requests", attempts, requests)
		}
	})
}
