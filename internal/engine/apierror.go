package engine

import (
	"encoding/json"
	"errors"
	"net/http"
)

// apiError is an error in OpenAI's shape.
type apiError struct {
	status  int
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

func invalid(param, message string) *apiError {
	e := &apiError{status: http.StatusBadRequest, Message: message, Type: "invalid_request_error"}
	if param != "" {
		e.Param = &param
	}
	return e
}

func (e *apiError) coded(status int, code string) *apiError {
	e.status, e.Code = status, &code
	return e
}

func unknownModel(model string) *apiError {
	return invalid("model", "The model `"+model+"` does not exist.").coded(http.StatusNotFound, "model_not_found")
}

func unavailable(why string) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, Message: why, Type: "server_error"}
}

// writeError answers with the error's status and body.
func writeError(w http.ResponseWriter, err error) {
	var e *apiError
	if !errors.As(err, &e) {
		e = &apiError{status: http.StatusInternalServerError, Message: err.Error(), Type: "server_error"}
	}
	writeJSON(w, e.status, map[string]*apiError{"error": e})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // only our own plain types come here
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that left needs no answer
}
