package app_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/app"
	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// BenchmarkFlushLatency is the time from the backend's write of an event to
// its arrival at the client over loopback, through the gateway and without it.
func BenchmarkFlushLatency(b *testing.B) {
	b.Run("gateway", func(b *testing.B) {
		written := make(chan time.Time, 1)
		next := make(chan struct{})
		measureFlush(b, loopbackGateway(b, stepwise(b.N, next, written)), next, written)
	})
	b.Run("direct", func(b *testing.B) {
		written := make(chan time.Time, 1)
		next := make(chan struct{})
		measureFlush(b, loopbackBackend(b, stepwise(b.N, next, written)), next, written)
	})
}

// stepwise is a stream of n tokens, each sent on request.
func stepwise(n int, next chan struct{}, written chan time.Time) fakellm.Script {
	return fakellm.Script{fakellm.Stream(), func(w *fakellm.Response) error {
		for range n {
			<-next
			written <- time.Now()
			if err := w.Send(helloChunk); err != nil {
				return err
			}
		}
		<-next
		return nil
	}, fakellm.Send(stopChunk, doneEvent)}
}

func measureFlush(b *testing.B, base string, next chan struct{}, written chan time.Time) {
	go func() { next <- struct{}{} }() // the header comes with the first event
	resp, err := http.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(streamBody("m")))
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 64<<10)
	var took []time.Duration
	b.ResetTimer()
	for i := range b.N {
		if i > 0 {
			next <- struct{}{}
		}
		for got := 0; got < len(helloChunk); {
			n, err := resp.Body.Read(buf)
			if err != nil {
				b.Fatal(err)
			}
			got += n
		}
		took = append(took, time.Since(<-written))
	}
	b.StopTimer()
	next <- struct{}{} // to the end
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}

// loopbackBackend serves the script on a real socket.
func loopbackBackend(b *testing.B, script fakellm.Script) (base string) {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := fakellm.Serve(ln, &fakellm.Backend{Script: always(script...)})
	b.Cleanup(server.Close)
	return server.URL
}

// loopbackGateway puts a gateway in front of it.
func loopbackGateway(b *testing.B, script fakellm.Script) (base string) {
	b.Helper()
	text := "server: {listen: \"127.0.0.1:0\"}\ntelemetry: {listen: \"127.0.0.1:0\"}\nmodels:\n  - name: m\n    backends:\n      - {name: a, url: \"" +
		loopbackBackend(b, script) + "\"}\n"
	cfg, err := config.Parse("bench.yaml", []byte(text), ".", os.LookupEnv)
	if err != nil {
		b.Fatal(err)
	}
	a, err := app.New(cfg, app.Options{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	b.Cleanup(func() {
		stop(app.Stop{AtOnce: true})
		http.DefaultClient.CloseIdleConnections()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	return "http://" + a.Addr().String()
}
