package monitor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/firsttoken/firsttoken/pkg/backends"
)

// WarmUp is what an engine that is new or was restarted is sent before it gets
// requests: prompts of rising length, one after the other, then the prefixes.
// Each is answered with one token.
type WarmUp struct {
	MaxPrompt int           // tokens of the longest prompt, about; the shortest has 64, each further one twice as many
	Repeat    int           // prompts of each length
	Prefixes  []string      // texts that many requests begin with, as system messages
	Timeout   time.Duration // of one prompt
	// StandbyAfter is how long one that was called in stays after it was wanted
	// for the last time.
	StandbyAfter time.Duration
	// Changed is told of every step; it must be quick. May be nil.
	Changed func(b *backends.Backend, to backends.Readiness, why string)
}

// shortestPrompt is where lengths begin.
const shortestPrompt = 64

// Lengths of the prompts in tokens, in the order in which they are sent. An
// engine may take only the shorter ones.
func (w *WarmUp) Lengths() []int {
	var lengths []int
	for n := shortestPrompt; n <= w.MaxPrompt; n *= 2 {
		for range w.Repeat {
			lengths = append(lengths, n)
		}
	}
	return lengths
}

// dismiss lets an engine stand by again that nobody has wanted for long, and
// tells of it.
func (m *Monitor) dismiss(t Target) {
	if !t.Backend.Dismiss(time.Now(), t.WarmUp.StandbyAfter) {
		return
	}
	m.log.Info("backend stands by again", zap.String("backend", t.Backend.Name))
	t.WarmUp.tell(t.Backend, backends.StandingBy, "not_wanted")
}

// warmUp goes through the warm-up of an engine if one is due, and tells how it
// went.
func (m *Monitor) warmUp(ctx context.Context, t Target) {
	begun := time.Now()
	w := t.Backend.BeginWarmUp(begun)
	if w == nil {
		return
	}
	m.log.Info("backend is warmed up before it gets requests", zap.String("backend", t.Backend.Name), zap.String("why", w.Why))
	t.WarmUp.tell(t.Backend, backends.Warming, w.Why)
	s := sender{Target: t, warmUp: w, path: chatPath}
	err := s.sendAll(ctx)
	now := time.Now()
	if ctx.Err() != nil {
		w.End(now, backends.WarmUpDropped)
		return
	}
	fields := []zap.Field{zap.String("backend", t.Backend.Name), zap.Int("prompts", s.answered), zap.Duration("took", now.Sub(begun))}
	if err != nil {
		to := w.End(now, backends.WarmUpFailed)
		m.log.Warn("warm-up failed", append(fields, zap.String("readiness", string(to)), zap.Error(err))...)
		t.WarmUp.tell(t.Backend, to, "failed")
		return
	}
	to := w.End(now, backends.WarmedUp)
	m.log.Info("warm-up is over", append(fields, zap.String("readiness", string(to)))...)
	t.WarmUp.tell(t.Backend, to, "warm")
}

func (w *WarmUp) tell(b *backends.Backend, to backends.Readiness, why string) {
	if w.Changed != nil {
		w.Changed(b, to, why)
	}
}

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
)

// sender sends the prompts of one warm-up.
type sender struct {
	Target
	warmUp   *backends.WarmUp
	path     string // completions once the engine refused a chat
	answered int
}

// errRefused is an engine's word that it never takes such a prompt: it is too
// long, or the engine does no such thing as answering prompts.
var errRefused = errors.New("the engine refuses the prompt")

// sendAll sends the prompts in turn. What an engine refuses is left out, with
// all that is longer; so is what takes it too long once it has answered others.
func (s *sender) sendAll(ctx context.Context) error {
	for i, tokens := range s.WarmUp.Lengths() {
		err := s.send(ctx, "", prompt(tokens, i))
		if errors.Is(err, errRefused) && s.answered == 0 {
			s.path = completionPath
			err = s.send(ctx, "", prompt(tokens, i))
		}
		if s.isEnough(err) {
			break
		}
		if err != nil {
			return err
		}
	}
	for _, prefix := range s.WarmUp.Prefixes {
		if err := s.send(ctx, prefix, "Hello."); err != nil && !s.isEnough(err) {
			return err
		}
	}
	return nil
}

// isEnough tells that longer prompts are not worth a try, and that this is no failure.
func (s *sender) isEnough(err error) bool {
	return errors.Is(err, errRefused) || s.answered > 0 && errors.Is(err, context.DeadlineExceeded)
}

// prompt is a text of about so many tokens that begins as no other does, so
// that no prefix cache spares the engine the work.
func prompt(tokens, number int) string {
	const words = "one two three four five six seven eight nine ten "
	return fmt.Sprintf("Warm-up %d. ", number) + strings.Repeat(words, tokens/10+1)[:len(words)*tokens/10]
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// ask is the body of a warm-up prompt.
type ask struct {
	Model     string    `json:"model"`
	Messages  []message `json:"messages,omitempty"`
	Prompt    string    `json:"prompt,omitempty"`
	MaxTokens int       `json:"max_tokens"`
	Stream    bool      `json:"stream"`
}

func (s *sender) body(system, text string) ([]byte, error) {
	a := ask{Model: s.Backend.Model, MaxTokens: 1}
	if s.path == completionPath {
		a.Prompt = system + text
		return json.Marshal(a)
	}
	if system != "" {
		a.Messages = append(a.Messages, message{"system", system})
	}
	a.Messages = append(a.Messages, message{"user", text})
	return json.Marshal(a)
}

// send sends one prompt and waits for the end of its answer. It sends nothing
// once the warm-up is not wanted any more.
func (s *sender) send(ctx context.Context, system, text string) error {
	if !s.warmUp.Wanted() {
		return nil
	}
	body, err := s.body(system, text)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.WarmUp.Timeout)
	defer cancel()
	req, err := request(ctx, s.Target, http.MethodPost, s.path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.Transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return fmt.Errorf("POST %s: %w", s.path, err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		s.answered++
		return nil
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge,
		http.StatusUnprocessableEntity, http.StatusNotImplemented:
		return errRefused
	default:
		return fmt.Errorf("POST %s answered %d", s.path, resp.StatusCode)
	}
}
