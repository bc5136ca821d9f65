package config

import (
	"fmt"
	"net"
	"slices"
	"strings"
)

// check reports what no single value shows: how they fit together. It skips
// values that decoding has already refused.
func (d *decoder) check(c *Config) {
	d.checkListeners(c)
	d.checkNames(c.Models)
	d.checkEngines(c.Models)
	d.checkEjections(c)
	d.checkTenantHeader(c)
	d.checkPolicies(c)
	d.checkContracts(c)
	d.checkStandby(c)
}

func (d *decoder) checkListeners(c *Config) {
	if clash(c.Server.Listen, c.Telemetry.Listen) {
		path := "telemetry.listen"
		if !d.has(path) {
			path = "server.listen"
		}
		d.fail(path, "server.listen and telemetry.listen are the same address", "give each its own port")
	}
}

// clash tells whether two listeners cannot both be opened.
func clash(a, b string) bool {
	hostA, portA, _ := net.SplitHostPort(a)
	hostB, portB, _ := net.SplitHostPort(b)
	if portA != portB || portA == "0" {
		return false
	}
	return hostA == hostB || isWildcard(hostA) || isWildcard(hostB)
}

func isWildcard(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// checkNames lets a client's model name mean one model.
func (d *decoder) checkNames(models []Model) {
	owner := map[string]string{} // name or alias → path of its first use
	claim := func(name, path string) {
		if name == "" {
			return
		}
		if first, taken := owner[name]; taken {
			d.fail(path, "is the same as "+d.place(first), "give every model and alias its own name")
			return
		}
		owner[name] = path
	}
	for i, m := range models {
		claim(m.Name, fmt.Sprintf("models[%d].name", i))
	}
	for i, m := range models {
		for k, alias := range m.Aliases {
			claim(alias, fmt.Sprintf("models[%d].aliases[%d]", i, k))
		}
	}
}

// checkEngines lets one name stand for one URL, and one URL have one name.
func (d *decoder) checkEngines(models []Model) {
	type engine struct {
		*Backend
		path string
	}
	byName, byURL := map[string]engine{}, map[string]engine{}
	for i := range models {
		here := map[string]string{} // name → path, in this model
		for j := range models[i].Backends {
			b := engine{&models[i].Backends[j], backendPath(i, j)}
			if b.URL == "" || b.Name == "" {
				continue
			}
			named, isNamed := byName[b.Name]
			known, isKnown := byURL[b.URL]
			first, isHere := here[b.Name]
			switch {
			case isNamed && named.URL != b.URL:
				d.fail(d.nameOf(b.path), "its name already stands for another URL at "+d.place(named.path), "give every URL its own name")
			case isKnown && known.Name != b.Name:
				d.fail(d.nameOf(b.path), "its URL already has another name at "+d.place(known.path), "use one name for one URL")
			case isHere:
				d.fail(b.path, "is the same backend as "+d.place(first), "remove one of the two")
			case isNamed && named.Engine != b.Engine:
				d.fail(b.path+".engine", "differs from the same backend's at "+d.place(named.path), "write the same engine in both places")
			case isNamed && named.Standby != b.Standby:
				d.fail(b.path+".standby", "differs from the same backend's at "+d.place(named.path), "write the same standby in both places")
			case isNamed && named.Profile != b.Profile:
				d.fail(b.path+".profile", "differs from the same backend's at "+d.place(named.path), "write the same profile in both places")
			}
			if !isNamed {
				byName[b.Name] = b
			}
			if !isKnown {
				byURL[b.URL] = b
			}
			here[b.Name] = b.path
		}
	}
}

// nameOf returns the path of what gives a backend its name.
func (d *decoder) nameOf(path string) string {
	if d.has(path + ".name") {
		return path + ".name"
	}
	return path + ".url"
}

// checkEjections wants the first ejection within the cap, wherever the file
// sets one of the two.
func (d *decoder) checkEjections(c *Config) {
	check := func(path string, h *Health) {
		at := path + ".health.ejection"
		if !d.has(at) {
			at = path + ".health.max_ejection"
		}
		if d.has(at) && h.Ejection > h.MaxEjection {
			d.fail(at, fmt.Sprintf("ejection (%s) is longer than max_ejection (%s)", h.Ejection, h.MaxEjection), "raise max_ejection")
		}
	}
	check("defaults", &c.Defaults.Health)
	for i := range c.Models {
		check(fmt.Sprintf("models[%d]", i), &c.Models[i].Health)
		for j := range c.Models[i].Backends {
			check(backendPath(i, j), &c.Models[i].Backends[j].Health)
		}
	}
}

// checkTenantHeader refuses a header that never comes through.
func (d *decoder) checkTenantHeader(c *Config) {
	if strings.HasPrefix(c.Server.TenantHeader, "X-Firsttoken-") {
		d.fail("server.tenant_header", "names beginning with X-Firsttoken- are dropped from clients' requests", "write a name such as X-Tenant")
	}
}

// checkPolicies wants predictions where a policy chooses by them, and names the
// place where the file says so.
func (d *decoder) checkPolicies(c *Config) {
	if c.Prediction.Enabled {
		return
	}
	check := func(path, policy string) {
		if d.has(path) && slices.Contains(foreseeing, policy) {
			d.fail(path, fmt.Sprintf("%q chooses by predictions, which prediction.enabled: false switches off", policy),
				"switch prediction on, or write a policy such as least-inflight")
		}
	}
	check("defaults.policy", c.Defaults.Policy)
	for i, m := range c.Models {
		check(fmt.Sprintf("models[%d].policy", i), m.Policy)
	}
}

// checkContracts wants each contract file once.
func (d *decoder) checkContracts(c *Config) {
	for i, file := range c.Contracts.Files {
		if first := slices.Index(c.Contracts.Files, file); first < i && file != "" {
			d.fail(fmt.Sprintf("contracts.files[%d]", i), "is the same file as "+d.place(fmt.Sprintf("contracts.files[%d]", first)), "remove one of the two")
		}
	}
}

// checkStandby wants somebody to serve while others stand by, and what calls
// them in.
func (d *decoder) checkStandby(c *Config) {
	for i, m := range c.Models {
		serving := 0
		for j, b := range m.Backends {
			if !b.Standby {
				serving++
				continue
			}
			if !c.WarmUp.Enabled {
				d.fail(backendPath(i, j)+".standby", "stands by to be warmed up, which warm_up.enabled: false switches off", "switch warm_up on, or remove standby")
			}
		}
		if serving == 0 && len(m.Backends) > 0 {
			d.fail(fmt.Sprintf("models[%d].backends", i), "all stand by, so that nobody serves", "remove standby from one of them")
		}
	}
}

func backendPath(i, j int) string { return fmt.Sprintf("models[%d].backends[%d]", i, j) }

// place names a field and its line.
func (d *decoder) place(path string) string {
	return fmt.Sprintf("%s (line %d)", path, d.line(path))
}
