package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/firsttoken/firsttoken/internal/admin"
)

const (
	patience   = 5 * time.Second // with one fetch
	mostBytes  = 32 << 20        // of an answer
	mostEvents = 100             // asked for at once, and kept
	sameStart  = time.Second     // a clock that is set may move the start of a gateway by so much
)

// Snapshot is what a gateway said of itself at one moment.
type Snapshot struct {
	State  admin.State   `json:"state"`
	Events []admin.Event `json:"events"` // oldest first, the last 100
}

// Models are the names of the models, in configuration order.
func (s *Snapshot) Models() []string {
	names := make([]string, 0, len(s.State.Models))
	for i := range s.State.Models {
		names = append(names, s.State.Models[i].Name)
	}
	return names
}

// Client asks a gateway. It remembers which events it has seen, so it is for one
// goroutine at a time.
type Client struct {
	base   *url.URL
	since  uint64
	begun  time.Time // when the gateway was started
	events []admin.Event
}

// NewClient is for the gateway whose telemetry listener has this URL, such as
// http://127.0.0.1:8081.
func NewClient(address string) (*Client, error) {
	base, err := url.Parse(address)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, fmt.Errorf("--url %q is not the URL of a gateway: give it as http://HOST:PORT", address)
	}
	base.Path, base.RawQuery, base.Fragment = strings.TrimRight(base.Path, "/"), "", ""
	return &Client{base: base}, nil
}

// Fetch asks for the state and for the events since the last time. Its errors say
// whom it asked, what came, and what to do about it.
func (c *Client) Fetch(ctx context.Context) (Snapshot, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	var s Snapshot
	if err := c.get(ctx, "/state", &s.State); err != nil {
		return Snapshot{}, err
	}
	begun := s.State.At.Add(-time.Duration(s.State.UptimeS * float64(time.Second)))
	if begun.Sub(c.begun).Abs() > sameStart { // it was started again, and counts its events from 1
		c.since, c.events = 0, nil
	}
	c.begun = begun
	if err := c.news(ctx); err != nil {
		return Snapshot{}, err
	}
	s.Events = c.events
	return s, nil
}

// news reads the newest events, later those since. They are kept in a new slice:
// the old one is in a snapshot.
func (c *Client) news(ctx context.Context) error {
	path := fmt.Sprintf("/events?limit=%d", mostEvents)
	if c.since > 0 {
		path += fmt.Sprintf("&since=%d", c.since)
	}
	var page admin.Events
	if err := c.get(ctx, path, &page); err != nil {
		return err
	}
	all := slices.Concat(c.events, page.Events)
	c.events, c.since = all[max(len(all)-mostEvents, 0):], page.Next
	return nil
}

func (c *Client) get(ctx context.Context, path string, into any) error {
	where := c.base.Redacted() + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.String()+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("no gateway answers at %s (%w): start it, or give the address of its telemetry listener (telemetry.listen) with --url", where, reason(ctx, err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: give the address of the gateway's telemetry listener (telemetry.listen) with --url", where, resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, mostBytes)).Decode(into); err != nil {
		return fmt.Errorf("%s does not answer as this version's telemetry listener does (%w): see --url, and firsttoken version", where, reason(ctx, err))
	}
	return nil
}

// reason is why a request failed, without the method and URL around it.
func reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}
