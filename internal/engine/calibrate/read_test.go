package calibrate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.csv")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const servingHead = "system,model_path,backend,backend_version,isl,osl,concurrency,tp_size,silicon_ttft_ms,silicon_tpot_ms\n"

func TestReadServing(t *testing.T) {
	m, err := Read(file(t, servingHead+
		"h100,meta/M,vllm,1,1024,128,8,2,50.5,10\n"+
		"h100,meta/M,vllm,1,1024,128,4,2,30,9\n"+
		"h100,meta/M,vllm,1,1024,128,4,4,20,8\n"+
		"h200,deepseek-ai/DeepSeek-R1,sglang,2,1024,128,4,8,30,9\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Configurations) != 3 {
		t.Fatalf("configurations %+v", m.Configurations)
	}
	c := m.Configurations[0]
	if c.Name != "h100 M vllm 1 tp2" || c.TP != 2 || c.Replicas != 1 || c.Suspect != "" || len(c.Points) != 2 {
		t.Errorf("%+v", c)
	}
	want := Point{Users: 8, Prompt: 1024, Output: 128, Measured: Figures{TTFT: 50500 * time.Microsecond, TPOT: 10 * time.Millisecond}}
	if c.Points[0] != want {
		t.Errorf("point %+v, want %+v", c.Points[0], want)
	}
	if c := m.Configurations[2]; c.Suspect == "" || !strings.HasSuffix(c.Name, "(suspect)") {
		t.Errorf("%+v", c)
	}
}

func TestUnsaturated(t *testing.T) {
	ms := time.Millisecond
	c := Configuration{}
	for _, p := range []struct {
		users int
		ttft  time.Duration
	}{{64, 20 * time.Second}, {4, 100 * ms}, {8, 150 * ms}, {16, 290 * ms}, {32, 900 * ms}, {48, 800 * ms}} {
		c.Points = append(c.Points, Point{Users: p.users, Prompt: 1, Output: 1, Measured: Figures{TTFT: p.ttft}})
	}
	c.Points = append(c.Points, Point{Users: 128, Prompt: 2, Output: 1, Measured: Figures{TTFT: 4 * time.Second}})
	var got []int
	for _, p := range c.Unsaturated() {
		got = append(got, p.Users)
	}
	// 32: three times the TTFT at twice the users; 48 is in line with 16 again; 64: above 5 s.
	want := []int{4, 8, 16, 48, 128}
	if len(got) != len(want) {
		t.Fatalf("users %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("users %v, want %v", got, want)
		}
	}
}

func TestReadRequests(t *testing.T) {
	for name, text := range map[string]string{
		"bench": "request,arrival_s,prompt_tokens,output_tokens,ttft_ms,tpot_ms,outcome\n1,3.5,20,5,60,7,ok\n0,3,10,1,50,,ok\n2,4,10,0,,,timeout\n",
		"vllm":  "arrival_s,input_toks,output_toks,ttft_ms,tpot_ms\n0.4,20,5,60,7\n-0.1,10,1,50,\n",
	} {
		m, err := Read(file(t, text))
		if err != nil {
			t.Fatal(err)
		}
		ms := time.Millisecond
		want := []Request{
			{Prompt: 10, Output: 1, Measured: Figures{TTFT: 50 * ms}},
			{Arrival: 500 * ms, Prompt: 20, Output: 5, Measured: Figures{TTFT: 60 * ms, TPOT: 7 * ms}},
		}
		if len(m.Requests) != 2 || m.Requests[0] != want[0] || m.Requests[1] != want[1] {
			t.Errorf("%s: %+v, want %+v", name, m.Requests, want)
		}
	}
}

func TestReadErrorsNameThePlace(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "m.csv: read the header line: EOF"},
		{"a,b\n1,2\n", "m.csv:1: the columns fit no kind of measurement; want"},
		{servingHead, "m.csv: holds no measurement"},
		{servingHead + "h100,M,vllm,1,many,128,8,2,50,10\n", `m.csv:2:15: isl is "many", want a number of at least 1`},
		{servingHead + "h100,M,vllm,1,1024,128,8,2,,10\n", `m.csv:2:28: silicon_ttft_ms is "", want a number of at least 0.001`},
		{servingHead + "h100,M,vllm,1,1024,128,8,2,NaN,10\n", `m.csv:2:28: silicon_ttft_ms is "NaN"`},
		{servingHead + "h100,M\n", "m.csv: record on line 2: wrong number of fields"},
		{"arrival_s,input_toks,output_toks,ttft_ms,tpot_ms\n0,0,1,1,1\n", `m.csv:2:3: input_toks is "0", want a number of at least 1`},
	} {
		_, err := Read(file(t, c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
	if _, err := Read("nowhere.csv"); err == nil {
		t.Error("read a file that is not there")
	}
}

func TestIrregular(t *testing.T) {
	ms := time.Millisecond
	point := func(users, output int, ttft time.Duration) Point {
		return Point{Users: users, Prompt: 1024, Output: output, Measured: Figures{TTFT: ttft}}
	}
	for _, c := range []struct {
		name   string
		points []Point
		want   string
	}{
		{"regular", []Point{point(4, 128, 100*ms), point(8, 128, 95*ms), point(4, 512, 130*ms)}, ""},
		{"falls", []Point{point(4, 128, 100*ms), point(8, 128, 80*ms)}, "TTFT falls from 100 to 80 ms between 4 and 8 users"},
		{"differs", []Point{point(4, 128, 100*ms), point(4, 512, 160*ms)}, "TTFT of 4 users is 100 ms with 128 output tokens and 160 with 512"},
	} {
		conf := Configuration{Points: c.points}
		if got := conf.Irregular(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestPrintFits(t *testing.T) {
	var out strings.Builder
	good, bad := Errors{Points: 3, TTFT: 0.02, TPOT: 0.01}, Errors{Points: 3, TTFT: 0.2, TPOT: 0.01}
	err := PrintFits(&out, []Fit{
		{Name: "one", Held: good}, {Name: "two", Held: bad}, {Name: "odd", Held: bad, Irregular: "TTFT falls"}, {Name: "old", Held: bad, Suspect: "warm-up"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1 of 2 met", "1 of 3 met", "odd: TTFT falls\n", "old: warm-up\n", "11.0 %", "MISSED"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
