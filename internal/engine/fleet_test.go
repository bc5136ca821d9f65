package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// fastSpec answers in microseconds; slowSpec would take hours.
func fastSpec() Spec {
	return Spec{Model: "m", Params: Params{Step: StepModel{T0: ms(1)}, KVBlocks: 1000}, Speed: 100}
}

func slowSpec() Spec {
	return Spec{Model: "m", Params: Params{Step: StepModel{T0: ms(1), Beta: 3.6e9}, KVBlocks: 1000}}
}

func startFleet(t *testing.T, specs ...Spec) *Fleet {
	t.Helper()
	f, err := StartFleet(t.Context(), specs, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Stop)
	return f
}

func testClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func send(t *testing.T, c *http.Client, url string, stream bool) (*http.Response, error) {
	t.Helper()
	body := fmt.Sprintf(`{%s,"max_tokens":20,"stream":%v}`, hello, stream)
	return c.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
}

func wantAnswer(t *testing.T, c *http.Client, url string) {
	t.Helper()
	res, err := send(t, c, url, true)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
		t.Fatalf("status %d, %v, body %s", res.StatusCode, err, body)
	}
}

func TestFleetServesOnItsOwnPorts(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	f := startFleet(t, fastSpec(), fastSpec(), fastSpec())
	c := testClient(t)
	seen := map[string]bool{}
	for _, url := range f.URLs() {
		if !strings.HasPrefix(url, "http://127.0.0.1:") || strings.HasSuffix(url, ":0") || seen[url] {
			t.Errorf("URLs %v", f.URLs())
		}
		seen[url] = true
		wantAnswer(t, c, url)
	}
	if st := f.Engines()[1].Stats(); st.Finished != 1 {
		t.Errorf("stats of one engine: %+v", st)
	}
	f.Stop()
	f.Stop()
	if _, err := send(t, c, f.URLs()[0], false); err == nil {
		t.Error("a stopped fleet answered")
	}
	if err := f.Engines()[0].Restart(); !errors.Is(err, ErrStopped) {
		t.Errorf("restart after stop: %v", err)
	}
	c.CloseIdleConnections()
}

func TestKillResetsAndRestartComesBackCold(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	f := startFleet(t, slowSpec(), fastSpec())
	victim, url := f.Engines()[0], f.URLs()[0]
	c := testClient(t)

	res, err := send(t, c, url, true)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	if !lines.Scan() { // the first token has come
		t.Fatal(lines.Err())
	}
	idle, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	if _, err := io.WriteString(idle, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := idle.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	victim.Kill()
	victim.Kill()
	for lines.Scan() {
	}
	if err := lines.Err(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the stream ended with %v, want a reset", err)
	}
	if _, err := io.ReadAll(idle); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the idle connection ended with %v, want a reset", err)
	}
	if _, err := send(t, c, url, false); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a dead engine: %v, want refused", err)
	}
	if st := victim.Stats(); st != (Stats{}) {
		t.Errorf("stats of a dead engine: %+v", st)
	}
	wantAnswer(t, c, f.URLs()[1]) // the other lives

	if err := victim.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := f.URLs()[0]; got != url {
		t.Errorf("came back at %s, was %s", got, url)
	}
	if st := victim.Stats(); st.Submitted != 0 || st.KVTotal != 1000 {
		t.Errorf("stats after the restart: %+v", st)
	}
	again, err := send(t, c, url, true)
	if err != nil || again.StatusCode != 200 {
		t.Fatalf("after the restart: %v, %v", again, err)
	}
	again.Body.Close()
	f.Stop()
	c.CloseIdleConnections()
}

func TestRestartOfALivingEngineIsCold(t *testing.T) {
	f := startFleet(t, fastSpec())
	c := testClient(t)
	wantAnswer(t, c, f.URLs()[0])
	if err := f.Engines()[0].Restart(); err != nil {
		t.Fatal(err)
	}
	if st := f.Engines()[0].Stats(); st.Submitted != 0 {
		t.Errorf("stats after the restart: %+v", st)
	}
	wantAnswer(t, testClient(t), f.URLs()[0])
}

// Kills and restarts while clients keep coming leave nothing behind.
func TestKillsUnderLoad(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	f := startFleet(t, fastSpec(), fastSpec())
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			c := testClient(t)
			defer c.CloseIdleConnections()
			for ctx.Err() == nil {
				if res, err := send(t, c, f.URLs()[i%2], i%4 < 2); err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}
		})
	}
	for i := range 20 {
		e := f.Engines()[i%2]
		e.Kill()
		if err := e.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	clients.Wait()
	for _, e := range f.Engines() {
		wantAnswer(t, testClient(t), e.URL())
	}
	f.Stop()
}

func TestFleetEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f, err := StartFleet(ctx, []Spec{fastSpec()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	f.Stop() // waits for what the context began
	if _, err := net.Dial("tcp", strings.TrimPrefix(f.URLs()[0], "http://")); err == nil {
		t.Error("still listening")
	}
}

func TestFleetThatCannotStartLeavesNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	var first net.Listener
	listen := func(network, addr string) (net.Listener, error) {
		if first != nil {
			return nil, errors.New("no more ports")
		}
		l, err := net.Listen(network, addr)
		first = l
		return l, err
	}
	if _, err := StartFleet(t.Context(), []Spec{fastSpec(), fastSpec()}, listen); err == nil || !strings.Contains(err.Error(), "engine 1") {
		t.Errorf("error %v, want one that names engine 1", err)
	}
	if _, err := net.Dial("tcp", first.Addr().String()); err == nil {
		t.Error("the first engine was left running")
	}
}
