package conformance

import (
	"encoding/json"
	"fmt"
	"testing"
)

// TestResponsesStream requires that a streamed response has named events,
// each named as its type, in the order of their rising sequence numbers.
func TestResponsesStream(t *testing.T) {
	t.Parallel()
	g := startGateway(t, "", simulatedFleet(t)...)
	body := fmt.Sprintf(`{"model":%q,"stream":true,"input":"hi"}`, fleetModel)
	stream := events(readAll(t, send(t, "post", g.url+"/v1/responses", body)))
	next := 0
	for _, e := range stream {
		var data struct {
			Type     string
			Sequence *int `json:"sequence_number"`
		}
		if err := json.Unmarshal([]byte(e.text), &data); err != nil {
			t.Fatalf("event %s: %v", e.text, err)
		}
		if e.name == "" || e.name != data.Type {
			t.Errorf("event of type %q is named %q", data.Type, e.name)
		}
		if data.Sequence == nil || *data.Sequence < next {
			t.Fatalf("event %s, want a sequence number of at least %d", e.text, next)
		}
		next = *data.Sequence + 1
	}
	if n := len(stream); n < 5 || stream[0].name != "response.created" || stream[n-1].name != "response.completed" {
		t.Errorf("%d events, want response.created to response.completed", n)
	}
}
