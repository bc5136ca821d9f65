package openai

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

// chatChunk is a usual chunk of about 300 bytes.
const chatChunk = `data: {"id":"chatcmpl-b75823c1a8d4b72e9f0d4c2b7a615e83","object":"chat.completion.chunk","created":1796065861,` +
	`"model":"meta-llama/Llama-3.3-70B-Instruct","system_fingerprint":"vllm-0.24.0-tp4-6d31f84d","choices":[{"index":0,` +
	`"delta":{"content":" token"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":null}` + "\n\n"

func BenchmarkMeter(b *testing.B) {
	b.Run("chunk", func(b *testing.B) {
		benchmarkMeter(b, []byte(chatChunk), 1)
	})
	b.Run("escapes", func(b *testing.B) {
		text := strings.Repeat(`\"a\n`, 1000)
		benchmarkMeter(b, []byte(strings.Replace(chatChunk, " token", text, 1)), 1)
	})
	b.Run("recorded", func(b *testing.B) {
		for _, e := range fakellm.Recordings(b) {
			if e.File == "openai_gpt41nano_long_stream.sse" {
				benchmarkMeter(b, e.Body, e.Events)
			}
		}
	})
}

func benchmarkMeter(b *testing.B, stream []byte, chunks int) {
	var m Meter
	m.Reset()
	b.ReportAllocs()
	b.SetBytes(int64(len(stream)))
	for b.Loop() {
		for p := stream; len(p) > 0; {
			n, _, _ := m.Next(p)
			p = p[n:]
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*chunks), "ns/chunk")
}

func BenchmarkReadJSON(b *testing.B) {
	var vector strings.Builder
	for i := range 4096 {
		fmt.Fprintf(&vector, "%.8f,", float64(i%97)/97-0.5)
	}
	embedding := `{"object":"list","data":[` + strings.Repeat(`{"object":"embedding","index":0,"embedding":[`+
		strings.TrimSuffix(vector.String(), ",")+`]},`, 16)
	embedding = strings.TrimSuffix(embedding, ",") + `],"model":"e5","usage":{"prompt_tokens":160,"total_tokens":160}}`
	chat := `{"id":"chatcmpl-136","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"` +
		strings.Repeat("some text of the answer ", 200) + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":74,"completion_tokens":45}}`
	for name, body := range map[string]string{"embeddings": embedding, "chat": chat} {
		b.Run(name, func(b *testing.B) {
			var m Meter
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			p := []byte(body)
			for b.Loop() {
				m.Reset()
				m.ReadJSON(p)
			}
			if !m.HasUsage || m.Unparsed != 0 {
				b.Errorf("tally %+v", m.Tally)
			}
		})
	}
}

func BenchmarkReadRequest(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			body := chatRequest(size)
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, bad := ReadRequest(ChatCompletions, body); bad != nil {
					b.Fatal(bad)
				}
			}
		})
	}
}

// chatRequest is a conversation of at least size bytes.
func chatRequest(size int) []byte {
	var body bytes.Buffer
	body.WriteString(`{"model":"llama-70b","temperature":0.7,"stream":true,"max_tokens":256,"messages":[{"role":"system","content":"You are helpful."}`)
	for body.Len() < size {
		body.WriteString(`,{"role":"user","content":"` + strings.Repeat(`How do I read a file \"line by line\" in Go?\n`, 10) + `"}`)
	}
	body.WriteString(`]}`)
	return body.Bytes()
}
