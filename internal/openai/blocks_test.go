package openai

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestAppendBlocks(t *testing.T) {
	const block = 16 // tokens; 64 bytes
	blocks := func(api Endpoint, body string) []uint64 {
		t.Helper()
		r, bad := ReadRequest(api, []byte(body))
		if bad != nil {
			t.Fatal(bad)
		}
		return r.AppendBlocks(nil, block)
	}
	common := func(a, b []uint64) int {
		n := 0
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		return n
	}
	turn := func(messages ...string) string {
		return `{"model":"m","messages":[` + strings.Join(messages, ",") + `]}`
	}
	system := `{"role":"system","content":"` + strings.Repeat("You are kind. ", 40) + `"}`
	ask := `{"role":"user","content":"hello"}`
	one := blocks(ChatCompletions, turn(system, ask))
	two := blocks(ChatCompletions, turn(system, ask, `{"role":"assistant","content":"hi"}`, ask))
	if n := common(one, two); n < len(one)-1 || n == 0 {
		t.Errorf("the next turn shares %d of %d blocks", n, len(one))
	}
	if n := common(one, blocks(ChatCompletions, turn(system+" ", `{"role":"user","content":"bye"}`))); n < len(one)-2 {
		t.Errorf("another question under the same system prompt shares %d of %d blocks", n, len(one))
	}
	for name, other := range map[string]string{
		"another start": turn(strings.Replace(system, "You", "Thou", 1), ask),
		"another model": strings.Replace(turn(system, ask), `"m"`, `"n"`, 1),
		"other tools":   fmt.Sprintf(`{"tools":[{"type":"function"}],%s`, turn(system, ask)[1:]),
	} {
		if n := common(one, blocks(ChatCompletions, other)); n != 0 {
			t.Errorf("%s shares %d blocks", name, n)
		}
	}
	order := `{"messages":[` + system + `,` + ask + `],"temperature":1,"model":"m"}`
	if !slices.Equal(one, blocks(ChatCompletions, order)) {
		t.Error("the order of other fields changes the blocks")
	}
	swapped := slices.Clone(one)
	slices.Reverse(swapped)
	if common(one, swapped) != 0 {
		t.Error("blocks do not depend on what comes before them")
	}
	if got := blocks(ChatCompletions, turn(ask)); len(got) != 0 {
		t.Errorf("a prompt shorter than a block has %d", len(got))
	}
	if got := blocks(Embeddings, `{"model":"m","input":"`+strings.Repeat("x", 500)+`"}`); len(got) != 0 {
		t.Errorf("an embedding has %d blocks", len(got))
	}
}
