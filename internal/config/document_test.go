package config

import (
	"strings"
	"testing"
	"time"
)

type menu struct {
	Title  string        `yaml:"title" required:"yes"`
	Table  string        `yaml:"table" number:"yes"`
	Wait   time.Duration `yaml:"wait" default:"1m" max:"1h"`
	Dishes []dish        `yaml:"dishes"`
}

type dish struct {
	Name  string  `yaml:"name"`
	Price float64 `yaml:"price" default:"2.5" min:"0"`
}

func TestDocument(t *testing.T) {
	var m menu
	doc := Decode("menu.yaml", []byte("title: today\ntable: 7\nwait: 0s\ndishes: [{name: soup}, {price: 0}]"), &m, nil)
	if err := doc.Err(); err != nil {
		t.Fatal(err)
	}
	want := menu{Title: "today", Table: "7", Dishes: []dish{{Name: "soup", Price: 2.5}, {}}}
	if m.Title != want.Title || m.Table != want.Table || m.Wait != want.Wait || m.Dishes[0] != want.Dishes[0] || m.Dishes[1] != want.Dishes[1] {
		t.Errorf("read %+v, want %+v", m, want)
	}
	if !doc.Has("dishes[1].price") || doc.Has("dishes[0].price") {
		t.Error("Has does not tell what the file sets")
	}
	doc.Fail("dishes[1].price", "is a gift", "")
	if got, want := doc.Err().Error(), "menu.yaml:4:32: dishes[1].price: is a gift"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestDocumentErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "menu.yaml: is empty"},
		{"title: a\n  b: c: d", "menu.yaml:2: is not YAML"},
		{"title: a\nwait: 5", `menu.yaml:2:7: wait: "5" has no unit; write 5s or 5ms`},
		{"title: a\nwait: off", `menu.yaml:2:7: wait: "off" is not allowed here`},
		{"title: a\nwait: 2h", `menu.yaml:2:7: wait: "2h" is above 1h; write a value of at most 1h`},
		{"title: a\n\ndishes:\n  - nam: x", `menu.yaml:4:5: dishes[0].nam: unknown key; did you mean "name"?`},
		{"title: a\ntitle: b", "menu.yaml:2:1: title: is already set in line 1"},
		{"title: 7", `menu.yaml:1:8: title: "7" is a number, not text`},
		{"dishes: []", "menu.yaml:1:1: title: is missing"},
	} {
		var m menu
		err := Decode("menu.yaml", []byte(c.text), &m, nil).Err()
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
}
