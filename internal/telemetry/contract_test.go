package telemetry_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/firsttoken/firsttoken/internal/telemetry"
	"github.com/firsttoken/firsttoken/pkg/sla"
)

// contracts are one contract with two objectives.
func contracts(time.Time) []sla.Status {
	return []sla.Status{{
		Contract: "chat", State: sla.AtRisk,
		Objectives: []sla.ObjectiveStatus{
			{Budget: 0.5, Windows: []sla.WindowStatus{{Length: 5 * time.Minute, Burn: 3}, {Length: 72 * time.Hour, Burn: 1}}},
			{Budget: -0.25, Windows: []sla.WindowStatus{{Length: 5 * time.Minute, Burn: 2}, {Length: 72 * time.Hour, Burn: 4}}},
		},
	}}
}

// Of several objectives the one that stands worst is shown.
func TestContractCollector(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(telemetry.NewContractCollector(contracts, now))
	got := series(t, reg)
	want := map[string]float64{
		`firsttoken_contract_state{contract="chat",state="ok"}`:        0,
		`firsttoken_contract_state{contract="chat",state="at_risk"}`:   1,
		`firsttoken_contract_state{contract="chat",state="breaching"}`: 0,
		`firsttoken_contract_state{contract="chat",state="no_data"}`:   0,
		`firsttoken_contract_burn_rate{contract="chat",window="5m"}`:   3,
		`firsttoken_contract_burn_rate{contract="chat",window="3d"}`:   4,
		`firsttoken_contract_budget_remaining_ratio{contract="chat"}`:  -0.25,
	}
	for name, value := range want {
		if v, ok := got[name]; !ok || v != value {
			t.Errorf("%s is %v (there: %v), want %v", name, v, ok, value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d series: %v", len(got), got)
	}
}

// What is reported of a contract that is gone does not bring it back.
func TestKeepContracts(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := telemetry.NewMetrics(reg)
	m.Model("m").Backend("a")
	report := func(c *telemetry.Contract) {
		c.Outcome("ttft-p95", false)
		c.FirstToken(true)
		c.OverBurst()
		m.Shed("m", "chat", "deadline")
		m.Lightened("chat", "m", "m")
		m.Violated("chat", "a")
	}
	chat := m.Contract("chat")
	if m.Contract("chat") != chat {
		t.Error("the same name gives other series")
	}
	report(chat)
	m.KeepContracts(map[string]bool{"chat": true})
	if got := about(t, reg, "chat"); len(got) != 6 {
		t.Errorf("series %v", got)
	}
	m.KeepContracts(nil)
	report(chat)
	if got := about(t, reg, "chat"); len(got) != 0 {
		t.Errorf("it is back: %v", got)
	}
	m.Shed("m", "", "full")
	if got := series(t, reg)[`firsttoken_shed_total{contract="",model="m",reason="full"}`]; got != 1 {
		t.Errorf("%v sheds without a contract", got)
	}
}

func TestTurns(t *testing.T) {
	reg := prometheus.NewRegistry()
	model := telemetry.NewMetrics(reg).Model("m")
	for turn, label := range map[int]string{0: "", 1: "1", 2: "2", 3: "3-5", 5: "3-5", 6: "6-10", 10: "6-10", 11: ">10", 1000: ">10"} {
		name := `firsttoken_ttft_by_turn_seconds{model="m",turn="` + label + `"}`
		before := series(t, reg)[name]
		model.TTFT("content", turn, time.Second)
		if after := series(t, reg)[name]; label != "" && after != before+1 || label == "" && after != 0 {
			t.Errorf("turn %d: %v, then %v in %s", turn, before, after, name)
		}
	}
}
