package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/firsttoken/firsttoken/internal/openai"
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
	writeJSON(w, map[string]any{"object": "list", "data": list})
}

// getModel answers GET /v1/models/{id}; ids may hold slashes.
func (h *Handler) getModel(w http.ResponseWriter, r *http.Request) {
	id := unescape(strings.TrimPrefix(r.URL.EscapedPath(), "/v1/models/"))
	m := h.table.Load().byName[id]
	if m == nil {
		h.refuse(w, r, modelNotFound(id))
		return
	}
	writeJSON(w, m.info(id))
}

func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		(&openai.Error{Status: http.StatusInternalServerError, Message: "internal error"}).Write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // a client that left has no use for it
}
