//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
)

// streamed is one answer as an official SDK saw it.
type streamed struct {
	sdk     string
	id      string // the client's request id; none from Python
	backend string
	text    string
	chunks  int
	finish  string
	usage   usage
	timings timings // the engine's own account, in its last chunk
	failure string  // code of the APIError the SDK raised; "" for none
	err     error   // anything else that went wrong
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
}

// timings are llama.cpp's.
type timings struct {
	CacheN      int     `json:"cache_n"`
	PromptN     int     `json:"prompt_n"`
	PromptMS    float64 `json:"prompt_ms"`
	PredictedN  int     `json:"predicted_n"`
	PredictedMS float64 `json:"predicted_ms"`
}

type chunk struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage   *usage   `json:"usage"`
	Timings *timings `json:"timings"`
}

// add takes a chunk in and calls tell if it holds text.
func (s *streamed) add(raw []byte, tell progress) {
	var c chunk
	if err := json.Unmarshal(raw, &c); err != nil {
		s.err = fmt.Errorf("chunk %q: %w", raw, err)
		return
	}
	if c.Usage != nil {
		s.usage = *c.Usage
	}
	if c.Timings != nil {
		s.timings = *c.Timings
	}
	for _, choice := range c.Choices {
		s.text += choice.Delta.Content
		s.finish += choice.FinishReason
		if choice.Delta.Content != "" {
			s.chunks++
			tell(s.backend, s.chunks)
		}
	}
}

// progress is told the backend and the number of chunks with text so far, after each.
type progress func(backend string, chunks int)

// ask is what to stream.
type ask struct {
	base, model, prompt string
	tokens              int
}

// goClient is openai-go, without the retries that would hide a failure.
func goClient(base string) openai.Client {
	return openai.NewClient(option.WithBaseURL(base+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
}

func (a ask) params() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:         a.model,
		Messages:      []openai.ChatCompletionMessageParamUnion{openai.UserMessage(a.prompt)},
		MaxTokens:     openai.Int(int64(a.tokens)),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
}

// streamGo streams through openai-go.
func streamGo(ctx context.Context, a ask, id string, tell progress) (s streamed) {
	s.sdk, s.id = "openai-go", id
	client := goClient(a.base)
	var resp *http.Response
	stream := client.Chat.Completions.NewStreaming(ctx, a.params(), option.WithResponseInto(&resp),
		option.WithJSONSet("ignore_eos", true), option.WithHeader("X-Client-Request-Id", id))
	defer stream.Close()
	for stream.Next() {
		s.backend = resp.Header.Get("X-Firsttoken-Backend")
		s.add([]byte(stream.Current().RawJSON()), tell)
	}
	var told *ssestream.StreamError
	switch err := stream.Err(); {
	case errors.As(err, &told):
		s.failure = codeOf(told)
	default:
		s.err = err
	}
	return s
}

// codeOf is the code in the error event's data.
func codeOf(e *ssestream.StreamError) string {
	var body struct {
		Error struct{ Code string } `json:"error"`
	}
	if err := json.Unmarshal(e.Event.Data, &body); err != nil {
		return e.Message
	}
	return body.Error.Code
}

// streamPython streams through the Python SDK.
func streamPython(ctx context.Context, t *testing.T, a ask, tell progress) (s streamed) {
	s.sdk = "openai-python"
	cmd := exec.CommandContext(ctx, setting(t, "FIRSTTOKEN_PYTHON"), "client.py", a.base+"/v1", a.model, a.prompt, strconv.Itoa(a.tokens))
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.err = err
		return s
	}
	if s.err = cmd.Start(); s.err != nil {
		return s
	}
	ended := false
	read := lines(out, func(line []byte) {
		var told struct {
			Backend string          `json:"backend"`
			Chunk   json.RawMessage `json:"chunk"`
			End     bool            `json:"end"`
			Error   string          `json:"error"`
			Code    string          `json:"code"`
		}
		if err := json.Unmarshal(line, &told); err != nil {
			s.err = fmt.Errorf("line %q: %w", line, err)
			return
		}
		switch {
		case told.Backend != "":
			s.backend = told.Backend
		case told.Chunk != nil:
			s.add(told.Chunk, tell)
		case told.Error == "APIError":
			ended, s.failure = true, told.Code
		case told.Error != "":
			ended, s.err = true, fmt.Errorf("the SDK raised %s (%s)", told.Error, told.Code)
		}
		ended = ended || told.End
	})
	if err := errors.Join(read, cmd.Wait()); s.err == nil {
		s.err = err
	}
	if s.err == nil && !ended {
		s.err = errors.New("the client's account has no end")
	}
	return s
}
