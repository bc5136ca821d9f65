package fakellm_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/firsttoken/firsttoken/internal/fakellm"
)

const ms = time.Millisecond

// Each script is played in virtual time, where pieces are compared with their
// instants, and over TCP, where only the bytes and the end are.
var steps = []struct {
	name   string
	script fakellm.Script
	status int     // 0: no answer at all
	typ    string  // Content-Type
	pieces []piece // at their instants
	err    error
}{
	{
		name:   "header before body",
		script: fakellm.Script{fakellm.Header(201, http.Header{"Content-Type": {"a/b"}}), fakellm.Wait(5 * ms), fakellm.Send("x")},
		status: 201, typ: "a/b", pieces: []piece{{5 * ms, "x"}},
	},
	{
		name:   "second header is ignored",
		script: fakellm.Script{fakellm.Header(201, nil), fakellm.Stream(), fakellm.Send("x")},
		status: 201, pieces: []piece{{0, "x"}},
	},
	{
		name:   "send and wait",
		script: fakellm.Script{fakellm.Stream(), fakellm.Send("a", "b"), fakellm.Wait(3 * ms), fakellm.Send("c")},
		status: 200, typ: "text/event-stream", pieces: []piece{{0, "ab"}, {3 * ms, "c"}},
	},
	{
		name:   "late header",
		script: fakellm.Script{fakellm.Wait(4 * ms), fakellm.Event("x")},
		status: 200, typ: "text/event-stream", pieces: []piece{{4 * ms, "data: x\n\n"}},
	},
	{
		name:   "comment, event, done",
		script: fakellm.Script{fakellm.Comment("ping"), fakellm.Event("{}"), fakellm.Done()},
		status: 200, typ: "text/event-stream", pieces: []piece{{0, ": ping\n\ndata: {}\n\ndata: [DONE]\n\n"}},
	},
	{
		name:   "split at",
		script: fakellm.Script{fakellm.Stream(), fakellm.SplitAt("data: é\n\n", ms, 3, 7, 9)},
		status: 200, typ: "text/event-stream", pieces: []piece{{0, "dat"}, {ms, "a: \xc3"}, {2 * ms, "\xa9\n"}, {3 * ms, "\n"}},
	},
	{
		name:   "split every byte",
		script: fakellm.Script{fakellm.Stream(), fakellm.SplitEvery("abc", ms, 1)},
		status: 200, typ: "text/event-stream", pieces: []piece{{0, "a"}, {ms, "b"}, {2 * ms, "c"}},
	},
	{
		name:   "split every two, odd length",
		script: fakellm.Script{fakellm.Stream(), fakellm.SplitEvery("abcde", ms, 2)},
		status: 200, typ: "text/event-stream", pieces: []piece{{0, "ab"}, {ms, "cd"}, {2 * ms, "e"}},
	},
	{
		name:   "cut clean",
		script: fakellm.Script{fakellm.Event("x"), fakellm.CutClean(), fakellm.Done()},
		status: 200, typ: "text/event-stream", pieces: []piece{{0, "data: x\n\n"}},
	},
	{
		name:   "cut dirty",
		script: fakellm.Script{fakellm.Event("x"), fakellm.Wait(ms), fakellm.CutDirty("data: y")},
		status: 200, typ: "text/event-stream", pieces: []piece{{0, "data: x\n\n"}, {ms, "data: y"}}, err: io.ErrUnexpectedEOF,
	},
	{
		name:   "cut dirty, of known length",
		script: fakellm.Script{fakellm.Header(200, http.Header{"Content-Type": {"a/b"}, "Content-Length": {"10"}}), fakellm.CutDirty("1234")},
		status: 200, typ: "a/b", pieces: []piece{{0, "1234"}}, err: io.ErrUnexpectedEOF,
	},
	{
		name:   "cut dirty at once",
		script: fakellm.Script{fakellm.CutDirty("")},
		status: 200, err: io.ErrUnexpectedEOF,
	},
	{
		name:   "close between chunks",
		script: fakellm.Script{fakellm.Event("x"), fakellm.Close()},
		status: 200, typ: "text/event-stream", pieces: []piece{{0, "data: x\n\n"}}, err: io.ErrUnexpectedEOF,
	},
	{
		name:   "close before any byte",
		script: fakellm.Script{fakellm.Close()},
		err:    io.EOF,
	},
	{
		name:   "reset mid-stream",
		script: fakellm.Script{fakellm.Event("x"), fakellm.Wait(ms), fakellm.Reset(), fakellm.Event("y")},
		status: 200, typ: "text/event-stream", pieces: []piece{{0, "data: x\n\n"}}, err: syscall.ECONNRESET,
	},
	{
		name:   "reset before any byte",
		script: fakellm.Script{fakellm.Reset()},
		err:    syscall.ECONNRESET,
	},
	{
		name:   "status",
		script: fakellm.Status(429, http.Header{"Retry-After": {"7"}}, `{"error":{}}`),
		status: 429, typ: "application/json", pieces: []piece{{0, `{"error":{}}`}},
	},
	{
		name:   "status without body",
		script: fakellm.Status(204, nil, ""),
		status: 204, typ: "text/plain; charset=utf-8",
	},
	{
		name:   "script in a script, and a step of one's own",
		script: fakellm.Script{fakellm.Status(200, nil, "").Play, func(w *fakellm.Response) error { return w.Context().Err() }},
		status: 200, typ: "text/plain; charset=utf-8",
	},
}

func TestSteps(t *testing.T) {
	for _, c := range steps {
		check := func(t *testing.T, got answer) {
			if got.status != c.status || got.header.Get("Content-Type") != c.typ {
				t.Errorf("status %d, type %q; want %d, %q", got.status, got.header.Get("Content-Type"), c.status, c.typ)
			}
			if want := (answer{pieces: c.pieces}).body(); got.body() != want {
				t.Errorf("body %q, want %q", got.body(), want)
			}
			if !errors.Is(got.err, c.err) {
				t.Errorf("error %v, want %v", got.err, c.err)
			}
		}
		t.Run(c.name+"/memnet", func(t *testing.T) {
			inBubble(t, &fakellm.Backend{Script: always(c.script)}, func(t *testing.T, cl client) {
				got := cl.post(t.Context(), "/v1/chat/completions", stream)
				check(t, got)
				if !reflect.DeepEqual(got.pieces, c.pieces) {
					t.Errorf("pieces %v, want %v", got.pieces, c.pieces)
				}
			})
		})
		t.Run(c.name+"/tcp", func(t *testing.T) {
			overTCP(t, &fakellm.Backend{Script: always(c.script)}, func(t *testing.T, cl client) {
				check(t, cl.post(t.Context(), "/v1/chat/completions", stream))
			})
		})
	}
}

func TestHangEndsWhenTheClientLeaves(t *testing.T) {
	b := &fakellm.Backend{Script: always(fakellm.Script{fakellm.Event("x"), fakellm.Hang()})}
	inBubble(t, b, func(t *testing.T, c client) {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		got := c.post(ctx, "/v1/chat/completions", stream)
		if !errors.Is(got.err, context.DeadlineExceeded) || got.body() != "data: x\n\n" {
			t.Errorf("read %q, %v", got.body(), got.err)
		}
		waitIdle(t, b)
		r := b.Requests()[0]
		if r.Cancelled().Sub(start) != 2*time.Second || r.Finished() != r.Cancelled() {
			t.Errorf("cancelled %v, finished %v after the start", r.Cancelled().Sub(start), r.Finished().Sub(start))
		}
	})
}

func TestHangEndsWhenTheClientLeavesTCP(t *testing.T) {
	b := &fakellm.Backend{Script: always(fakellm.Script{fakellm.Event("x"), fakellm.Hang()})}
	overTCP(t, b, func(t *testing.T, c client) {
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan answer, 1)
		go func() { left <- c.post(ctx, "/v1/chat/completions", stream) }()
		waitInFlight(t, b, 1)
		cancel()
		<-left
		waitIdle(t, b)
		if b.Requests()[0].Cancelled().IsZero() {
			t.Error("the backend did not see the client leave")
		}
	})
}

func TestServerCloseEndsScripts(t *testing.T) {
	b := &fakellm.Backend{Script: always(fakellm.Script{fakellm.Event("x"), fakellm.Hang()})}
	left := make(chan answer, 1)
	overTCP(t, b, func(t *testing.T, c client) {
		go func() { left <- c.post(context.Background(), "/v1/chat/completions", stream) }()
		waitInFlight(t, b, 1)
	})
	if b.InFlight() != 0 {
		t.Error("Close did not wait for the script")
	}
	if got := <-left; got.err == nil {
		t.Errorf("client read %q and no error", got.body())
	}
}

// waitIdle waits until no script is played.
func waitIdle(t *testing.T, b *fakellm.Backend) {
	t.Helper()
	waitInFlight(t, b, 0)
}

// waitInFlight waits until want scripts are played.
func waitInFlight(t *testing.T, b *fakellm.Backend, want int) {
	t.Helper()
	for range 5000 {
		if b.InFlight() == want {
			return
		}
		time.Sleep(ms)
	}
	t.Fatalf("%d scripts are played, want %d", b.InFlight(), want)
}

func TestSequence(t *testing.T) {
	b := &fakellm.Backend{Script: fakellm.Sequence(
		fakellm.Status(500, nil, ""), fakellm.Script{fakellm.Reset()}, fakellm.Status(200, nil, ""))}
	inBubble(t, b, func(t *testing.T, c client) {
		var got []int
		for range 4 {
			got = append(got, c.post(t.Context(), "/v1/chat/completions", plain).status)
		}
		if !reflect.DeepEqual(got, []int{500, 0, 200, 200}) {
			t.Errorf("statuses %v", got)
		}
	})
}

func TestSplitKeepsEveryByte(t *testing.T) {
	data := strings.Repeat("data: \xc3\xa9\r\n\r\n", 3)
	for size := 1; size <= len(data)+1; size++ {
		b := &fakellm.Backend{Script: always(fakellm.Script{fakellm.Stream(), fakellm.SplitEvery(data, ms, size)})}
		inBubble(t, b, func(t *testing.T, c client) {
			got := c.post(t.Context(), "/", stream)
			if want := (len(data) + size - 1) / size; got.body() != data || len(got.pieces) != want {
				t.Errorf("size %d: %d pieces, want %d; body %q", size, len(got.pieces), want, got.body())
			}
		})
	}
}
