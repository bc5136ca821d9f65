package proxy

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// modelInfo is OpenAI's model object.
type modelInfo struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func (m *Model) info(id string) modelInfo {
	return modelInfo{ID: id, Object: "model", Created: m.Created.Unix(), OwnedBy: m.OwnedBy}
}

// listModels answers GET /v1/models with exactly what can be asked for.
func (h *Handler) listModels(w http.ResponseWriter, r *http.Request) {
	list := []modelInfo{}
	for _, m := range h.table.Load().models {
		list = append(list, m.info(m.Name))
		for _, alias := range m.Aliases {
			list = append(list, m.info(alias))
		}
	}
	h.answer(w, r, map[string]any{"object": "list", "data": list})
}

// getModel answers GET /v1/models/{id}; ids may hold slashes.
func (h *Handler) getModel(w http.ResponseWriter, r *http.Request) {
	id := unescape(strings.TrimPrefix(r.URL.EscapedPath(), "/v1/models/"))
	m := h.table.Load().byName[id]
	if m == nil {
		h.refuse(w, r, modelNotFound(id))
		return
	}
	h.answer(w, r, m.info(id))
}

// unescape decodes the id part of a model's URL; official SDKs escape slashes.
func unescape(path string) string {
	if s, err := url.PathUnescape(path); err == nil {
		return s
	}
	return path
}

// answer gives a document of the gateway's own.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // names, times and lists of them can't fail
	}
	boundAnswer(w)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // a client that left has no use for it
	h.note(r, http.StatusOK, reasonOK, "")
}
