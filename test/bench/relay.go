package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
)

// relay is what moving bytes costs with net/http and nothing else: the request
// body is read first, then sent on, and each read of the answer is flushed. A
// gateway in Go can hardly cost less.
type relay struct {
	to        string
	transport *http.Transport
}

func relayCommand(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("relay", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:9001", "address")
	to := flags.String("to", "127.0.0.1:9000", "engine")
	if err := flags.Parse(args); err != nil {
		return err
	}
	server := &http.Server{Addr: *listen, Handler: &relay{
		to: "http://" + *to, transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
	}}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (p *relay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	out, err := http.NewRequestWithContext(r.Context(), r.Method, p.to+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	out.Header = r.Header.Clone()
	resp, err := p.transport.RoundTrip(out)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for name, values := range resp.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(resp.StatusCode)
	stream := resp.ContentLength < 0
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if _, werr := w.Write(buf[:n]); werr != nil || err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if stream {
			_ = http.NewResponseController(w).Flush()
		}
	}
}
