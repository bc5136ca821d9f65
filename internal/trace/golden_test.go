package trace

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"
	"testing"
	"time"
)

// The figures were computed from the files by other means than this package;
// those of a whole trace are in the README of the data sets.

func openData(t *testing.T, name string, o Options) Source {
	t.Helper()
	s, err := Open(data(t, name), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGoldenAzure(t *testing.T) {
	for _, c := range []struct {
		name                                     string
		rows, prompt50, prompt99, output50, peak int
		output, cv                               float64
		end                                      time.Duration
	}{
		{"azure2023_code_00-30min.csv", 5740, 1459, 7436, 13, 632, 27.357142857, 13.516698, 1788410675 * time.Microsecond},
		{"azure2023_conv_00-30min.csv", 10108, 1033, 4123, 134, 480, 217.347348635, 1.0740214, 1799899351 * time.Microsecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := collect(t, openData(t, c.name, Options{}))
			p, o := prompts(all), outputs(all)
			if len(all) != c.rows || quantile(p, 0.5) != c.prompt50 || quantile(p, 0.99) != c.prompt99 || quantile(o, 0.5) != c.output50 {
				t.Errorf("%d rows, context p50 %d, p99 %d, generated p50 %d", len(all), quantile(p, 0.5), quantile(p, 0.99), quantile(o, 0.5))
			}
			_, cv := meanAndCV(gapsOf(all))
			near(t, "generated mean", mean(o), c.output, 1e-9)
			near(t, "CV", cv, c.cv, 1e-6)
			if !sorted(all) || all[len(all)-1].At.Round(time.Microsecond) != c.end {
				t.Errorf("last arrival %v", all[len(all)-1].At)
			}
			perMinute := map[time.Duration]int{}
			peak := 0
			for _, r := range all {
				perMinute[r.At/time.Minute]++
				peak = max(peak, perMinute[r.At/time.Minute])
			}
			if peak != c.peak {
				t.Errorf("at most %d requests a minute, want %d", peak, c.peak)
			}
		})
	}
}

func TestGoldenMooncake(t *testing.T) {
	const name = "mooncake_conversation_00-30min.jsonl"
	all := collect(t, openData(t, name, Options{Seed: 1}))
	p, o := prompts(all), outputs(all)
	if len(all) != 5719 || quantile(p, 0.5) != 7640 || quantile(p, 0.99) != 91305 {
		t.Errorf("%d rows, input p50 %d, p99 %d", len(all), quantile(p, 0.5), quantile(p, 0.99))
	}
	near(t, "input mean", mean(p), 12870.116104, 1e-9)
	near(t, "output mean", mean(o), 345.725477, 1e-6)
	if !sorted(all) {
		t.Error("not in order")
	}
	if _, cv := meanAndCV(gapsOf(all)); cv > 1.5 {
		t.Errorf("CV %.2f: still bunched", cv)
	}

	// 36.6 % of the whole trace's ids are found by an endless cache, 34.1 % of
	// this half hour's.
	rows := mooncakeRows(t, data(t, name))
	seen := map[uint64]bool{}
	hitIDs, ids, hit, looked := 0, 0, 0, 0
	for i, row := range rows {
		found := 0
		for found < len(row.Hashes) && seen[row.Hashes[found]] {
			found++
		}
		for _, id := range row.Hashes {
			seen[id] = true
		}
		hitIDs, ids = hitIDs+found, ids+len(row.Hashes)
		hit, looked = hit+min(512*found, row.Input)/16, looked+row.Input/16
		if late := all[i].At - time.Duration(row.Timestamp)*time.Millisecond; late < 0 || late >= 3002*time.Millisecond {
			t.Fatalf("request %d is moved by %v", i, late)
		}
	}
	if hitIDs != 49930 || ids != 146464 {
		t.Fatalf("the file shares %d of %d ids", hitIDs, ids)
	}
	if gotHit, gotLooked := sharing(all); gotHit != hit || gotLooked != looked {
		t.Errorf("%d of %d blocks shared, want %d of %d", gotHit, gotLooked, hit, looked)
	}
}

type mooncakeRow struct {
	Timestamp int64    `json:"timestamp"`
	Input     int      `json:"input_length"`
	Hashes    []uint64 `json:"hash_ids"`
}

func mooncakeRows(t *testing.T, path string) (rows []mooncakeRow) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for scan := bufio.NewScanner(f); scan.Scan(); {
		var row mooncakeRow
		if err := json.Unmarshal(scan.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

func TestGoldenServeGen(t *testing.T) {
	const scale = 0.002
	n, total := map[string]int{}, 0
	for r, err := range openData(t, "servegen_m-small_day4_client_rates.csv", Options{Scale: scale}) {
		if err != nil {
			t.Fatal(err)
		}
		n[r.Tenant]++
		total++
	}
	perDay := func(perSecond float64) float64 { return 86400 * scale * perSecond }
	near(t, "clients", float64(len(n)), 26, 0.05)                     // one may be too rare to be seen
	near(t, "client 5", float64(n["client-5"]), perDay(356.247), 0.1) // some windows have a CV above 6
	near(t, "client 38", float64(n["client-38"]), perDay(202.818), 0.03)
	top := n["client-5"] + n["client-38"] + n["client-17"] + n["client-14"] + n["client-27"]
	near(t, "share of the top five", float64(top)/float64(total), 0.76, 0.03)
}

// TestGoldenServeGenLengths holds the interpolated lengths to the published
// means, which they do not use.
func TestGoldenServeGenLengths(t *testing.T) {
	f := diskFile(data(t, "servegen_m-small_day4_client_lengths.csv"))
	rows, err := readClientLengths(f, 0)
	if err != nil || len(rows) != 73 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	published := map[string]float64{}
	err = f.rows([]string{"client", "t", "in_mean"}, func(t *table) bool {
		published[t.text(0)+" "+t.text(1)] = t.number(2, 1e9)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	rng := newRand(1, "lengths")
	sum, want := 0.0, 0.0
	for _, row := range rows {
		var drawn []int
		for range 2000 {
			drawn = append(drawn, row.input.draw(rng))
		}
		m := published[row.client+" "+strconv.Itoa(int(row.start.Seconds()))]
		near(t, "mean of client "+row.client, mean(drawn), m, 0.3)
		sum, want = sum+mean(drawn), want+m
	}
	near(t, "mean of all", sum, want, 0.05)
}

func TestGoldenLengths(t *testing.T) {
	all := collect(t, openData(t, "sharegpt_lengths_llama2tok.csv", Options{Law: Poisson(10)}))
	if len(all) != 30731 {
		t.Errorf("%d rows", len(all))
	}
	near(t, "prompt mean", mean(prompts(all)), 2340.03, 1e-5)
	near(t, "output mean", mean(outputs(all)), 438.71, 1e-5)
	near(t, "time", all[len(all)-1].At.Seconds(), 3073.1, 0.02)
}
