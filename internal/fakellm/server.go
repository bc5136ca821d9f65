package fakellm

import (
	"net"
	"net/http"
	"sync"
)

// Server serves a backend on a listener of any kind.
type Server struct {
	// URL is "http://" and the address of the listener, without a path.
	URL string

	http   http.Server
	accept sync.WaitGroup // the accept loop
	busy   sync.WaitGroup // each connection and each handler
}

// Serve starts serving on l and takes it over. The caller must Close the
// server.
func Serve(l net.Listener, handler http.Handler) *Server {
	s := &Server{URL: "http://" + l.Addr().String()}
	s.http.ConnState = s.track
	s.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.busy.Add(1)
		defer s.busy.Done()
		handler.ServeHTTP(w, r)
	})
	s.accept.Go(func() { _ = s.http.Serve(l) })
	return s
}

// track counts the goroutine of each connection, until it ends or turns into
// that of a handler that took the connection.
func (s *Server) track(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.busy.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.busy.Done()
	}
}

// Close closes the listener and all connections, which ends the scripts being
// played, and waits for them. It must be called once.
func (s *Server) Close() {
	_ = s.http.Close()
	s.accept.Wait()
	_ = s.http.Close() // what was accepted during the first
	s.busy.Wait()
}
