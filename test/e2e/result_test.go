//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/test/e2e/live"
)

// result is what a client knows of its request afterwards.
type result struct {
	*call
	status int
	// reason is what the client was told, in the words of log and metrics:
	// "ok", or the error's code. "" when it left before it was told anything.
	reason string
	left   bool // the client left
	got    usage
	err    error // what no client should see
}

// errLeft cancels the request of a client that leaves.
var errLeft = errors.New("the client leaves")

// send makes a call and reads its answer.
func send(client *http.Client, base string, c *call) (r result) {
	r.call = c
	ctx, leave := context.WithCancelCause(context.Background())
	defer leave(nil)
	if c.leaves && (!c.stream || c.tokens == 0) {
		timer := time.AfterFunc(c.after, func() { leave(errLeft) })
		defer timer.Stop()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", bytes.NewReader(c.body()))
	if err != nil {
		r.err = err
		return r
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Client-Request-Id", c.id)
	resp, err := client.Do(req)
	if err == nil {
		defer resp.Body.Close()
		r.status = resp.StatusCode
		err = r.read(resp, leave)
	}
	if r.left = context.Cause(ctx) == errLeft; err != nil && !r.left {
		r.err = err
	}
	return r
}

func (r *result) read(resp *http.Response, leave context.CancelCauseFunc) error {
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return r.readStream(resp.Body, leave)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return r.judge(body)
}

// readStream reads events up to the last one. A stream without an end is an
// error.
func (r *result) readStream(body io.Reader, leave context.CancelCauseFunc) error {
	in := bufio.NewReader(body)
	for tokens := 0; ; {
		line, err := in.ReadSlice('\n')
		if err == io.EOF {
			if r.reason == "" {
				return io.ErrUnexpectedEOF
			}
			return nil
		}
		if err != nil {
			return err
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		switch {
		case !ok:
		case r.reason != "":
			return fmt.Errorf("after the end of the stream came %q", line)
		case bytes.HasPrefix(data, []byte("[DONE]")):
			r.reason = "ok"
		case bytes.HasPrefix(data, []byte(`{"error"`)), bytes.Contains(data, []byte(`"usage":{`)):
			if err := r.judge(bytes.Clone(data)); err != nil {
				return err
			}
			if r.reason == "ok" {
				r.reason = "" // usage is not the end
			}
		case bytes.Contains(data, []byte(`"content":"`)):
			if tokens++; r.leaves && r.call.tokens > 0 && tokens > r.call.tokens {
				leave(errLeft)
			}
		}
	}
}

// judge reads usage or an error.
func (r *result) judge(body []byte) error {
	var answer struct {
		Usage *usage
		Error *struct {
			Message, Type string
			Code          *string
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("answer %q: %w", body, err)
	}
	if answer.Usage != nil {
		r.got = *answer.Usage
	}
	r.reason = "ok"
	if e := answer.Error; e != nil {
		code := ""
		if e.Code != nil {
			code = *e.Code
		}
		r.reason = reasonOf(r.status, code)
	}
	return nil
}

// reasonOf turns the code of an error into the words of log and metrics. An
// engine's own refusal is passed on with a code of the engine's.
func reasonOf(status int, code string) string {
	switch {
	case strings.HasPrefix(code, "upstream_"):
		return strings.TrimPrefix(code, "upstream_")
	case code == "no_backend_available":
		return "no_backend"
	case code == "context_length_exceeded":
		return "engine_4xx"
	case status >= 500:
		return "engine_5xx"
	}
	return code
}

// agree compares the three accounts. A client that left does not know how its
// request ended; of every other request all three say the same.
func agree(t *testing.T, results []result, log []live.Line, metrics live.Samples) {
	t.Helper()
	byID := map[string]live.Line{}
	var edge []live.Line // refused before a model was known
	for _, l := range log {
		if l.Code != "" {
			edge = append(edge, l)
			continue
		}
		if _, twice := byID[l.ClientRequestID]; twice {
			t.Errorf("request %s is logged twice", l.ClientRequestID)
		}
		byID[l.ClientRequestID] = l
	}
	refused := map[string]int{}
	for _, r := range results {
		l, logged := byID[r.id]
		switch {
		case r.err != nil:
			t.Errorf("%s: status %d, %v", r.id, r.status, r.err)
		case r.left && logged:
			r.checkLeft(t, l)
		case !logged:
			refused[r.reason]++
		default:
			r.check(t, l)
		}
	}
	agreeEdge(t, refused, edge, metrics)
	agreeTotals(t, byID, metrics)
}

// check compares what a client was told with its line in the log.
func (r *result) check(t *testing.T, l live.Line) {
	t.Helper()
	if l.Status != r.status || l.Reason != r.reason || l.Model != r.model {
		t.Errorf("%s: the client got %d %q, the log says %+v", r.id, r.status, r.reason, l)
	}
	if r.got != (usage{}) && r.got != (usage{l.PromptTokens, l.Completion}) {
		t.Errorf("%s: the client got %+v, the log says %+v", r.id, r.got, l)
	}
	if r.reason == "ok" && (l.PromptTokens != tokensOfPrompt(r.prompt) || l.Completion != r.output) {
		t.Errorf("%s: asked for %d and %d tokens, the log says %+v", r.id, r.prompt, r.output, l)
	}
	if r.reason == "ok" && r.stream && (l.Chunks != r.output || r.usage != (r.got != usage{})) {
		t.Errorf("%s: usage asked for %v, got %+v; the log says %+v", r.id, r.usage, r.got, l)
	}
}

// checkLeft: the gateway saw the client leave, unless the request had come to
// its end by then.
func (r *result) checkLeft(t *testing.T, l live.Line) {
	t.Helper()
	if (l.Reason == "client_left") != (l.Status == 499) {
		t.Errorf("%s: the client left; the log says %+v", r.id, l)
	}
}

// agreeEdge compares the refusals of what names no model. Clients that left
// before the gateway had their request, refused[""], were told of none.
func agreeEdge(t *testing.T, refused map[string]int, edge []live.Line, metrics live.Samples) {
	t.Helper()
	logged := map[string]int{}
	for _, l := range edge {
		logged[l.Code]++
	}
	counted := metrics.By("firsttoken_edge_rejections_total", "code")
	for _, code := range []string{"incomplete_body", "malformed_body"} {
		told := min(logged[code], refused[""])
		refused[code] += told
		refused[""] -= told
	}
	delete(refused, "")
	for code, n := range refused {
		if logged[code] != n || int(counted[code]) != n {
			t.Errorf("refusals with %s: %d told, %d logged, %v counted", code, n, logged[code], counted[code])
		}
	}
	for code, n := range logged {
		if refused[code] != n {
			t.Errorf("%d refusals with %s logged, %d told", n, code, refused[code])
		}
	}
}

// agreeTotals compares the log's sums with the metrics.
func agreeTotals(t *testing.T, log map[string]live.Line, metrics live.Samples) {
	t.Helper()
	requests := map[[3]string]int{}
	sums := map[string]int{}
	for _, l := range log {
		requests[[3]string{l.Model, fmt.Sprint(l.Status), l.Reason}]++
		sums["attempts"] += l.Attempts
		sums["retries"] += max(l.Attempts-1, 0)
		sums["prompt"] += l.PromptTokens
		sums["completion"] += l.Completion
		if l.FirstToken != "" {
			sums["first tokens"]++
		}
	}
	for k, n := range requests {
		if got := metrics.Sum("firsttoken_requests_total", "model", k[0], "code", k[1], "reason", k[2]); int(got) != n {
			t.Errorf("%d requests %v logged, %v counted", n, k, got)
		}
	}
	for what, got := range map[string]float64{
		"requests":     metrics.Sum("firsttoken_requests_total") - float64(len(log)),
		"attempts":     metrics.Sum("firsttoken_attempts_total") - float64(sums["attempts"]),
		"retries":      metrics.Sum("firsttoken_retries_total") - float64(sums["retries"]),
		"prompt":       metrics.Sum("firsttoken_tokens_total", "kind", "prompt") - float64(sums["prompt"]),
		"completion":   metrics.Sum("firsttoken_tokens_total", "kind", "completion") - float64(sums["completion"]),
		"first tokens": metrics.Sum("firsttoken_ttft_seconds") - float64(sums["first tokens"]),
		"durations":    metrics.Sum("firsttoken_request_duration_seconds") - float64(len(log)),
	} {
		if got != 0 {
			t.Errorf("%s: the metrics count %v more than the log", what, got)
		}
	}
}
