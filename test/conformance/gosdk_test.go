package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
)

// callGo makes the calls with the official Go SDK.
func callGo(t *testing.T, base string, calls []call) []result {
	results := make([]result, len(calls))
	for i, c := range calls {
		client := openai.NewClient(option.WithBaseURL(base), option.WithAPIKey(clientKey), option.WithMaxRetries(c.Retries),
			option.WithUnsafeAllowHTTP())
		got := &results[i]
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := goAPIs[c.API](ctx, client, c, got)
		cancel()
		got.Ended = got.Ended || (!c.Stream && err == nil)
		got.Error = toldInGo(t, err)
	}
	return results
}

var goAPIs = map[string]func(context.Context, openai.Client, call, *result) error{
	"models": goModels, "model": goModel, "chat": goChat, "completions": goCompletions,
	"embeddings": goEmbeddings, "responses": goResponses,
}

// goReading feeds take with the events of a stream, up to where the client leaves.
func goReading[T any](stream *ssestream.Stream[T], c call, got *result, take func(T)) error {
	defer stream.Close()
	for stream.Next() {
		take(stream.Current())
		if got.Chunks++; got.Chunks == c.LeaveAfter {
			return nil
		}
	}
	got.Ended = stream.Err() == nil
	return stream.Err()
}

func goModels(ctx context.Context, client openai.Client, _ call, got *result) error {
	pages := client.Models.ListAutoPaging(ctx)
	for pages.Next() {
		got.Models = append(got.Models, pages.Current().ID)
	}
	return pages.Err()
}

func goModel(ctx context.Context, client openai.Client, c call, got *result) error {
	m, err := client.Models.Get(ctx, c.Model)
	if err == nil {
		got.Models = []string{m.ID}
	}
	return err
}

func goChat(ctx context.Context, client openai.Client, c call, got *result) error {
	params := openai.ChatCompletionNewParams{Model: c.Model, Messages: []openai.ChatCompletionMessageParamUnion{}}
	for _, p := range c.Prompts {
		params.Messages = append(params.Messages, openai.UserMessage(p))
	}
	if c.MaxTokens > 0 {
		params.MaxTokens = openai.Int(int64(c.MaxTokens))
	}
	if !c.Stream {
		r, err := client.Chat.Completions.New(ctx, params)
		if err == nil {
			got.Text, got.Finish = r.Choices[0].Message.Content, r.Choices[0].FinishReason
			got.Tokens = int(r.Usage.CompletionTokens)
		}
		return err
	}
	if c.Usage {
		params.StreamOptions.IncludeUsage = openai.Bool(true)
	}
	return goReading(client.Chat.Completions.NewStreaming(ctx, params), c, got, func(chunk openai.ChatCompletionChunk) {
		got.takeUsage(chunk.JSON.Usage.Valid(), chunk.Usage)
		for _, choice := range chunk.Choices {
			got.Text += choice.Delta.Content
			if choice.FinishReason != "" {
				got.Finish = choice.FinishReason
			}
			for _, part := range choice.Delta.ToolCalls {
				for len(got.Tools) <= int(part.Index) {
					got.Tools = append(got.Tools, toolCall{})
				}
				got.Tools[part.Index].Name += part.Function.Name
				got.Tools[part.Index].Arguments += part.Function.Arguments
			}
		}
	})
}

func goCompletions(ctx context.Context, client openai.Client, c call, got *result) error {
	params := openai.CompletionNewParams{
		Model:  openai.CompletionNewParamsModel(c.Model),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(c.Prompts[0])},
	}
	if c.MaxTokens > 0 {
		params.MaxTokens = openai.Int(int64(c.MaxTokens))
	}
	if !c.Stream {
		r, err := client.Completions.New(ctx, params)
		if err == nil {
			got.Text, got.Finish = r.Choices[0].Text, string(r.Choices[0].FinishReason)
			got.Tokens = int(r.Usage.CompletionTokens)
		}
		return err
	}
	if c.Usage {
		params.StreamOptions.IncludeUsage = openai.Bool(true)
	}
	return goReading(client.Completions.NewStreaming(ctx, params), c, got, func(chunk openai.Completion) {
		got.takeUsage(chunk.JSON.Usage.Valid(), chunk.Usage)
		for _, choice := range chunk.Choices {
			got.Text += choice.Text
			if choice.FinishReason != "" {
				got.Finish = string(choice.FinishReason)
			}
		}
	})
}

func (r *result) takeUsage(there bool, u openai.CompletionUsage) {
	if there {
		r.UsageChunks++
		r.Tokens = int(u.CompletionTokens)
	}
}

func goEmbeddings(ctx context.Context, client openai.Client, c call, got *result) error {
	r, err := client.Embeddings.New(ctx, openai.EmbeddingNewParams{
		Model: c.Model, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: c.Prompts},
	})
	if err != nil {
		return err
	}
	for _, d := range r.Data {
		got.Vectors = append(got.Vectors, len(d.Embedding))
	}
	return nil
}

func goResponses(ctx context.Context, client openai.Client, c call, got *result) error {
	params := responses.ResponseNewParams{
		Model: c.Model, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(c.Prompts[0])},
	}
	if c.MaxTokens > 0 {
		params.MaxOutputTokens = openai.Int(int64(c.MaxTokens))
	}
	if !c.Stream {
		r, err := client.Responses.New(ctx, params)
		if err == nil {
			got.Text, got.Finish, got.Tokens = r.OutputText(), string(r.Status), int(r.Usage.OutputTokens)
		}
		return err
	}
	return goReading(client.Responses.NewStreaming(ctx, params), c, got, func(event responses.ResponseStreamEventUnion) {
		got.Events = append(got.Events, event.Type)
		got.Sequence = append(got.Sequence, int(event.SequenceNumber))
		if event.Type == "response.output_text.delta" {
			got.Text += event.Delta
		}
	})
}

// toldInGo is what an application can learn from an error of the SDK.
func toldInGo(t *testing.T, err error) *sdkError {
	var status *openai.Error
	var broken *ssestream.StreamError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &status):
		return &sdkError{Class: "Error", Status: status.StatusCode, Message: status.Message, Code: status.Code,
			Param: status.Param, Type: status.Type, RequestID: status.Response.Header.Get("X-Request-Id")}
	case errors.As(err, &broken):
		return &sdkError{Class: "StreamError", Message: broken.Message}
	}
	t.Errorf("an error that is none of the SDK's: %v", err)
	return &sdkError{Message: err.Error()}
}
