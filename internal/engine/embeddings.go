package engine

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
)

type embeddingRequest struct {
	Model          string          `json:"model"`
	Input          json.RawMessage `json:"input"`
	Dimensions     *int            `json:"dimensions"`
	EncodingFormat string          `json:"encoding_format"`
	CacheSalt      string          `json:"cache_salt"`

	inputs [][]byte
}

// maxDimensions bounds an embedding; defaultDimensions is what it has when the
// request does not say.
const (
	maxDimensions     = 4096
	defaultDimensions = 64
)

// embeddings runs every input as a prefill without output.
func (s *Server) embeddings(w http.ResponseWriter, r *http.Request) {
	var req embeddingRequest
	if err := s.readEmbedding(w, r, &req); err != nil {
		writeError(w, err)
		return
	}
	calls, err := s.beginAll(&req)
	if err == nil {
		err = waitAll(r.Context(), calls)
	}
	if err != nil {
		for _, c := range calls {
			c.cancel()
		}
		panic(http.ErrAbortHandler)
	}
	writeJSON(w, http.StatusOK, req.answer())
}

func (s *Server) readEmbedding(w http.ResponseWriter, r *http.Request, req *embeddingRequest) error {
	if err := decode(w, r, req); err != nil {
		return err
	}
	if err := s.knows(req.Model); err != nil {
		return err
	}
	if d := req.Dimensions; d != nil && (*d < 1 || *d > maxDimensions) {
		return invalid("dimensions", "'dimensions' must be from 1 to "+itoa(maxDimensions)+".")
	}
	if f := req.EncodingFormat; f != "" && f != "float" && f != "base64" {
		return invalid("encoding_format", "'encoding_format' must be float or base64.")
	}
	var ok bool
	if req.inputs, ok = texts(req.Input); !ok || len(req.inputs) == 0 {
		return invalid("input", "'input' must be a string, a list of strings or token ids.")
	}
	for _, input := range req.inputs {
		tokens := len(input) / bytesPerToken
		if tokens == 0 {
			return invalid("input", "'input' must not be empty.")
		}
		if tokens > s.limits.MaxModelLen {
			return tooLong(s.limits.MaxModelLen, tokens, nil, "input")
		}
	}
	return nil
}

func (s *Server) beginAll(req *embeddingRequest) ([]*call, error) {
	var calls []*call
	for _, input := range req.inputs {
		c, err := s.begin(Request{PromptTokens: len(input) / bytesPerToken, Hashes: hashText(req.CacheSalt, input)}, "stop")
		if err != nil {
			return calls, err
		}
		calls = append(calls, c)
	}
	return calls, nil
}

func waitAll(ctx context.Context, calls []*call) error {
	for _, c := range calls {
		if err := c.waitFinished(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (req *embeddingRequest) answer() map[string]any {
	dimensions := defaultDimensions
	if req.Dimensions != nil {
		dimensions = *req.Dimensions
	}
	var data []any
	tokens := 0
	for i, input := range req.inputs {
		tokens += len(input) / bytesPerToken
		data = append(data, map[string]any{"object": "embedding", "index": i, "embedding": req.encode(embed(input, dimensions))})
	}
	return map[string]any{
		"object": "list", "model": req.Model, "data": data,
		"usage": map[string]any{"prompt_tokens": tokens, "total_tokens": tokens},
	}
}

func (req *embeddingRequest) encode(vector []float32) any {
	if req.EncodingFormat == "base64" {
		return packed(vector)
	}
	return vector
}

// embed gives a vector of length one that depends on the text alone.
func embed(text []byte, dimensions int) []float32 {
	seed, norm := digest(text), 0.0
	raw := make([]float64, dimensions)
	for i := range raw {
		seed = mix(seed)
		raw[i] = float64(seed>>11)/(1<<52) - 1
		norm += raw[i] * raw[i]
	}
	vector := make([]float32, dimensions)
	for i, v := range raw {
		vector[i] = float32(v / math.Sqrt(norm))
	}
	return vector
}

// packed is the base64 form: little-endian float32.
func packed(vector []float32) string {
	var b []byte
	for _, v := range vector {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return base64.StdEncoding.EncodeToString(b)
}
