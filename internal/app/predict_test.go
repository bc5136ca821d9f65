package app_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firsttoken/firsttoken/internal/app"
	"github.com/firsttoken/firsttoken/internal/config"
	"github.com/firsttoken/firsttoken/internal/fakellm"
	"github.com/firsttoken/firsttoken/internal/models"
	"github.com/firsttoken/firsttoken/internal/samples"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// steady is an engine whose first token always takes 80 ms.
func steady() *fakellm.Backend {
	return playing(fakellm.Reply(3, 80*time.Millisecond, 20*time.Millisecond)...)
}

// predicting is a gateway with one such engine. extra is YAML before the models.
func predicting(t *testing.T, extra string) *gateway {
	t.Helper()
	return startGateway(t, configFor(quiet+"\n"+extra, "a:8000"), map[string]http.Handler{"a:8000": steady()})
}

// streams sends n streams, one after the other and pause apart.
func (g *gateway) streams(n int, pause time.Duration) {
	g.t.Helper()
	for range n {
		if got := g.chat(streamBody("m")); got.status != 200 || got.err != nil {
			g.t.Fatalf("%d, %v", got.status, got.err)
		}
		time.Sleep(pause)
	}
}

// number is the value of a series; NaN if there is none.
func (g *gateway) number(series string) float64 {
	g.t.Helper()
	v, err := strconv.ParseFloat(g.metric(series), 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

// events are the log lines with the message, once the gateway has stopped.
func (g *gateway) events(msg string) (found []map[string]any) {
	g.t.Helper()
	g.shutdown()
	for _, line := range g.log.lines(g.t) {
		if line["msg"] == msg {
			found = append(found, line)
		}
	}
	return found
}

func TestPredictionsInLogAndMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := predicting(t, "")
		if err := g.reload(strings.Replace(g.config, "name: a,", "name: a, limits: {max_in_flight: 1},", 1)); err != nil {
			t.Fatal(err)
		}
		g.streams(40, 200*time.Millisecond)
		plain := g.chat(plainBody("m"))
		if plain.status != 200 {
			t.Fatal(plain.status)
		}
		open := g.stream(t.Context())
		if got := g.chat(streamBody("m")); got.status != 429 {
			t.Fatalf("status %d, want 429", got.status)
		}
		readAnswer(open)
		g.want(`firsttoken_prediction_samples_total{estimator="linear",model="m",regime="idle"}`, "41")
		g.want(`firsttoken_prediction_estimator_info{estimator="linear",model="m"}`, "1")
		g.want(`firsttoken_prediction_samples_dropped_total`, "0")
		for _, by := range []string{"analytic", "linear"} {
			for _, regime := range []string{"idle", "all"} {
				labels := `{estimator="` + by + `",model="m",regime="` + regime + `"}`
				if v := g.number("firsttoken_prediction_error_ratio" + labels); !(v > 0 && v < 0.5) {
					t.Errorf("error%s is %v", labels, v)
				}
				if v := g.number("firsttoken_prediction_coverage_ratio" + labels); !(v > 0.8 && v <= 1) {
					t.Errorf("coverage%s is %v", labels, v)
				}
				if v := g.number("firsttoken_prediction_pinball_seconds" + labels); !(v > 0 && v < 0.1) {
					t.Errorf("pinball%s is %v", labels, v)
				}
			}
		}
		if left := grep(g.metrics(), `regime="queued"`) + grep(g.metrics(), `"lightgbm"`) + grep(g.metrics(), "prediction_model_info"); left != "" {
			t.Errorf("series of what there was none of:\n%s", left)
		}
		lines := g.access()
		for i, line := range lines {
			p50, _ := line["predicted_p50_ms"].(float64)
			p95, _ := line["predicted_p95_ms"].(float64)
			if line["status"] == 429.0 {
				if line["predicted_p50_ms"] != nil || line["estimator"] != nil {
					t.Errorf("a request without an attempt was predicted: %v", line)
				}
				continue
			}
			if !(p50 > 0) || p95 < p50 || line["estimator"] != "linear" || line["regime"] != "idle" {
				t.Errorf("line %d: %v", i, line)
			}
			if i >= 30 && math.Abs(p50-80) > 8 {
				t.Errorf("line %d: P50 is %v ms, want about 80", i, p50)
			}
		}
		if len(lines) != 43 {
			t.Errorf("%d lines", len(lines))
		}
	})
}

func TestPredictionOfLastAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, configFor(lenient, "a:8000", "b:8000"), map[string]http.Handler{"a:8000": down(0), "b:8000": steady()})
		g.streams(20, 0)
		for _, line := range g.access() {
			if line["backend"] != "b" || line["estimator"] == nil {
				t.Errorf("line %v", line)
			}
		}
	})
}

func TestPredictionDebugHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, strings.Replace(configFor(quiet, "a:8000"), "server: {", "server: {debug_headers: true, ", 1),
			map[string]http.Handler{"a:8000": steady()})
		h := g.chat(streamBody("m")).header
		line := g.access()[0]
		if h.Get("X-Firsttoken-Predicted-P50-Ms") != fmt.Sprint(line["predicted_p50_ms"]) ||
			h.Get("X-Firsttoken-Predicted-P95-Ms") != fmt.Sprint(line["predicted_p95_ms"]) || h.Get("X-Firsttoken-Estimator") != "linear" {
			t.Errorf("headers %v, line %v", h, line)
		}
	})
}

func TestPredictionDisabled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const off = "prediction: {enabled: false}"
		g := predicting(t, off)
		on := strings.Replace(g.config, off, "", 1)
		g.streams(3, 0)
		none := func() {
			t.Helper()
			for line := range strings.SplitSeq(grep(g.metrics(), "firsttoken_prediction_"), "\n") {
				if strings.Contains(line, `model="m"`) && !strings.HasPrefix(line, "firsttoken_prediction_samples_total") {
					t.Errorf("predicted: %s", line)
				}
			}
		}
		none()
		g.want(`firsttoken_prediction_samples_total{estimator="linear",model="m",regime="idle"}`, "")
		if err := g.reload(on); err != nil {
			t.Fatal(err)
		}
		g.streams(2, 0)
		g.want(`firsttoken_prediction_samples_total{estimator="linear",model="m",regime="idle"}`, "2")
		if err := g.reload(strings.Replace(on, "models:", off+"\nmodels:", 1)); err != nil {
			t.Fatal(err)
		}
		g.streams(2, 0)
		none()
		for i, line := range g.access() {
			if predicted := line["estimator"] != nil && line["predicted_p50_ms"] != nil && line["predicted_p95_ms"] != nil && line["regime"] != nil; predicted != (i == 3 || i == 4) {
				t.Errorf("line %d: %v", i, line)
			}
		}
	})
}

func TestReloadKeepsWhatWasLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := predicting(t, "")
		text := g.config
		other := configFor(quiet, "b:8000")
		g.streams(60, 100*time.Millisecond)
		if err := g.reload(strings.Replace(text, "name: a,", "name: a, weight: 2,", 1)); err != nil {
			t.Fatal(err)
		}
		g.streams(1, 0)
		g.want(`firsttoken_prediction_samples_total{estimator="linear",model="m",regime="idle"}`, "61")
		if v := g.number(`firsttoken_prediction_error_ratio{estimator="linear",model="m",regime="all"}`); !(v > 0) {
			t.Errorf("the scores are gone: %v", v)
		}
		// What a revision took away is forgotten.
		if err := g.reload(strings.Replace(other, "name: m", "name: n", 1)); err != nil {
			t.Fatal(err)
		}
		if err := g.reload(text); err != nil {
			t.Fatal(err)
		}
		g.streams(1, 0)
		lines := g.access()
		first, last, kept, fresh := lines[0], lines[59], lines[60], lines[61]
		if last["predicted_p50_ms"] == first["predicted_p50_ms"] {
			t.Error("nothing was learned")
		}
		if a, b := last["predicted_p50_ms"].(float64), kept["predicted_p50_ms"].(float64); math.Abs(a-b) > 1 {
			t.Errorf("P50 was %v ms before the reload and is %v after it", a, b)
		}
		if fresh["predicted_p50_ms"] != first["predicted_p50_ms"] {
			t.Errorf("P50 of an engine that is new again is %v ms, want %v", fresh["predicted_p50_ms"], first["predicted_p50_ms"])
		}
	})
}

// A profile decides what is expected before anything was measured.
func TestPredictionByProfile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines := map[string]http.Handler{"none:1": steady(), "fast:1": steady(), "slow:1": steady()}
		text := configFor(quiet, "none:1") +
			"  - {name: fast, backends: [{name: fast, url: \"http://fast:1\", profile: h100-llama-3.1-8b-bf16}]}\n" +
			"  - {name: slow, backends: [{name: slow, url: \"http://slow:1\", profile: A100-bloom-176b-fp16-tp8}]}\n"
		g := startGateway(t, text, engines)
		g.chat(streamBody("fast"))
		g.chat(streamBody("slow"))
		g.chat(streamBody("m"))
		var p50 []float64
		for _, line := range g.access() {
			p50 = append(p50, line["predicted_p50_ms"].(float64))
		}
		// H + T0 + about ten tokens at alpha.
		if math.Abs(p50[0]-23) > 1 || math.Abs(p50[1]-50) > 2 || p50[2] == p50[0] || p50[2] == p50[1] {
			t.Errorf("P50s in ms: %v", p50)
		}
	})
}

// Every token of a stream tells where its engine stands, and what the engine
// says of its cache counts.
func TestTokensAndCacheReachThePredictor(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		long := fakellm.Script{fakellm.Stream(), fakellm.Wait(80 * time.Millisecond), fakellm.Send(helloChunk)}
		for range 49 {
			long = append(long, fakellm.Wait(20*time.Millisecond), fakellm.Send(worldChunk))
		}
		long = append(long, fakellm.Send(stopChunk,
			`data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":50,"prompt_tokens_details":{"cached_tokens":10}}}`+"\n\n", doneEvent))
		g := startGateway(t, configFor(quiet+"\nprediction: {samples: {dir: "+dir+"}}", "a:8000"), map[string]http.Handler{"a:8000": playing(long...)})
		open := g.stream(t.Context())
		time.Sleep(485 * time.Millisecond) // in the middle of a gap
		busy := g.stream(t.Context())
		readAnswer(busy)
		readAnswer(open)
		body := `{"model":"m","stream":true,"max_tokens":7,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}`
		if got := g.chat(body); got.status != 200 {
			t.Fatal(got.status)
		}
		g.shutdown()
		kept := readSamples(t, dir)
		if len(kept) != 3 {
			t.Fatalf("%d samples", len(kept))
		}
		idle, second, third := &kept[0], &kept[1], &kept[2]
		if idle.Model != "m" || idle.Backend != "a" || idle.Revision != "1" || idle.Served != predictor.Linear || idle.TTFT != 80*time.Millisecond || idle.Censored {
			t.Errorf("sample %+v", idle)
		}
		if second.Regime != predictor.Busy || second.Features[predictor.DecodeRequests] != 1 {
			t.Errorf("regime %v, %v decoding", second.Regime, second.Features[predictor.DecodeRequests])
		}
		if gap := second.Features[predictor.TokenGap]; math.Abs(gap-0.020) > 0.001 {
			t.Errorf("token gap %v, want 20 ms", gap)
		}
		if since := second.Features[predictor.SinceToken]; math.Abs(since-0.005) > 1e-6 {
			t.Errorf("since the last token %v, want 5 ms", since)
		}
		if f := &third.Features; f[predictor.Turn] != 2 || f[predictor.MaxTokens] != 7 || f[predictor.Streaming] != 1 {
			t.Errorf("turn %v, max %v, streaming %v", f[predictor.Turn], f[predictor.MaxTokens], f[predictor.Streaming])
		}
		if before, after := idle.Features[predictor.CacheTrust], third.Features[predictor.CacheTrust]; !(after > before) {
			t.Errorf("trust in the cache was %v and is %v after an engine found more than expected", before, after)
		}
	})
}

func readSamples(t *testing.T, dir string) (all []predictor.Sample) {
	t.Helper()
	for s, err := range samples.Read(dir) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// A client that leaves before a token is a lower bound; failures teach nothing.
func TestSamplesOfAttemptsWithoutToken(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t, configFor(quiet+"\nprediction: {samples: {dir: "+dir+"}}", "a:8000"), map[string]http.Handler{"a:8000": &fakellm.Backend{
			Script: fakellm.Sequence(fakellm.Script{fakellm.Status(500, nil, "{}").Play}, fakellm.Script{fakellm.Hang()}, fakellm.Reply(1, time.Second, 0)),
		}})
		g.chat(streamBody("m"))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := g.post(ctx, "/v1/chat/completions", streamBody("m")); err == nil {
			t.Error("an answer from an engine that hangs")
		}
		g.chat(plainBody("m"))
		g.shutdown()
		kept := readSamples(t, dir)
		if len(kept) != 1 || !kept[0].Censored || kept[0].TTFT != 5*time.Second {
			t.Errorf("samples %+v", kept)
		}
	})
}

// writeModel makes the folder of a valid trained model. Its heads say that the
// base is right, and that P95 is e^0.5 of it.
func writeModel(t *testing.T, id string) (folder string) {
	t.Helper()
	return writeConstant(t, id, 0, 0.5)
}

// writeConstant makes one whose heads say the same of every row.
func writeConstant(t *testing.T, id string, p50, p95 float64) (folder string) {
	t.Helper()
	folder = t.TempDir()
	head := func(name string, alpha, leaf float64) trees.Head {
		names := predictor.Names()
		text := fmt.Sprintf("tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nmax_feature_idx=%d\nobjective=quantile\nfeature_names=%s\ntree_sizes=100\n\n"+
			"Tree=0\nnum_leaves=2\nnum_cat=0\nsplit_feature=0\nthreshold=1000\ndecision_type=8\nleft_child=-1\nright_child=-2\nleaf_value=%v %v\nis_linear=0\nshrinkage=1\n\n\n"+
			"end of trees\n\nparameters:\n[objective: quantile]\n[alpha: %v]\n\nend of parameters\n", len(names)-1, strings.Join(names, " "), leaf, leaf, alpha)
		write(t, filepath.Join(folder, name), text)
		return trees.Head{File: name, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(text))), Alpha: alpha}
	}
	day := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	m := trees.Manifest{
		Format: "firsttoken-model/1", ID: id, Created: day, Schema: predictor.SchemaHash(), Base: "analytic",
		Heads:    trees.Heads{P50: head("p50.txt", 0.5, p50), P95: head("p95.txt", 0.95, p95)},
		Training: trees.Training{Rows: 100, From: day, To: day, LightGBM: "4.6.0", Source: "by hand"},
		Metrics:  map[string]trees.Metrics{"all": {Rows: 100}},
	}
	for range 8 {
		m.Golden = append(m.Golden, trees.Golden{Row: make([]trees.Number, len(predictor.Names())), P50: p50, P95: p95})
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, "manifest.json"), string(text))
	return folder
}

const (
	oldModel = "20261130T120000-00000a"
	newModel = "20261201T120000-00000b"
)

// modelStore is a store with two models, none of them active.
func modelStore(t *testing.T) (s *models.Store, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "models")
	s = models.New(dir, predictor.Names(), predictor.SchemaHash())
	for _, id := range []string{oldModel, newModel} {
		if _, err := s.Publish(writeModel(t, id)); err != nil {
			t.Fatal(err)
		}
	}
	return s, dir
}

// What is activated serves within two seconds, without a reload; what can't
// serve changes nothing.
func TestTrainedModelIsTakenUp(t *testing.T) {
	store, dir := modelStore(t)
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		g := predicting(t, "prediction: {models: "+dir+"}")
		inForce := func(id string) {
			t.Helper()
			time.Sleep(2 * time.Second)
			for _, one := range []string{oldModel, newModel} {
				want := ""
				if one == id {
					want = "1"
				}
				g.want(`firsttoken_prediction_model_info{id="`+one+`",lightgbm="4.6.0",schema="`+predictor.SchemaHash()+`"}`, want)
			}
			before := g.number(`firsttoken_prediction_pinball_seconds{estimator="lightgbm",model="m",regime="idle"}`)
			g.streams(1, 0)
			after := g.number(`firsttoken_prediction_pinball_seconds{estimator="lightgbm",model="m",regime="idle"}`)
			if judged := after != before && !math.IsNaN(after); judged != (id != "") {
				t.Errorf("%q: lightgbm was judged: %v", id, judged)
			}
		}
		inForce("")
		do(store.Activate(oldModel))
		inForce(oldModel)
		do(store.Activate(newModel))
		inForce(newModel)
		_, err := store.Rollback()
		do(err)
		inForce(oldModel)

		write(t, filepath.Join(dir, "active.json"), "{")
		inForce(oldModel)
		write(t, filepath.Join(dir, "active.json"), `{"active":"20261201T120000-0000ff","previous":""}`)
		inForce(oldModel)
		do(os.WriteFile(filepath.Join(dir, newModel, "p95.txt"), []byte("tree\n"), 0o600))
		write(t, filepath.Join(dir, "active.json"), `{"active":"`+newModel+`","previous":""}`)
		inForce(oldModel)

		do(g.reload(g.config)) // a new router, the same model
		inForce(oldModel)
		if n := len(g.events("trained model not loaded; what was in force stays")); n != 4 { // the reload looked again
			t.Errorf("%d errors in the log, want 4", n)
		}
	})
}

// Without the folder there is no model.
func TestTrainedModelIsTakenAway(t *testing.T) {
	store, dir := modelStore(t)
	if err := store.Activate(oldModel); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		with := "prediction: {models: " + dir + "}"
		g := predicting(t, with)
		if !strings.Contains(g.metrics(), `prediction_model_info{id="`+oldModel) {
			t.Error("not in force from the start")
		}
		if err := g.reload(strings.Replace(g.config, with, "", 1)); err != nil {
			t.Fatal(err)
		}
		if left := grep(g.metrics(), "prediction_model_info{"); left != "" {
			t.Errorf("still in force: %s", left)
		}
	})
}

func TestSwitchIsTold(t *testing.T) {
	store, dir := modelStore(t)
	if err := store.Activate(oldModel); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		g := predicting(t, "prediction: {models: "+dir+", volatile_cv: 0.5, max_error: 100}")
		g.streams(100, 100*time.Millisecond) // about five a second
		g.want(`firsttoken_prediction_estimator_info{estimator="linear",model="m"}`, "1")
		for range 10 { // silence between bursts
			time.Sleep(5 * time.Second)
			g.streams(20, 0)
		}
		g.want(`firsttoken_prediction_switches_total{from="linear",model="m",reason="volatile",to="lightgbm"}`, "1")
		g.want(`firsttoken_prediction_estimator_info{estimator="lightgbm",model="m"}`, "1")
		g.want(`firsttoken_prediction_estimator_info{estimator="linear",model="m"}`, "")
		g.streams(1, 0)
		lines := g.access()
		if last := lines[len(lines)-1]; last["estimator"] != "lightgbm" {
			t.Errorf("line %v", last)
		}
		told := g.events("estimator switched")
		if len(told) != 1 || told[0]["level"] != "info" || told[0]["model"] != "m" || told[0]["from"] != "linear" || told[0]["to"] != "lightgbm" || told[0]["why"] != "volatile" {
			t.Fatalf("switches told: %v", told)
		}
		if cv, _ := told[0]["cv"].(float64); !(cv > 0.5) || told[0]["error_from"] == nil || told[0]["rows_to"] == nil {
			t.Errorf("the numbers are missing: %v", told[0])
		}
	})
}

// An engine without noise is covered always, which is too often.
func TestDriftIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := predicting(t, "prediction: {max_error: 100}")
		g.streams(700, 0)
		counted := 0.0
		for _, by := range []string{"analytic", "linear"} {
			if v := g.number(`firsttoken_prediction_drift_total{estimator="` + by + `",model="m",reason="coverage"}`); v > 0 {
				counted += v
			}
		}
		told := g.events("estimator drifted; its P95 is corrected")
		if counted == 0 || len(told) != int(counted) {
			t.Fatalf("%v alarms counted, told: %v", counted, told)
		}
		if a := told[0]; a["level"] != "warn" || a["model"] != "m" || a["estimator"] == nil || a["why"] != "coverage" || a["coverage"] == nil {
			t.Errorf("alarm %v", a)
		}
	})
}

// A folder that can't be written to stops the start, not the first request.
func TestSamplesNeedAFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	synctest.Test(t, func(t *testing.T) {
		cfg, err := config.Parse("test.yaml", []byte(configFor("prediction: {samples: {dir: "+file+"}}", "a:8000")), ".", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = app.New(cfg, app.Options{}); err == nil || !strings.Contains(err.Error(), "prediction.samples.dir") || !strings.Contains(err.Error(), file) {
			t.Errorf("error %v", err)
		}
	})
}
